// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend.h>

#include <optional>
#include <string>

#include "support/row.h"
#include "support/sdpa_backends.h"

/// Sizes and inputs of the rows of a device, and the peers that compute the same.

namespace heed::bench {

/// In the letters of attend.h.
struct DeviceShape {
  int64_t B, H, G, L, S, D, Dv;

  /// A smaller shape of the same proportions, for machines without a GPU.
  DeviceShape tiny() const;
  std::string name() const;
};

struct DeviceInputs {
  at::Tensor query, key, value;  // [B, H, L, D], [B, G, S, D], [B, G, S, Dv]
  at::Tensor output_gradient;    // [B, H, L, Dv]; undefined: inference
  AttendOptions options;
  /// The mask or bias with which SDPA and operators do what `options` asks for; none where causal
  /// is all.
  std::optional<at::Tensor> mask;
};

DeviceInputs make_device_inputs(const DeviceShape& shape, const at::TensorOptions& options,
                                bool training);

/// The output; in training the gradient of query, those of the others computed too.
at::Tensor with_gradients(const DeviceInputs& in, const at::Tensor& output);

/// SDPA, top-left where it is causal.
at::Tensor device_sdpa(const DeviceInputs& in);

/// Scores and weights in memory, keys and values repeated.
at::Tensor device_operators(const DeviceInputs& in);

/// One contestant for each of SDPA's backends that may take such inputs, all with this target.
std::vector<Contestant<DeviceInputs>> sdpa_contestants(const DeviceShape& shape, bool has_mask,
                                                       double target);

/// Whether scores fit in memory as one tensor.
bool scores_fit(const DeviceShape& shape);

/// In half precision operators round the scores: too far off to be compared.
at::Tensor not_compared(const at::Tensor& result);

/// `cpu/kind/BFloat16/training`, without the sizes.
std::string device_row(at::Device device, const std::string& kind, at::ScalarType dtype,
                       bool training);

}  // namespace heed::bench
