#pragma once

#include <ATen/core/Tensor.h>
#include <torch/detail/static.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
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
/// torch::nn::AnyModule to call forward(x, mask), and the module's holder what a call returns.
/// torch::python::bind_module binds no ambiguous forward; add those that Python calls with def().
/// Use it outside of all namespaces.
#define HEED_MODULE(Name)                                                                          \
  template <typename... Arguments>                                                                 \
  struct torch::detail::return_type_of_forward_impl<false, heed::Name##Impl, Arguments...>         \
      : return_type_of_forward_impl<true, heed::Name##Impl, Arguments...> {};                      \
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
