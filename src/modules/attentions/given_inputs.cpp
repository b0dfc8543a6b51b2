// SPDX-License-Identifier: BSD-3-Clause
#include "modules/attentions/given_inputs.h"

#include <ATen/ops/_unique.h>
#include <ATen/ops/scatter_reduce.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "core/attend_checks.h"
#include "core/checks.h"

namespace heed::detail {

namespace {

void check_given_positions(const char* function, const at::Tensor& positions, const at::Tensor& x) {
  check_defined(function, "positions", positions);
  check_integer(function, "positions", positions);
  check_defined(function, "x", x);
  check_rank(function, "x", x, 3);
  const auto rank = positions.dim(), batch = x.size(0), length = x.size(1);
  const bool fits = rank == 1   ? positions.size(0) == length
                    : rank == 2 ? positions.sizes() == at::IntArrayRef({batch, length})
                                : rank == 3 && positions.size(1) == length &&
                                      (positions.size(0) == batch || positions.size(0) == 1);
  HEED_CHECK(fits, "{}: positions {} must be [L], [B, L] or [B or 1, L, axes]; x {}", function,
             shape(positions), shape(x));
  check_same_device(function, "positions", positions, "x", x);
}

/// For each token, the largest position of its document + 1: int64 [B or 1, L].
at::Tensor document_lengths(const at::Tensor& documents, const at::Tensor& positions) {
  const auto [ids, numbers] = at::_unique(documents, /*sorted=*/false, /*return_inverse=*/true);
  const auto as_rows = [](const at::Tensor& tensor) {
    return tensor.dim() == 1 ? tensor.unsqueeze(0) : tensor;
  };
  const auto own = as_rows(numbers), ends = as_rows(positions).to(at::kLong) + 1;
  const at::IntArrayRef rows = own.size(0) > ends.size(0) ? own.sizes() : ends.sizes();
  const auto index = own.expand(rows);
  return at::zeros({rows[0], ids.size(0)}, ends.options())
      .scatter_reduce(1, index, ends.expand(rows), "amax")
      .gather(1, index);
}

}  // namespace

AttendOptions given_options(const AttentionInputs& inputs) {
  return AttendOptions()
      .mask(inputs.mask())
      .mask_batch(inputs.mask_batch())
      .bias(inputs.bias())
      .documents(inputs.documents())
      .query_lengths(inputs.query_lengths())
      .key_lengths(inputs.key_lengths())
      .global_tokens(inputs.global_tokens())
      .relative_bias(inputs.relative_bias())
      .relative_positions(inputs.relative_positions());
}

void check_cached_inputs(const char* function, const AttentionInputs& inputs) {
  visit_tensors(inputs, [&](std::string_view name, const at::Tensor& /*tensor*/) {
    HEED_CHECK(name == "rotary_angles" || name == "relative_bias",
               "{}: {} must be absent with a cache", function, name);
  });
}

std::optional<RotaryAngles> given_angles(const char* function, const AttentionInputs& inputs,
                                         const RotaryEmbedding& rotary, const at::Tensor& x,
                                         const SharedSequence* sequence) {
  const auto& positions = inputs.positions();
  if (positions) check_given_positions(function, *positions, x);
  if (const auto& angles = inputs.rotary_angles()) {
    HEED_CHECK(rotary, "{}: rotary_angles must be absent: there is no rotary embedding", function);
    return angles;
  }
  if (!positions || !rotary) return std::nullopt;
  const auto dtype = x.scalar_type();
  if (!rotary->depends_on_length()) {
    const bool has_axes = !rotary->options.sections().empty();
    return rotary->angles(has_axes && positions->dim() == 2 ? positions->unsqueeze(-1) : *positions,
                          dtype);
  }
  HEED_CHECK(sequence == nullptr,
             "{}: positions must be absent where processes share the sequence and its length "
             "changes the rotary frequencies: pass rotary_angles",
             function);
  const auto& documents = inputs.documents();
  if (!documents) return rotary->angles(*positions, dtype);
  check_documents(function, AttendOptions().documents(documents),
                  {x, x, x.size(0), /*heads=*/1, x.size(1), x.size(1)});
  return rotary->angles(*positions, document_lengths(*documents, *positions), dtype);
}

}  // namespace heed::detail
