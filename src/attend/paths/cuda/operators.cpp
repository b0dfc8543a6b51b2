#include "attend/paths/cuda/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

namespace heed::detail {

namespace {

bool has_argument(const c10::FunctionSchema& schema, const std::string& name) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [&](const auto& argument) { return argument.name() == name; });
}

}  // namespace

std::vector<c10::IValue> arguments_of(const c10::FunctionSchema& schema, const NamedValues& given) {
  const auto& arguments = schema.arguments();
  for (const auto& [name, value] : given) {
    TORCH_CHECK(value.isNone() || has_argument(schema, name), schema.name(),
                " of this LibTorch has no argument ", name);
  }
  std::vector<c10::IValue> values;
  values.reserve(arguments.size());
  for (const auto& argument : arguments) {
    const auto found = std::find_if(given.begin(), given.end(), [&](const auto& named) {
      return named.first == argument.name();
    });
    TORCH_CHECK(found != given.end() || argument.default_value(), schema.name(),
                " of this LibTorch needs an argument ", argument.name());
    values.push_back(found != given.end() ? found->second : *argument.default_value());
  }
  return values;
}

bool has_cuda_kernel(const char* name) {
  const auto found = c10::Dispatcher::singleton().findSchema({name, ""});
  return found && found->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

bool has_argument(const char* operator_name, const char* argument) {
  const auto found = c10::Dispatcher::singleton().findSchema({operator_name, ""});
  return found && has_argument(found->schema(), argument);
}

std::vector<c10::IValue> call_operator(const char* name, const NamedValues& given) {
  const auto found = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  auto stack = arguments_of(found.schema(), given);
  found.callBoxed(stack);
  return stack;
}

}  // namespace heed::detail
