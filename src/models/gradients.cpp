// SPDX-License-Identifier: BSD-3-Clause
#include "models/gradients.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <optional>

#include "core/dtypes.h"
#include "core/error.h"
#include "core/seen_tensors.h"
#include "core/to_device.h"

namespace heed::detail {

namespace {

/// The most numbers of which LibTorch's kernel computes a norm at once. It adds the squares of a
/// float32 tensor one after the other: the norm of 28 million numbers is wrong by 1.6e-3, that of
/// 2^17 by 5e-7.
constexpr int64_t kNumbersOfANorm = 1 << 17;

/// Appends tensors that together have the norm of the gradient.
void append_parts(const at::Tensor& gradient, std::vector<at::Tensor>& parts) {
  // Rows of a sparse gradient that stand twice are added first.
  const auto values = gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
  if (!values.is_cpu()) {
    parts.push_back(values);
    return;
  }
  // The numbers are taken in the order of memory; a tensor with gaps is copied.
  const auto dense = values.is_non_overlapping_and_dense() ? values : values.contiguous();
  const auto numbers = dense.as_strided({dense.numel()}, {1});
  for (const auto& part : numbers.split(kNumbersOfANorm)) parts.push_back(part);
}

/// The numbers of a gradient, which a function may change in place.
at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient._values() : gradient;
}

}  // namespace

void check_gradient(const char* function, const at::Tensor& gradient,
                    const std::function<std::string()>& parameter) {
  HEED_CHECK(is_attention_dtype(gradient.scalar_type()), "{}: gradient dtype ({}) of {} must be {}",
             function, c10::toString(gradient.scalar_type()), parameter(), attention_dtypes());
  HEED_CHECK(gradient.layout() == at::kStrided || gradient.is_sparse(),
             "{}: gradient layout ({}) of {} must be Strided or Sparse", function,
             c10::str(gradient.layout()), parameter());
  HEED_CHECK(!gradient.is_nested(), "{}: gradient of {} must not be nested", function, parameter());
}

void check_changed_gradient(const char* function, const at::Tensor& gradient,
                            const std::function<std::string()>& parameter) {
  check_gradient(function, gradient, parameter);
  HEED_CHECK(at::has_internal_overlap(values_of(gradient)) != at::MemOverlap::Yes,
             "{}: elements of the gradient of {} must not share memory", function, parameter());
}

std::vector<at::Tensor> distinct_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  SeenTensors seen;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (gradient.defined() && seen.add(gradient)) gradients.push_back(gradient);
  }
  return gradients;
}

std::vector<std::vector<size_t>> alike(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<size_t>> all;
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto found = std::find_if(all.begin(), all.end(), [&](const std::vector<size_t>& places) {
      const auto& first = tensors[places[0]];
      return tensors[i].device() == first.device() &&
             tensors[i].scalar_type() == first.scalar_type();
    });
    if (found == all.end()) found = all.emplace(found);
    found->push_back(i);
  }
  return all;
}

std::vector<at::Tensor> at_places(const std::vector<at::Tensor>& tensors,
                                  const std::vector<size_t>& places) {
  return c10::fmap(places, [&](size_t place) { return tensors[place]; });
}

double norm_of(const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return 0.0;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const auto& gradient : gradients) append_parts(gradient, parts);
  at::Tensor squares;  // float64 [], on the first gradient's device
  for (const auto& places : alike(parts)) {
    const auto tensors = at_places(parts, places);
    const auto dtype = tensors[0].scalar_type();
    const auto norms = at::_foreach_norm(
        tensors, 2, is_attention_dtype(dtype) ? std::optional(compute_dtype(dtype)) : std::nullopt);
    const auto sum =
        to_device(at::stack(norms).to(at::kDouble).square().sum(), gradients[0].device());
    squares = squares.defined() ? squares + sum : sum;
  }
  return squares.sqrt().item<double>();
}

void check_max_norm(const char* function, double max_norm) {
  HEED_CHECK(max_norm > 0.0, "{}: max_norm ({}) must be above 0", function, max_norm);
}

double clipping_factor(double norm, double max_norm) { return max_norm / (norm + 1e-6); }

void limit_norm(const std::vector<at::Tensor>& gradients, double norm, double max_norm) {
  const auto factor = clipping_factor(norm, max_norm);
  if (factor >= 1.0) return;
  const at::NoGradGuard no_grad;
  const auto values = c10::fmap(gradients, values_of);
  for (const auto& places : alike(values)) {
    at::_foreach_mul_(at_places(values, places), factor);
  }
}

}  // namespace heed::detail
