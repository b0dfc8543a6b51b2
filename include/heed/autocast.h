// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <heed/export.h>

namespace heed {

/// While this object exists, matrix products of this thread on `device` are computed in `dtype`, as
/// under Python's torch.autocast. Its destructor restores the previous state of autocast.
///
/// @code
/// heed::Autocast autocast(torch::kCPU, torch::kBFloat16);
/// auto loss = model->forward(x).square().mean();
/// @endcode
///
/// `attend` and its variants do what at::scaled_dot_product_attention does: they convert query,
/// key, value and bias to `dtype`, unless the query is float64, and return that dtype. Their
/// gradients have the dtypes of the arguments. Scores and softmax stay in float32. A module that
/// decodes from a cache computes in the cache's dtype.
///
/// The dtype float32 turns autocast off. Autocast caches the weights that it has converted. The
/// destructor of the outermost object clears this cache, because an optimizer's step makes the
/// cached weights out of date.
class HEED_API Autocast {
 public:
  /// Throws c10::ValueError when dtype is not BFloat16, Half or Float.
  Autocast(c10::DeviceType device, c10::ScalarType dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_;
  const bool previous_enabled_;
  const c10::ScalarType previous_dtype_;
};

}  // namespace heed
