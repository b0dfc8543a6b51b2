#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <heed/attend.h>

#include <algorithm>
#include <cmath>

#include "attend/paths/paths.h"
#include "core/checks.h"
#include "core/dtypes.h"
#include "core/forced_path.h"
#include "core/problem.h"
#include "cpu/block/block.h"
#include "cpu/capability.h"

namespace heed {

namespace detail {

namespace {

/// Ranks 2 and 3 to 4: [L, S] to [1, 1, L, S], [B, L, S] to [B, 1, L, S].
at::Tensor with_head_axis(const at::Tensor& scores) {
  auto result = scores;
  while (result.dim() < 4) result = result.unsqueeze(result.dim() == 2 ? 0 : 1);
  return result;
}

/// A gradient that nobody asks for must not keep a call off a faster path.
at::Tensor without_unused_grad(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() ? tensor : tensor.detach();
}

at::Tensor canonical_bias(const std::optional<at::Tensor>& bias) {
  return bias ? with_head_axis(without_unused_grad(*bias)) : at::Tensor();
}

at::Tensor canonical_mask(const std::optional<at::Tensor>& mask) {
  if (!mask) return {};
  return with_head_axis(mask->scalar_type() == at::kBool ? *mask : mask->ne(0));
}

at::Tensor canonical_slopes(const std::optional<at::Tensor>& slopes, at::ScalarType dtype) {
  if (!slopes) return {};
  return slopes->to(compute_dtype(dtype)).contiguous();
}

thread_local std::optional<AttendPath> forced_path;  // see ScopedPath

}  // namespace

ScopedPath::ScopedPath(AttendPath path) : previous_(forced_path) { forced_path = path; }

ScopedPath::~ScopedPath() { forced_path = previous_; }

bool Problem::needs_grad() const {
  return at::GradMode::is_enabled() &&
         (query.requires_grad() || key.requires_grad() || value.requires_grad() ||
          (bias.defined() && bias.requires_grad()) || (sinks.defined() && sinks.requires_grad()));
}

KeyRange Problem::visible_keys(int64_t query_index) const {
  const auto at = position(query_index);
  KeyRange range{0, key_length()};
  if (window) range = {at - *window + 1, at + *window};
  if (causal) range.last = at + 1;
  return {std::clamp<int64_t>(range.first, 0, key_length()),
          std::clamp<int64_t>(range.last, 0, key_length())};
}

Problem make_problem(const char* function, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const AttendOptions& options) {
  check_attend(function, query, key, value, options);
  const auto length = query.size(2);
  const auto key_length = key.size(2);
  auto window = options.window();
  if (window && *window >= std::max(length, key_length)) window.reset();
  return {query,
          key,
          value,
          canonical_mask(options.mask()),
          canonical_bias(options.bias()),
          options.causal() && length > 1,  // a lone query stands at the last key: it sees all
          window,
          options.dropout(),
          options.scale().value_or(1.0 / std::sqrt(static_cast<double>(query.size(3)))),
          options.softcap().value_or(0.0),
          canonical_slopes(options.alibi_slopes(), query.scalar_type()),
          options.sinks() ? without_unused_grad(*options.sinks()) : at::Tensor()};
}

namespace {

/// Query rows a key/value head up to which decoding was measured to be faster than blocks.
int64_t few_rows(const Problem& problem) {
  if (problem.key_length() < 1024) return 8;
  // Blocks of few rows keep one thread busy, where decoding splits the keys.
  if (problem.batch() * problem.groups() == 1) return 32;
  return multiplies_pairs(problem.query.scalar_type()) ? 8 : 16;
}

/// Inference with so few queries that reading keys and values takes longer than their products.
bool suits_decode(const Problem& problem) {
  const auto rows = problem.heads() / problem.groups() * problem.query_length();
  return rows <= few_rows(problem) && problem.dropout == 0.0 && !problem.needs_grad() &&
         problem.query.scalar_type() != at::kDouble && problem.key.stride(3) == 1 &&
         problem.value.stride(3) == 1;
}

/// What no fused kernel of LibTorch's can be given. Those for CUDA take a bias in the query's dtype
/// alone, to which ALiBi's must not be rounded.
bool lacks_fused(const Problem& problem) {
  const auto dtype = problem.query.scalar_type();
  const bool would_round = problem.alibi_slopes.defined() && !problem.query.is_cpu() &&
                           (dtype == at::kHalf || dtype == at::kBFloat16);
  return problem.softcap > 0.0 || problem.sinks.defined() || would_round;
}

/// What LibTorch's fused CPU kernel lacks, or does only with an L x S mask or padded copies.
bool exceeds_fused(const Problem& problem) {
  const bool needs_mask = problem.causal && (problem.query_length() != problem.key_length() ||
                                             problem.mask.defined() || problem.bias.defined());
  return lacks_fused(problem) || problem.alibi_slopes.defined() || needs_mask || problem.window ||
         problem.dropout > 0.0 || (problem.bias.defined() && problem.bias.requires_grad()) ||
         problem.head_dim() != problem.value_head_dim();
}

/// Rows so many and so wide that nearly all is products, at which a fast BLAS is ahead.
bool suits_blas(const Problem& problem) {
  return has_fast_blas() && problem.head_dim() >= 512 && problem.query_length() >= 512;
}

/// Where our kernel was measured to be faster than LibTorch's at the same work.
bool outruns_fused(const Problem& problem) {
  const auto capability = cpu_capability();
  // LibTorch's kernel is behind there on every instruction set.
  const bool causal_or_training = problem.causal || problem.needs_grad();
  switch (problem.query.scalar_type()) {
    case at::kDouble:
      return causal_or_training || capability >= CpuCapability::avx2;
    case at::kFloat:
      return causal_or_training || (capability >= CpuCapability::avx512 && !suits_blas(problem));
    case at::kHalf:
      return capability >= CpuCapability::avx2;
    case at::kBFloat16:
      if (problem.needs_grad()) return capability >= CpuCapability::avx2;
      return capability >= CpuCapability::avx512 && !has_bfloat16_tiles();
    default:
      return false;
  }
}

}  // namespace

AttendPath choose_path(const Problem& problem) {
  if (problem.is_empty()) return AttendPath::math;
  if (!problem.query.is_cpu()) {
    return lacks_fused(problem) ? AttendPath::math : AttendPath::fused;
  }
  if (forced_path) return *forced_path;
  if (suits_decode(problem)) return AttendPath::decode;
  const bool block = exceeds_fused(problem) || outruns_fused(problem);
  return block ? AttendPath::block : AttendPath::fused;
}

namespace {

/// The same where weights are asked for: block or math.
AttendPath choose_path_with_weights(const Problem& problem) {
  constexpr int64_t kEnoughQueries = 32;  // for fewer, keys are packed too often
  const bool possible = !problem.is_empty() && problem.query.is_cpu() && !problem.needs_grad() &&
                        problem.dropout == 0.0;
  const bool wanted = forced_path
                          ? *forced_path == AttendPath::block
                          : problem.query_length() >= kEnoughQueries && outruns_fused(problem);
  return possible && wanted ? AttendPath::block : AttendPath::math;
}

}  // namespace

}  // namespace detail

std::string_view to_string(AttendPath path) {
  switch (path) {
    case AttendPath::decode:
      return "decode";
    case AttendPath::fused:
      return "fused";
    case AttendPath::block:
      return "block";
    case AttendPath::math:
      return "math";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown AttendPath");
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const AttendOptions& options) {
  const auto problem = detail::make_problem("attend", query, key, value, options);
  switch (detail::choose_path(problem)) {
    case AttendPath::decode:
      return detail::attend_decode(problem);
    case AttendPath::fused:
      return detail::attend_fused(problem);
    case AttendPath::block:
      return detail::attend_block(problem);
    case AttendPath::math:
      return std::get<0>(detail::attend_math(problem));
  }
  TORCH_INTERNAL_ASSERT(false, "unknown AttendPath");
}

std::tuple<at::Tensor, at::Tensor> attend_with_weights(const at::Tensor& query,
                                                       const at::Tensor& key,
                                                       const at::Tensor& value,
                                                       const AttendOptions& options) {
  const auto problem = detail::make_problem("attend_with_weights", query, key, value, options);
  return detail::choose_path_with_weights(problem) == AttendPath::block
             ? detail::attend_block_with_weights(problem)
             : detail::attend_math(problem);
}

AttendPath attend_path(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const AttendOptions& options) {
  return detail::choose_path(detail::make_problem("attend_path", query, key, value, options));
}

}  // namespace heed
