// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

/// Contestants that show how far a row is from what the machine can do.

namespace heed::bench {

/// at::linear through oneDNN: `mkldnn::_linear_pointwise`. Throws c10::Error where LibTorch has no
/// such operator.
at::Tensor onednn_linear(const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias = {});

/// Reads the tensor once, with no prefetching but the processor's own; returns the sum of its
/// words.
int64_t plain_read(const at::Tensor& tensor);

/// Reads the tensor once, with the widest vectors and many sums, as fast as memory is; returns the
/// sum of its words.
int64_t vector_read(const at::Tensor& tensor);

/// For a contestant that does a part of the work only: its result is not compared with ours.
inline at::Tensor no_result(const at::Tensor& /*result*/) { return {}; }

}  // namespace heed::bench
