// SPDX-License-Identifier: BSD-3-Clause
#include "attend_verdict.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "support/expect.h"

namespace heed::fuzz {

bool is_dense(const at::Tensor& tensor, int64_t rank) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.is_cpu() &&
         tensor.dim() == rank;
}

bool has_attention_dtype(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 ||
         dtype == at::kHalf;
}

bool are_in_range(const AttendOptions& options) {
  const auto scale = options.scale(), softcap = options.softcap();
  const auto left = options.left_window(), right = options.right_window();
  if (options.window() && (left || right)) return false;
  return options.window().value_or(1) >= 1 && left.value_or(0) >= 0 && right.value_or(0) >= 0 &&
         options.dropout() >= 0.0 && options.dropout() < 1.0 &&
         std::isfinite(scale.value_or(1.0)) && scale.value_or(1.0) != 0.0 &&
         std::isfinite(softcap.value_or(1.0)) && softcap.value_or(1.0) > 0.0;
}

bool are_representable(const AttendOptions& options, at::ScalarType dtype) {
  const double scale = options.scale().value_or(1.0), softcap = options.softcap().value_or(1.0);
  const double most = dtype == at::kDouble ? 1e150 : 1e18;
  return (dtype == at::kDouble || std::isfinite(static_cast<float>(scale))) && softcap <= most &&
         softcap >= 1.0 / most;
}

bool fits_scores(const at::Tensor& scores, int64_t B, int64_t H, int64_t L, int64_t S,
                 MaskBatch order) {
  const auto size_is = [&](int64_t dim, int64_t size) { return scores.size(dim) == size; };
  const auto may_be_one = [&](int64_t dim, int64_t size) {
    return size_is(dim, size) || size_is(dim, 1);
  };
  const auto fits_batch = [&] {
    const auto n = scores.size(0);
    return order == MaskBatch::each ? may_be_one(0, B) : n >= 1 && B % n == 0;
  };
  if (is_dense(scores, 2)) return size_is(0, L) && size_is(1, S);
  if (is_dense(scores, 3)) return fits_batch() && may_be_one(1, L) && size_is(2, S);
  return is_dense(scores, 4) && fits_batch() && may_be_one(1, H) && may_be_one(2, L) &&
         size_is(3, S);
}

bool is_mask(const at::Tensor& mask, int64_t B, int64_t H, int64_t L, int64_t S, MaskBatch order) {
  return fits_scores(mask, B, H, L, S, order) &&
         at::isIntegralType(mask.scalar_type(), /*includeBool=*/true);
}

namespace {

bool is_head_vector(const std::optional<at::Tensor>& tensor, int64_t heads) {
  return !tensor ||
         (is_dense(*tensor, 1) && has_attention_dtype(*tensor) && tensor->size(0) == heads);
}

/// Whether tensors of `rank` with heads in dim 1 fulfil what attend and attend_varlen ask.
bool agree(const Call& call, int64_t rank) {
  const auto &query = call.query, &key = call.key, &value = call.value;
  for (const auto* tensor : {&query, &key, &value}) {
    if (!is_dense(*tensor, rank) || !has_attention_dtype(*tensor)) return false;
    if (tensor->scalar_type() != query.scalar_type()) return false;
  }
  const bool same_keys = key.sizes().slice(0, rank - 1) == value.sizes().slice(0, rank - 1);
  const bool same_batch = rank == 3 || query.size(0) == key.size(0);
  const auto H = query.size(1), G = key.size(1);
  return same_keys && same_batch && query.size(-1) == key.size(-1) && query.size(-1) >= 1 &&
         G >= 1 && H >= 1 && H % G == 0;
}

/// Whether numbers are [B or none, length].
bool fits_tokens(const Call& call, const at::Tensor& numbers, int64_t length) {
  return numbers.size(-1) == length &&
         (numbers.dim() == 1 || numbers.size(0) == call.query.size(0)) &&
         numbers.device() == call.query.device();
}

bool fits_documents(const Call& call) {
  const auto &documents = call.options.documents(), &keys = call.options.key_documents();
  return !documents || (fits_tokens(call, *documents, call.query.size(2)) &&
                        fits_tokens(call, *keys, call.key.size(2)));
}

bool are_lengths(const Call& call, const std::optional<at::Tensor>& lengths, int64_t most,
                 bool reads_numbers) {
  if (!lengths) return true;
  if (lengths->scalar_type() != at::kLong || lengths->size(0) != call.query.size(0)) return false;
  return !reads_numbers || lengths->ge(0).logical_and(lengths->le(most)).all().item<bool>();
}

/// Whether each query that exists is at a position of the keys.
bool have_positions(const Call& call) {
  const auto& options = call.options;
  const auto L = call.query.size(2), S = call.key.size(2);
  for (int64_t b = 0; b < call.query.size(0); ++b) {
    const auto of = [b](const std::optional<at::Tensor>& lengths, int64_t most) {
      return lengths ? (*lengths)[b].item<int64_t>() : most;
    };
    const auto queries = of(options.query_lengths(), L), keys = of(options.key_lengths(), S);
    const auto first = options.top_left() ? 0 : keys - queries;
    if (queries > 0 && (first < 0 || first + queries > S)) return false;
  }
  return true;
}

bool fits_reach(const Call& call, bool reads_numbers) {
  const auto& options = call.options;
  const auto L = call.query.size(2), S = call.key.size(2);
  if (!are_lengths(call, options.query_lengths(), L, reads_numbers)) return false;
  if (!are_lengths(call, options.key_lengths(), S, reads_numbers)) return false;
  if (const auto& global = options.global_tokens()) {
    if (global->scalar_type() != at::kBool || !fits_tokens(call, *global, S)) return false;
  }
  const auto& positions = options.relative_positions();
  if (!positions) return true;
  return options.relative_bias() && positions->scalar_type() == at::kLong &&
         fits_tokens(call, *positions, S) && (!reads_numbers || have_positions(call));
}

/// Whether an option is given that speaks of single queries or keys of a batch.
bool has_tokens(const AttendOptions& options) {
  return options.query_lengths() || options.key_lengths() || options.global_tokens() ||
         options.relative_positions();
}

bool is_relative_bias(const std::optional<at::Tensor>& bias, int64_t heads) {
  return !bias || (is_dense(*bias, 2) && has_attention_dtype(*bias) && bias->size(0) == heads &&
                   bias->size(1) % 2 == 1);
}

/// Slopes are [H], or [B, H] if the query is a batch.
bool are_slopes(const std::optional<at::Tensor>& slopes, const at::Tensor& query) {
  if (!slopes || !slopes->defined() || slopes->dim() != 2 || query.dim() != 4) {
    return is_head_vector(slopes, query.size(1));
  }
  return is_dense(*slopes, 2) && has_attention_dtype(*slopes) &&
         slopes->sizes() == query.sizes().slice(0, 2);
}

}  // namespace

bool are_valid_options(const AttendOptions& options, const at::Tensor& query) {
  const auto heads = query.size(1);
  return are_in_range(options) && are_representable(options, query.scalar_type()) &&
         are_slopes(options.alibi_slopes(), query) && is_head_vector(options.sinks(), heads) &&
         is_relative_bias(options.relative_bias(), heads);
}

bool are_offsets(const at::Tensor& offsets, int64_t total) {
  if (!is_dense(offsets, 1) || offsets.size(0) < 1) return false;
  if (offsets.scalar_type() != at::kLong && offsets.scalar_type() != at::kInt) return false;
  return offsets[0].item<int64_t>() == 0 && offsets[-1].item<int64_t>() == total &&
         offsets.diff().ge(0).all().item<bool>();
}

bool is_valid(const Call& call, bool reads_numbers) {
  if (!agree(call, 4) || !are_valid_options(call.options, call.query)) return false;
  const auto sizes = call.query.sizes();
  const auto S = call.key.size(2);
  const auto &mask = call.options.mask(), &bias = call.options.bias();
  const auto order = call.options.mask_batch();
  if (!fits_documents(call) || !fits_reach(call, reads_numbers)) return false;
  if (mask && !is_mask(*mask, sizes[0], sizes[1], sizes[2], S, order)) return false;
  return !bias ||
         (fits_scores(*bias, sizes[0], sizes[1], sizes[2], S, order) && has_attention_dtype(*bias));
}

bool is_valid_varlen(const Call& call) {
  return agree(call, 3) && are_valid_options(call.options, call.query) && !call.options.mask() &&
         !call.options.bias() && !has_tokens(call.options) &&
         are_offsets(call.query_offsets, call.query.size(0)) &&
         are_offsets(call.key_offsets, call.key.size(0)) &&
         call.query_offsets.size(0) == call.key_offsets.size(0);
}

double tolerance(at::ScalarType dtype, double largest_score) {
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  const auto scores = (64.0 + largest_score) * test::unit_roundoff(half ? at::kFloat : dtype);
  return std::min(scores + (half ? 4.0 * test::unit_roundoff(dtype) : 0.0), 2.0);
}

double gradient_tolerance(double forward, const at::Tensor& expected) {
  const auto largest = expected.numel() == 0 ? 0.0 : expected.abs().max().item<double>();
  return 16.0 * forward * std::max(1.0, largest);
}

double largest_score(const Call& call, int64_t distance) {
  const auto& options = call.options;
  const auto D = static_cast<double>(call.query.size(-1));
  auto largest = std::abs(options.scale().value_or(1.0 / std::sqrt(D))) * D;
  for (const auto& bias : {options.bias(), options.relative_bias()}) {
    if (!bias || bias->numel() == 0) continue;
    const auto scores = bias->detach().to(at::kDouble);
    largest += at::where(scores.isfinite(), scores, 0.0).abs().max().item<double>();
  }
  const auto& slopes = options.alibi_slopes();
  if (!slopes || slopes->numel() == 0) return largest;
  const auto slope = slopes->detach().to(at::kDouble).abs().max().item<double>();
  return largest + slope * static_cast<double>(distance);
}

}  // namespace heed::fuzz
