// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Type.h>
#include <heed/stand_ins.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <type_traits>
#include <typeinfo>

#include "core/error.h"
#include "modules/layers/packable.h"

namespace heed::detail {

/// The interface of a layer that stands in the place of LibTorch's Linear or Embedding, `Layer`;
/// null if the layer is LibTorch's. Throws c10::ValueError for a subclass without the interface,
/// whose forward would never be called.
template <typename Layer>
auto* stand_in_of(Layer& layer) {
  constexpr bool kLinear = std::is_same_v<std::remove_const_t<Layer>, torch::nn::LinearImpl>;
  static_assert(kLinear || std::is_same_v<std::remove_const_t<Layer>, torch::nn::EmbeddingImpl>);
  using Interface = std::conditional_t<kLinear, LinearStandIn, EmbeddingStandIn>;
  using Found = std::conditional_t<std::is_const_v<Layer>, const Interface, Interface>;
  // A comparison of types costs 1 ns, a cast more.
  if (is_own_layer<std::remove_const_t<Layer>>(layer)) return static_cast<Found*>(nullptr);
  auto* const found = dynamic_cast<Found*>(&layer);
  constexpr auto kName = kLinear ? "Linear" : "Embedding";
  HEED_CHECK(
      found != nullptr,
      "{}: the subclass {} must derive from heed::{}StandIn too, by which heed's modules call "
      "it: {}Impl::forward is not virtual",
      kName, c10::demangle(typeid(layer).name()), kName, kName);
  return found;
}

/// The way in which processes share a Linear or Embedding.
template <typename Layer>
const LayerSharing& sharing(const Layer& layer) {
  static const LayerSharing whole;
  const LayerSharing* own = stand_in_of(layer);
  return own ? *own : whole;
}

}  // namespace heed::detail
