#pragma once

#include <typeinfo>

namespace heed::detail {

/// The interface of a layer that stands in the place of LibTorch's `Layer`; null if the layer is
/// LibTorch's. `Interface` is LinearStandIn for a Linear and EmbeddingStandIn for an Embedding.
template <typename Interface, typename Layer>
Interface* stand_in(Layer& layer) {
  // A cast that fails costs 11 ns, a comparison of types 1 ns.
  return typeid(layer) == typeid(Layer) ? nullptr : dynamic_cast<Interface*>(&layer);
}

}  // namespace heed::detail
