// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

/// Kernels of operators in boxed form: they read their arguments from the dispatcher's stack, one
/// after the other. Python and exported programs call operators in this form.

namespace heed::detail {

using torch::jit::Stack;

class Arguments {
 public:
  Arguments(const Stack& stack, size_t count)
      : next_(stack.end() - static_cast<std::ptrdiff_t>(count)) {}

  template <typename T>
  T next() {
    return (next_++)->to<T>();
  }

  /// Reads a list of at most N flags. Those that it lacks are false.
  template <size_t N>
  std::array<bool, N> next_flags() {
    const auto listed = next<c10::List<bool>>();
    std::array<bool, N> flags{};
    for (size_t i = 0; i < std::min(N, listed.size()); ++i) flags[i] = listed[i];
    return flags;
  }

 private:
  Stack::const_iterator next_;
};

using Results = std::vector<at::Tensor>;

inline size_t argument_count(const c10::OperatorHandle& op) {
  return op.schema().arguments().size();
}

/// Replaces the arguments on top of the stack by results.
inline void replace_arguments(size_t count, Results results, Stack& stack) {
  torch::jit::drop(stack, count);
  for (auto& result : results) stack.emplace_back(std::move(result));
}

template <Results (*Kernel)(Arguments&)>
void call_boxed(const c10::OperatorHandle& op, Stack* stack) {
  const auto count = argument_count(op);
  Arguments arguments(*stack, count);
  replace_arguments(count, Kernel(arguments), *stack);
}

template <Results (*Kernel)(Arguments&)>
torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<&call_boxed<Kernel>>();
}

/// Defines an operator. If `draws`, it draws random numbers, and a compiler must not merge two
/// equal calls.
inline void define(torch::Library& library, const std::string& schema, bool draws) {
  using Tags = std::vector<at::Tag>;
  const auto tags = draws ? Tags{at::Tag::pt2_compliant_tag, at::Tag::nondeterministic_seeded}
                          : Tags{at::Tag::pt2_compliant_tag};
  library.def(torch::schema(schema.c_str()), tags);
}

/// Calls the operator heed::`name`.
inline Results call_operator(const char* name, Stack arguments) {
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow((std::string("heed::") + name).c_str(), "");
  op.callBoxed(arguments);
  Results results;
  results.reserve(arguments.size());
  for (auto& result : arguments) results.push_back(std::move(result).toTensor());
  return results;
}

}  // namespace heed::detail
