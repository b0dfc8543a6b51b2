// SPDX-License-Identifier: BSD-3-Clause
#include "module_case.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>

#include "attend_call.h"
#include "attend_verdict.h"
#include "support/expect.h"
#include "support/modules.h"

namespace heed::fuzz {

namespace {

bool normalizes_by_rms(const Case& c) { return c.qk_norm % 2 == 1; }

RotaryEmbeddingOptions rotary_options(const Case& c) {
  RotaryEmbeddingOptions options(c.rotary == 4 ? head_dim(c) + 2 : head_dim(c));
  if (c.rotary == 2) options.pairing(RotaryPairing::interleaved);
  if (c.rotary == 3) options.rotary_dim(2);
  return options;
}

QkNormOptions norm_options(const Case& c) {
  const auto eps = c.qk_norm == 5 ? std::numeric_limits<double>::quiet_NaN() : 1e-6;
  return QkNormOptions()
      .kind(normalizes_by_rms(c) ? NormKind::rms_norm : NormKind::layer_norm)
      .eps(eps)
      .after_rotary(c.qk_norm == 3 || c.qk_norm == 4);
}

template <typename Options>
void set_head_options(const Case& c, Options& options) {
  set_score_options(c, options);
  options.input_bias(c.no_input_bias == 0).output_bias(c.no_output_bias == 0);
  if (c.head_dim > 0) options.head_dim(head_dim(c));
  if (c.rotary > 0) options.rotary(rotary_options(c));
  if (c.qk_norm > 0) options.qk_norm(norm_options(c));
  options.alibi(c.alibi > 0).sinks(c.sinks > 0);
}

/// In the case's dtype where a module can have it, with norms and sinks that are not as at first.
template <typename Module>
Module prepared(const Case& c, Module module) {
  const at::NoGradGuard no_grad;
  for (const auto& item : module->named_parameters()) {
    if (item.key().rfind("fc_", 0) != 0) {
      item.value().add_(0.3 * test::uniform(item.value().sizes(), at::kFloat));
    }
  }
  if (c.dtype < 4) module->to(dtype_of(c.dtype));
  module->train(c.training != 0);
  return module;
}

at::Tensor normalize(const Case& c, const Norm& norm, const at::Tensor& x, double& gain) {
  const auto centered = normalizes_by_rms(c) ? x : x - x.mean(-1, /*keepdim=*/true);
  const auto size = (centered.square().mean(-1, /*keepdim=*/true) + 1e-6).sqrt();
  if (size.numel() > 0) gain = std::max(gain, 1.0 / size.min().item<double>());
  const auto result = centered / size * norm->weight.to(at::kDouble);
  return norm->bias.defined() ? result + norm->bias.to(at::kDouble) : result;
}

/// x [B, H, L, D], the last query at position `last`; pair i turns by position * 10000^(-2 i / R).
at::Tensor rotate(const Case& c, const at::Tensor& x, int64_t last) {
  const auto D = x.size(3), R = c.rotary == 3 ? 2 : D, L = x.size(2);
  const auto pairs = at::arange(R / 2);
  const auto first = c.rotary == 2 ? pairs * 2 : pairs;
  const auto second = c.rotary == 2 ? pairs * 2 + 1 : pairs + R / 2;
  const auto positions = at::arange(last + 1 - L, last + 1, at::kDouble).unsqueeze(1);
  const auto angles = positions * at::pow(10000.0, pairs.to(at::kDouble) * (-2.0 / R));
  const auto a = x.index_select(3, first), b = x.index_select(3, second);
  const auto turned = at::cat({a * angles.cos() - b * angles.sin(),
                               b * angles.cos() + a * angles.sin(), x.narrow(3, R, D - R)},
                              3);
  const auto order = at::cat({first, second, at::arange(R, D)}).argsort();
  return turned.index_select(3, order);
}

/// The authors' slopes: of a power of two, and every second one of the next for what is missing.
/// A module has them in float32, whatever its dtype.
at::Tensor alibi_slopes_of(int64_t heads) {
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    const auto exponent =
        h < power ? -8.0 * static_cast<double>(h + 1) / static_cast<double>(power)
                  : -4.0 * static_cast<double>(2 * (h - power) + 1) / static_cast<double>(power);
    slopes.push_back(std::exp2(exponent));
  }
  return at::tensor(slopes, at::kFloat);
}

}  // namespace

int64_t width(const Case& c) { return c.E > 0 ? c.E : c.H * c.D; }

int64_t head_dim(const Case& c) {
  if (c.head_dim > 0) return c.head_dim == 1 ? c.D : 0;
  return c.H > 0 && width(c) % c.H == 0 ? width(c) / c.H : 0;
}

MultiHeadAttention make_multi_head(const Case& c) {
  MultiHeadAttentionOptions options(width(c), c.H);
  set_head_options(c, options);
  if (c.key_dim > 0) options.key_emb_dim(c.key_dim);
  if (c.value_dim > 0) options.value_emb_dim(c.value_dim);
  if (c.Dv != c.D) options.value_head_dim(c.Dv);
  return prepared(c, MultiHeadAttention(options));
}

GroupQueryAttention make_group_query(const Case& c) {
  GroupQueryAttentionOptions options(width(c), c.H, c.G);
  set_head_options(c, options);
  return prepared(c, GroupQueryAttention(options));
}

bool has_valid_module_options(const Case& c) {
  AttendOptions options;
  set_score_options(c, options);
  const auto D = head_dim(c);
  const bool rotates = c.rotary == 0 || (c.rotary <= 3 && (c.rotary == 3 ? D >= 2 : D % 2 == 0));
  const bool grouped = c.target == kMultiHead || (c.G >= 1 && c.H % c.G == 0);
  const bool values = c.target != kMultiHead || c.Dv == c.D || c.Dv >= 1;
  return width(c) >= 1 && c.H >= 1 && D >= 1 && grouped && values && are_in_range(options) &&
         rotates && c.qk_norm <= 4;
}

bool is_input(const at::Tensor& input, const torch::nn::Linear& linear) {
  return is_dense(input, 3) && input.scalar_type() == linear->weight.scalar_type() &&
         input.size(2) == linear->weight.size(1);
}

bool can_compute(const Case& c, const at::Tensor& input) {
  AttendOptions options;
  set_score_options(c, options);
  return !input.defined() || are_representable(options, input.scalar_type());
}

Heads64 heads_of(const Case& c, const Parts& parts, const Sources& sources) {
  Heads64 result{{test::split_heads(test::linear64(parts.fc_q, sources.query), c.H),
                  test::split_heads(test::linear64(parts.fc_k, sources.key), parts.groups),
                  test::split_heads(test::linear64(parts.fc_v, sources.value), parts.groups)}};
  auto &query = result.heads.query, &key = result.heads.key;
  const auto norm = [&] {
    query = normalize(c, parts.q_norm, query, result.gain);
    key = normalize(c, parts.k_norm, key, result.gain);
  };
  const bool after = c.qk_norm == 3 || c.qk_norm == 4;
  const auto last = key.size(2) - 1;
  if (c.qk_norm > 0 && !after) norm();
  if (c.rotary > 0) {
    query = rotate(c, query, c.top_left ? query.size(2) - 1 : last);
    key = rotate(c, key, last);
  }
  if (c.qk_norm > 0 && after) norm();
  return result;
}

AttendOptions call_options(const Case& c, const Parts& parts,
                           const std::optional<at::Tensor>& mask) {
  AttendOptions options;
  set_score_options(c, options);
  options.mask(mask);
  if (c.alibi > 0) options.alibi_slopes(alibi_slopes_of(c.H));
  if (c.sinks > 0) options.sinks(parts.sinks);
  return options;
}

double module_tolerance(const Case& c, at::ScalarType dtype, const Heads64& heads) {
  const auto& [query, key, value] = heads.heads;
  if (query.numel() == 0 || key.numel() == 0) return tolerance(dtype, 0.0);
  const auto largest_of = [](const at::Tensor& x) { return x.abs().max().item<double>(); };
  const auto D = static_cast<double>(query.size(3));
  const auto scale = std::abs(scale_of(c).value_or(1.0 / std::sqrt(D)));
  const auto positions = static_cast<double>(query.size(2) + key.size(2));
  const auto score = scale * D * largest_of(query) * largest_of(key);
  const auto roundoff =
      c.rotary > 0 ? std::max(test::unit_roundoff(dtype), 0x1p-24) : test::unit_roundoff(dtype);
  const auto moved = score * (heads.gain + (c.rotary > 0 ? positions : 0.0)) +
                     (c.alibi > 0 ? positions : 0.0) + (c.relative > 0 ? 1.0 : 0.0);
  const auto kept = c.training != 0 ? 1.0 / (1.0 - dropout_of(c)) : 1.0;
  return (32.0 + 4.0 * moved) * roundoff * std::max(1.0, largest_of(value)) * kept;
}

}  // namespace heed::fuzz
