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

/// The forward that containers of LibTorch's call.
template <typename Impl>
auto self_forward() -> at::Tensor (Impl::*)(const at::Tensor&, const std::optional<at::Tensor>&) {
  return &Impl::forward;
}

}  // namespace heed::detail

/// TORCH_MODULE for a class whose forward(x, mask) is inherited, or stands beside the cross form
/// forward(query, key, value, mask). LibTorch finds a module's forward by `&Impl::forward`, which
/// is then another class's or names two functions: this says which one torch::nn::Sequential and
/// torch::nn::AnyModule call. Stands outside of all namespaces; the class is heed::Name##Impl.
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
