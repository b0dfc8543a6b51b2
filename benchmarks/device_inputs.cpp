// SPDX-License-Identifier: BSD-3-Clause
#include "device_inputs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>
#include <heed/masks.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace heed::bench {

namespace {

/// Scores after scale, softcap and mask, [B, H, L, S].
at::Tensor operator_scores(const DeviceInputs& in, const at::Tensor& key) {
  const auto scale = 1.0 / std::sqrt(static_cast<double>(in.query.size(3)));
  auto scores = at::matmul(in.query, key.transpose(2, 3)) * scale;
  if (const auto softcap = in.options.softcap()) scores = (scores / *softcap).tanh() * *softcap;
  auto mask = in.mask;
  if (in.options.causal() && !mask) {
    mask = causal_mask(in.query.size(2), key.size(2), in.query.device());
  }
  if (!mask) return scores;
  if (mask->is_floating_point()) return scores + *mask;
  return scores.masked_fill(mask->logical_not(), -std::numeric_limits<double>::infinity());
}

}  // namespace

DeviceShape DeviceShape::tiny() const {
  const auto part = [](int64_t size, int64_t divisor) {
    return std::max<int64_t>(size / divisor, 1);
  };
  return {1, part(H, 4), part(G, 4), part(L, 64), part(S, 64), part(D, 8), part(Dv, 8)};
}

std::string DeviceShape::name() const {
  return fmt::format("B{}_H{}_G{}_L{}_S{}_D{}_Dv{}", B, H, G, L, S, D, Dv);
}

DeviceInputs make_device_inputs(const DeviceShape& s, const at::TensorOptions& options,
                                bool training) {
  const auto tensor = [&](int64_t heads, int64_t length, int64_t dim) {
    return at::randn({s.B, heads, length, dim}, options).requires_grad_(training);
  };
  DeviceInputs in{tensor(s.H, s.L, s.D), tensor(s.G, s.S, s.D), tensor(s.G, s.S, s.Dv), {}, {}, {}};
  if (training) in.output_gradient = at::randn({s.B, s.H, s.L, s.Dv}, options);
  return in;
}

at::Tensor with_gradients(const DeviceInputs& in, const at::Tensor& output) {
  if (!in.output_gradient.defined()) return output;
  return torch::autograd::grad({output}, {in.query, in.key, in.value}, {in.output_gradient})
      .front();
}

at::Tensor device_sdpa(const DeviceInputs& in) {
  return with_gradients(in, at::scaled_dot_product_attention(
                                in.query, in.key, in.value, in.mask, in.options.dropout(),
                                /*is_causal=*/in.options.causal() && !in.mask,
                                /*scale=*/std::nullopt,
                                /*enable_gqa=*/in.query.size(1) != in.key.size(1)));
}

at::Tensor device_operators(const DeviceInputs& in) {
  const auto repeats = in.query.size(1) / in.key.size(1);
  const auto key = in.key.repeat_interleave(repeats, 1);
  const auto value = in.value.repeat_interleave(repeats, 1);
  auto scores = operator_scores(in, key);
  if (const auto& sinks = in.options.sinks()) {
    const auto sink = sinks->view({1, -1, 1, 1}).expand({scores.size(0), -1, scores.size(2), 1});
    scores = at::cat({scores, sink}, 3);
  }
  auto weights = at::softmax(scores, 3).narrow(3, 0, key.size(2));
  if (in.options.dropout() > 0) weights = at::dropout(weights, in.options.dropout(), true);
  return with_gradients(in, at::matmul(weights, value));
}

std::vector<Contestant<DeviceInputs>> sdpa_contestants(const DeviceShape& shape, bool has_mask,
                                                       double target) {
  std::vector<Contestant<DeviceInputs>> contestants;
  for (const auto backend : kSdpaBackends) {
    if (backend == SdpaBackend::flash && has_mask) continue;
    if (backend == SdpaBackend::math && !scores_fit(shape)) continue;
    Contestant<DeviceInputs> contestant{name_of(backend),
                                        [backend](DeviceInputs& in) {
                                          const OnlySdpaBackend only(backend);
                                          return device_sdpa(in);
                                        },
                                        target};
    contestant.may_refuse = true;
    contestants.push_back(std::move(contestant));
  }
  return contestants;
}

bool scores_fit(const DeviceShape& s) { return s.B * s.H * s.L * s.S <= int64_t{1} << 30; }

at::Tensor not_compared(const at::Tensor& /*result*/) { return {}; }

std::string device_row(at::Device device, const std::string& kind, at::ScalarType dtype,
                       bool training) {
  return fmt::format("{}/{}/{}/{}", device.is_cpu() ? "cpu" : "cuda", kind, c10::toString(dtype),
                     training ? "training" : "inference");
}

}  // namespace heed::bench
