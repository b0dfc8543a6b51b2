#pragma once

#include <ATen/core/Tensor.h>
#include <torch/detail/static.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace heed::detail {

/// The overload of forward that LibTorch's containers call.
template <typename Impl>
auto self_forward() -> at::Tensor (Impl::*)(const at::Tensor&, const std::optional<at::Tensor>&) {
  return &Impl::forward;
}

}  // namespace heed::detail

/// Like TORCH_MODULE, for a class heed::Name##Impl that inherits forward(x, mask), or that also has
/// forward(query, key, value, mask). LibTorch takes the address `&Impl::forward`, which then
/// belongs to another class or is ambiguous. This macro tells torch::nn::Sequential and
/// torch::nn::AnyModule to call forward(x, mask). Use it outside of all namespaces.
#define HEED_MODULE(Name)                                                                          \
  template <>                                                                                      \
  struct torch::detail::has_forward<heed::Name##Impl> : std::true_type {};                         \
  template <>                                                                                      \
  inline torch::nn::AnyModule::AnyModule(std::shared_ptr<heed::Name##Impl> module)                 \
      : content_(make_holder(std::move(module), heed::detail::self_forward<heed::Name##Impl>())) { \
  }                                                                                                \
  template <>                                                                                      \
  inline heed::Name##Impl& torch::nn::AnyModule::get_<heed::Name##Impl>() const {                  \
    return get_(heed::detail::self_forward<heed::Name##Impl>());                                   \
  }                                                                                                \
  namespace heed {                                                                                 \
  TORCH_MODULE(Name);                                                                              \
  }                                                                                                \
  static_assert(true) /* asks for a semicolon */
