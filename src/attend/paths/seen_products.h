// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

/// The two matrix products of attention. Hidden pairs of query and key do not influence them, even
/// if they hold NaN or infinity. Both can be differentiated any number of times. `seen` is bool
/// and has the leading dimensions of the product; if it is undefined, all is seen.

namespace heed::detail {

/// Whether a tensor has neither NaN nor infinity. Waits for the tensor's device.
bool are_finite(const at::Tensor& tensor);

/// Returns weights [.., M, K] times values [.., K, N]. Weights must be 0 where `seen` [.., M, K]
/// is false.
at::Tensor sum_of_seen(const at::Tensor& weights, const at::Tensor& values, const at::Tensor& seen);

/// Returns left [.., M, D] times the transpose of right [.., N, D]. Where `seen` [.., M, N] is
/// false, the product is some finite number.
at::Tensor products_of_seen(const at::Tensor& left, const at::Tensor& right,
                            const at::Tensor& seen);

}  // namespace heed::detail
