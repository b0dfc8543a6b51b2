#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <heed/attend.h>

#include <algorithm>
#include <cmath>

#include "checks.h"
#include "paths/paths.h"
#include "problem.h"

namespace heed {

namespace detail {

namespace {

/// Ranks 2 and 3 to 4: [L, S] to [1, 1, L, S], [B, L, S] to [B, 1, L, S].
at::Tensor with_head_axis(const at::Tensor& scores) {
  auto result = scores;
  while (result.dim() < 4) result = result.unsqueeze(result.dim() == 2 ? 0 : 1);
  return result;
}

/// A gradient that nobody asks for must not keep a call off the fused path.
at::Tensor canonical_bias(const std::optional<at::Tensor>& bias) {
  if (!bias) return {};
  return with_head_axis(at::GradMode::is_enabled() ? *bias : bias->detach());
}

at::Tensor canonical_mask(const std::optional<at::Tensor>& mask) {
  if (!mask) return {};
  return with_head_axis(mask->scalar_type() == at::kBool ? *mask : mask->ne(0));
}

}  // namespace

bool Problem::needs_grad() const {
  return at::GradMode::is_enabled() &&
         (query.requires_grad() || key.requires_grad() || value.requires_grad() ||
          (bias.defined() && bias.requires_grad()));
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
          options.scale().value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))))};
}

namespace {

/// Inference with so few queries that reading keys and values takes longer than their products.
bool suits_decode(const Problem& problem) {
  // Up to how many rows a group the kernel was measured to be faster; more where LibTorch's reads
  // long keys once a query head.
  const bool many_keys = problem.key_length() >= 1024 && problem.heads() > problem.groups();
  const int64_t few_rows = many_keys ? 16 : 8;
  const auto rows = problem.heads() / problem.groups() * problem.query_length();
  return rows <= few_rows && problem.dropout == 0.0 && !problem.needs_grad() &&
         problem.query.scalar_type() != at::kDouble && problem.key.stride(3) == 1 &&
         problem.value.stride(3) == 1;
}

}  // namespace

AttendPath choose_path(const Problem& problem) {
  if (problem.is_empty()) return AttendPath::math;
  if (!problem.query.is_cpu()) return AttendPath::fused;
  if (suits_decode(problem)) return AttendPath::decode;
  // What LibTorch's fused CPU kernel lacks.
  if (problem.dropout > 0.0) return AttendPath::math;
  const bool bias_grad = problem.bias.defined() && problem.bias.requires_grad();
  return bias_grad ? AttendPath::math : AttendPath::fused;
}

}  // namespace detail

std::string_view to_string(AttendPath path) {
  switch (path) {
    case AttendPath::decode:
      return "decode";
    case AttendPath::fused:
      return "fused";
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
    case AttendPath::math:
      return std::get<0>(detail::attend_math(problem));
  }
  TORCH_INTERNAL_ASSERT(false, "unknown AttendPath");
}

std::tuple<at::Tensor, at::Tensor> attend_with_weights(const at::Tensor& query,
                                                       const at::Tensor& key,
                                                       const at::Tensor& value,
                                                       const AttendOptions& options) {
  return detail::attend_math(
      detail::make_problem("attend_with_weights", query, key, value, options));
}

AttendPath attend_path(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const AttendOptions& options) {
  return detail::choose_path(detail::make_problem("attend_path", query, key, value, options));
}

}  // namespace heed
