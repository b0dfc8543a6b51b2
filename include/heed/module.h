// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <torch/detail/static.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace heed::detail {

/// The overload of forward that LibTorch's containers call.
template <typename Impl, typename Input>
auto self_forward() -> at::Tensor (Impl::*)(const at::Tensor&, const Input&) {
  return &Impl::forward;
}

/// Makes an argument of type `Argument` of a tensor, of none or of an optional one, if C++ would
/// convert these to it: containers convert nothing.
template <typename Argument>
void convert_argument(torch::nn::AnyValue& value) {
  constexpr bool kTakesOptional = std::is_convertible_v<std::optional<at::Tensor>, Argument>;
  if constexpr (std::is_convertible_v<at::Tensor, Argument>) {
    auto* tensor = value.template try_get<at::Tensor>();
    if (tensor) value = torch::nn::AnyValue(Argument(std::move(*tensor)));
  }
  if constexpr (kTakesOptional || std::is_convertible_v<std::nullopt_t, Argument>) {
    if (value.template try_get<std::nullopt_t>()) value = torch::nn::AnyValue(Argument());
  }
  if constexpr (kTakesOptional) {
    auto* optional = value.template try_get<std::optional<at::Tensor>>();
    if (optional) value = torch::nn::AnyValue(Argument(std::move(*optional)));
  }
}

/// Completes the arguments of a call, from `index` on: converts one, or adds the default if it is
/// not given.
template <typename... Arguments>
std::vector<torch::nn::AnyValue> completed(size_t index, std::vector<torch::nn::AnyValue>&& given) {
  auto arguments = std::move(given);
  const auto complete = [&](auto otherwise) {
    if (index == arguments.size()) {
      arguments.emplace_back(std::move(otherwise));
    } else {
      convert_argument<decltype(otherwise)>(arguments[index]);
    }
    ++index;
  };
  (complete(Arguments()), ...);
  return arguments;
}

/// Throws c10::ValueError, beginning with `function` and ending with `advice`, if weights of the
/// module are packed.
HEED_API void check_not_packed(const char* function, const torch::nn::Module& module,
                               const char* advice);

/// Throws if weights of the module are packed and would be converted.
HEED_API void check_packed_stay(const torch::nn::Module& module, std::optional<at::Device> device,
                                std::optional<at::ScalarType> dtype);

}  // namespace heed::detail

namespace heed {

/// torch::nn::Cloneable for heed's modules. When pack_weights has packed weights of the module,
/// these are the functions that throw c10::ValueError and change nothing: `to` another dtype or
/// device, `load`, and `save`, which torch::save calls.
template <typename Derived>  // a base of Derived may stand between them
// NOLINTNEXTLINE(bugprone-crtp-constructor-accessibility)
class Cloneable : public torch::nn::Cloneable<Derived> {
 public:
  using torch::nn::Cloneable<Derived>::Cloneable;

  /// Converts the module, unless packed weights would change.
  void to(at::Device device, at::ScalarType dtype, bool non_blocking = false) override {
    detail::check_packed_stay(*this, device, dtype);
    torch::nn::Module::to(device, dtype, non_blocking);
  }
  /// Converts the module, unless packed weights would change.
  void to(at::ScalarType dtype, bool non_blocking = false) override {
    detail::check_packed_stay(*this, std::nullopt, dtype);
    torch::nn::Module::to(dtype, non_blocking);
  }
  /// Converts the module, unless packed weights would change.
  void to(at::Device device, bool non_blocking = false) override {
    detail::check_packed_stay(*this, device, std::nullopt);
    torch::nn::Module::to(device, non_blocking);
  }
  /// Writes the module, unless weights are packed.
  void save(torch::serialize::OutputArchive& archive) const override {
    detail::check_not_packed("save", *this, ": save_weights writes them");
    torch::nn::Module::save(archive);
  }
  /// Reads what `save` wrote, unless weights are packed.
  void load(torch::serialize::InputArchive& archive) override {
    detail::check_not_packed("load", *this, "");
    torch::nn::Module::load(archive);
  }
};

}  // namespace heed

/// Within a module's class: containers may leave out the arguments of forward after the first
/// `required` ones. The other macro arguments are their types, without const and reference. Every
/// default is Type(), such as false for bool, whatever the declaration of forward has. Like
/// LibTorch's FORWARD_HAS_DEFAULT_ARGS, but containers may also pass a tensor where a
/// std::optional<at::Tensor> or a TransformerInputs is expected: `sequential->forward(x, mask)`.
#define HEED_DEFAULT_ARGS(required, ...)                                         \
  template <typename ModuleType, typename... ArgumentTypes>                      \
  friend struct torch::nn::AnyModuleHolder;                                      \
  bool _forward_has_default_args() override { return true; }                     \
  unsigned int _forward_num_required_args() override { return required; }        \
  std::vector<torch::nn::AnyValue> _forward_populate_default_args(               \
      std::vector<torch::nn::AnyValue>&& arguments) override {                   \
    return heed::detail::completed<__VA_ARGS__>(required, std::move(arguments)); \
  }                                                                              \
  static_assert(true) /* asks for a semicolon */

/// Like TORCH_MODULE, for a class heed::Name##Impl that inherits forward(x, Input), or that also
/// has forward(query, key, value, mask). LibTorch takes the address `&Impl::forward`, which then
/// belongs to another class or is ambiguous. This macro tells torch::nn::Sequential and
/// torch::nn::AnyModule to call forward(x, Input), and the module's holder what a call returns.
/// torch::python::bind_module binds no ambiguous forward; add those that Python calls with def().
/// Use it outside of all namespaces.
#define HEED_MODULE(Name, Input)                                                           \
  template <typename... Arguments>                                                         \
  struct torch::detail::return_type_of_forward_impl<false, heed::Name##Impl, Arguments...> \
      : return_type_of_forward_impl<true, heed::Name##Impl, Arguments...> {};              \
  template <>                                                                              \
  inline torch::nn::AnyModule::AnyModule(std::shared_ptr<heed::Name##Impl> module)         \
      : content_(make_holder(std::move(module),                                            \
                             heed::detail::self_forward<heed::Name##Impl, Input>())) {}    \
  template <>                                                                              \
  inline heed::Name##Impl& torch::nn::AnyModule::get_<heed::Name##Impl>() const {          \
    return get_(heed::detail::self_forward<heed::Name##Impl, Input>());                    \
  }                                                                                        \
  namespace heed {                                                                         \
  TORCH_MODULE(Name);                                                                      \
  }                                                                                        \
  static_assert(true) /* asks for a semicolon */
