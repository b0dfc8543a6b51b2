// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paths/cuda/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace heed::detail {

namespace {

/// An argument's name in the newest LibTorch, and in other versions. Versions differ besides only
/// in arguments that some of them lack, and these have defaults.
struct OtherName {
  const char* newest;
  const char* other;
};
constexpr OtherName kOtherNames[] = {
    {"rng_state", "philox_seed"},  // before FlashAttention 2.7
    {"unused", "philox_offset"},
};

bool has_argument(const c10::FunctionSchema& schema, const std::string& name) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [&](const auto& argument) { return argument.name() == name; });
}

/// The name that this schema has for the argument `name`.
std::string name_in(const c10::FunctionSchema& schema, const std::string& name) {
  for (const auto& [newest, other] : kOtherNames) {
    if (name == newest && !has_argument(schema, name)) return other;
  }
  return name;
}

}  // namespace

std::vector<c10::IValue> arguments_of(const c10::FunctionSchema& schema, NamedValues given) {
  for (auto& [name, value] : given) {
    name = name_in(schema, name);
    TORCH_CHECK(value.isNone() || has_argument(schema, name), schema.name(),
                " of this LibTorch has no argument ", name);
  }
  std::vector<c10::IValue> values;
  values.reserve(schema.arguments().size());
  for (const auto& argument : schema.arguments()) {
    const auto found = std::find_if(given.begin(), given.end(), [&](const auto& named) {
      return named.first == argument.name();
    });
    const auto value =
        found != given.end() ? std::optional(found->second) : argument.default_value();
    TORCH_CHECK(value, schema.name(), " of this LibTorch needs an argument ", argument.name());
    values.push_back(*value);
  }
  return values;
}

bool has_cuda_kernel(const char* name) {
  const auto found = c10::Dispatcher::singleton().findSchema({name, ""});
  return found && found->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

bool returns(const char* name, const char* result) {
  const auto found = c10::Dispatcher::singleton().findSchema({name, ""});
  if (!found) return false;
  const auto& results = found->schema().returns();
  return std::any_of(results.begin(), results.end(),
                     [&](const auto& returned) { return returned.name() == result; });
}

std::vector<c10::IValue> call_operator(const char* name, NamedValues given) {
  const auto found = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  auto stack = arguments_of(found.schema(), std::move(given));
  found.callBoxed(stack);
  return stack;
}

}  // namespace heed::detail
