#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <utility>

namespace heed {

/// Holder of a module whose `forward` is overloaded: `module(x)` and `module(query, key, value)`
/// both work. TORCH_MODULE's holder finds the type of `&Impl::forward`, so knows no overloads.
template <typename Contained>
class OverloadedModuleHolder : public torch::nn::ModuleHolder<Contained> {
 public:
  using torch::nn::ModuleHolder<Contained>::ModuleHolder;

  template <typename... Args>
  at::Tensor operator()(Args&&... args) {
    return this->get()->forward(std::forward<Args>(args)...);
  }
};

}  // namespace heed
