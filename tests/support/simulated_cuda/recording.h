// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "support/simulated_cuda/device_tensors.h"

/// How operators of the simulated device are recorded in a graph.

namespace heed::test {

bool is_capturing();
/// Throws during a capture.
void refuse_in_capture(const std::string& what);
/// To be called before the tensor's memory is written to.
void note_write(const at::Tensor& tensor);
/// Adds to the graph what each replay does.
void record(std::function<void()> again);

/// An operator's argument as the graph keeps it: it owns memory of the capture, and watches other
/// memory; tensors of the host are copied.
/// @{
at::Tensor kept(const at::Tensor& tensor);
c10::IValue kept(const c10::IValue& value);
template <typename T>
auto kept_argument(const T& argument) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return kept(argument);
  } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
    return argument ? std::optional(kept(*argument)) : argument;
  } else {
    return argument;
  }
}
/// @}

/// Writes what a replay computed to where the results are.
/// @{
template <typename T>
void write_result(const T& computed, const T& result) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (result.defined() && result.is_cuda()) on_host(result).copy_(on_host(computed));
  }
}
template <typename... T, size_t... I>
void write_results(const std::tuple<T...>& computed, const std::tuple<T...>& results,
                   std::index_sequence<I...> /*all*/) {
  (write_result(std::get<I>(computed), std::get<I>(results)), ...);
}
/// @}

/// A kernel that returns new tensors, and that captures record.
template <auto kernel>
struct Recorded;
template <typename... Results, typename... Arguments,
          std::tuple<Results...> (*kernel)(Arguments...)>
struct Recorded<kernel> {
  static std::tuple<Results...> call(Arguments... arguments) {
    auto results = kernel(arguments...);
    if (is_capturing()) {
      record([results, all = std::tuple(kept_argument(arguments)...)] {
        write_results(std::apply(kernel, all), results, std::index_sequence_for<Results...>());
      });
    }
    return results;
  }
};

}  // namespace heed::test
