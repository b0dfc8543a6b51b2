#pragma once

#include <ATen/core/Tensor.h>

/// Matrix products in which hidden pairs of rows do not show, not even if they hold NaN or
/// infinity. Both are differentiable any number of times. `seen` is bool and has the products'
/// leading dimensions; undefined: all is seen.

namespace heed::detail {

/// Waits for the tensor's device.
bool are_finite(const at::Tensor& tensor);

/// weights [.., M, K] times values [.., K, N]. Weights are 0 where `seen` [.., M, K] is false.
at::Tensor sum_of_seen(const at::Tensor& weights, const at::Tensor& values, const at::Tensor& seen);

/// left [.., M, D] times right [.., N, D], transposed. Pairs that are hidden, by `seen` [.., M, N],
/// may be anything finite.
at::Tensor products_of_seen(const at::Tensor& left, const at::Tensor& right,
                            const at::Tensor& seen);

}  // namespace heed::detail
