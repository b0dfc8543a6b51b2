// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace heed::detail {

/// Checks that a gradient is floating, and strided or sparse: a program may set any tensor as one.
/// Errors call its parameter what `parameter` returns.
void check_gradient(const char* function, const at::Tensor& gradient,
                    const std::function<std::string()>& parameter);

/// Checks the same of a gradient that is to be changed in place, and that it can be.
HEED_API void check_changed_gradient(const char* function, const at::Tensor& gradient,
                                     const std::function<std::string()>& parameter);

/// The gradients of those parameters that have one, each once.
std::vector<at::Tensor> distinct_gradients(const std::vector<at::Tensor>& parameters);

/// For each device and dtype the places of its tensors, which one operator takes together.
std::vector<std::vector<size_t>> alike(const std::vector<at::Tensor>& tensors);

/// The tensors at these places.
std::vector<at::Tensor> at_places(const std::vector<at::Tensor>& tensors,
                                  const std::vector<size_t>& places);

/// The norm of all gradients together. Waits for the device once.
HEED_API double norm_of(const std::vector<at::Tensor>& gradients);

/// Throws c10::ValueError, which begins with `function`, unless max_norm is above 0.
HEED_API void check_max_norm(const char* function, double max_norm);

/// The number by which torch's clip_grad_norm_ multiplies gradients of this norm, so that the norm
/// becomes max_norm. From 1 on, they stay as they are; NaN makes all of them NaN.
double clipping_factor(double norm, double max_norm);

/// Multiplies gradients of this norm by `clipping_factor`.
HEED_API void limit_norm(const std::vector<at::Tensor>& gradients, double norm, double max_norm);

}  // namespace heed::detail
