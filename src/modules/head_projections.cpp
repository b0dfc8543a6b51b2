#include "modules/head_projections.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <vector>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "core/offsets.h"
#include "modules/caches.h"
#include "modules/module_checks.h"
#include "modules/nested.h"

namespace heed::detail {

namespace {

/// Query i stands at position i + S - L, as in `attend`; the first key at 0.
at::Tensor positions(int64_t first, int64_t count, const at::Tensor& like) {
  return at::arange(first, first + count, at::device(like.device()).dtype(at::kLong));
}

/// The positions of each sequence's tokens, one sequence after another: the last token of sequence
/// n stands at key_lengths[n] - 1.
at::Tensor packed_positions(const at::Tensor& offsets, const std::vector<int64_t>& key_lengths,
                            const at::Tensor& like) {
  const auto own = lengths(offsets);
  std::vector<at::Tensor> parts;
  parts.reserve(own.size());
  for (size_t n = 0; n < own.size(); ++n) {
    parts.push_back(positions(key_lengths[n] - own[n], own[n], like));
  }
  return at::cat(parts);
}

/// Each head over its D elements, in the memory order of the projection.
at::Tensor normalise(const Norm& norm, const at::Tensor& heads) {
  return norm.ptr()->forward(heads.transpose(1, 2)).transpose(1, 2);
}

/// Whether what was passed as a mask has the shape and dtype of tokens of the query's size.
bool is_like_memory(const at::Tensor& mask, const at::Tensor& query, const at::Tensor& key) {
  return mask.defined() && at::isFloatingType(mask.scalar_type()) && mask.dim() == 3 &&
         mask.size(2) == query.size(2) && mask.size(2) != key.size(1);
}

bool is_nested(const at::Tensor& tensor) { return tensor.defined() && tensor.is_nested(); }

}  // namespace

void HeadTransforms::apply(Heads& heads, const RotaryAngles& query_angles,
                           const RotaryAngles& key_angles) const {
  const auto norm = [&] {
    if (!query_norm) return;
    heads.query = normalise(query_norm, heads.query);
    heads.key = normalise(key_norm, heads.key);
  };
  if (!norm_after_rotary) norm();
  if (rotary) {
    heads.query = rotary->rotate(heads.query, query_angles);
    heads.key = rotary->rotate(heads.key, key_angles);
  }
  if (norm_after_rotary) norm();
}

void HeadProjections::check(const at::Tensor& query_input, const at::Tensor& key_input,
                            const at::Tensor& value_input) const {
  const bool self = query_input.is_same(key_input) && key_input.is_same(value_input);
  check_input(function, self ? "x" : "query", query_input, query->weight);
  check_input(function, self ? "x" : "key", key_input, key->weight, key_dim_name);
  check_input(function, self ? "x" : "value", value_input, value->weight, value_dim_name);
  check_sources(function, query_input, key_input, value_input);
}

void HeadProjections::check_scores(const at::Tensor& query_input, const at::Tensor& key_input,
                                   const AttendOptions& options) const {
  const ScoreSizes sizes{query_input, key_input,           query_input.size(0),
                         num_heads,   query_input.size(1), key_input.size(1)};
  if (const auto& mask = options.mask()) {
    HEED_CHECK(!is_like_memory(*mask, query_input, key_input),
               "{}: mask {} must not be a memory: cross-attention takes query, key and value",
               function, shape(*mask));
    check_mask(function, "mask", *mask, sizes);
  }
  if (options.bias()) check_bias(function, *options.bias(), sizes);
}

Heads HeadProjections::project_heads(const at::Tensor& query_input, const at::Tensor& key_input,
                                     const at::Tensor& value_input) const {
  const auto groups = key->weight.size(0) / (query->weight.size(0) / num_heads);
  return {split_heads(project(query, query_input), num_heads),
          split_heads(project(key, key_input), groups),
          split_heads(project(value, value_input), groups)};
}

Heads HeadProjections::heads(const at::Tensor& query_input, const at::Tensor& key_input,
                             const at::Tensor& value_input, const AttendOptions& options) const {
  check(query_input, key_input, value_input);
  check_scores(query_input, key_input, options);
  auto heads = project_heads(query_input, key_input, value_input);
  RotaryAngles query_angles, key_angles;
  if (const auto& rotary = transforms.rotary) {
    const auto length = heads.query.size(2), key_length = heads.key.size(2);
    const auto like = heads.query.options();
    key_angles = rotary->angles(0, key_length, like);
    query_angles =
        length == key_length ? key_angles : rotary->angles(key_length - length, length, like);
  }
  transforms.apply(heads, query_angles, key_angles);
  return heads;
}

at::Tensor HeadProjections::forward(const at::Tensor& query_input, const at::Tensor& key_input,
                                    const at::Tensor& value_input,
                                    const AttendOptions& options) const {
  if (is_nested(query_input)) return forward_nested(query_input, key_input, value_input, options);
  const auto [query_heads, key_heads, value_heads] =
      heads(query_input, key_input, value_input, options);
  return project(output, merge_heads(attend(query_heads, key_heads, value_heads, options)));
}

std::tuple<at::Tensor, at::Tensor> HeadProjections::forward_with_weights(
    const at::Tensor& query_input, const at::Tensor& key_input, const at::Tensor& value_input,
    const AttendOptions& options) const {
  HEED_CHECK(!is_nested(query_input),
             "{}: query must not be nested where weights are asked for: their shapes would differ",
             function);
  const auto [query_heads, key_heads, value_heads] =
      heads(query_input, key_input, value_input, options);
  auto [attended, weights] = attend_with_weights(query_heads, key_heads, value_heads, options);
  return {project(output, merge_heads(attended)), weights};
}

at::Tensor HeadProjections::forward_cached(const at::Tensor& x, KVCache& cache,
                                           at::IntArrayRef counts,
                                           const AttendOptions& options) const {
  check_cache(function, cache, options);
  check(x, x, x);
  auto heads = project_heads(x, x, x);
  RotaryAngles angles;
  if (const auto& rotary = transforms.rotary) {
    angles = next_angles(rotary, cache, x.size(1), heads.query.options());
  }
  transforms.apply(heads, angles, angles);
  return project(output, merge_heads(attend_cached(heads, cache, counts, options)));
}

at::Tensor HeadProjections::forward_nested(const at::Tensor& query_input,
                                           const at::Tensor& key_input,
                                           const at::Tensor& value_input,
                                           const AttendOptions& options) const {
  const auto queries = pack(function, "query", query_input);
  const auto keys = key_input.is_same(query_input) ? queries : pack(function, "key", key_input);
  const auto values = value_input.is_same(key_input) ? keys : pack(function, "value", value_input);
  const auto key_lengths = lengths(keys.offsets), value_lengths = lengths(values.offsets);
  HEED_CHECK(key_lengths == value_lengths,
             "{}: nested value lengths ({}) must equal nested key lengths ({})", function,
             c10::str(at::IntArrayRef(value_lengths)), c10::str(at::IntArrayRef(key_lengths)));
  check(queries.rows, keys.rows, values.rows);
  auto heads = project_heads(queries.rows, keys.rows, values.rows);  // [1, H, T, D]
  RotaryAngles query_angles, key_angles;
  if (const auto& rotary = transforms.rotary) {
    const auto angles = [&](const at::Tensor& rows, const at::Tensor& offsets) {
      return rotary->angles(packed_positions(offsets, key_lengths, rows), rows.scalar_type());
    };
    query_angles = angles(heads.query, queries.offsets);
    key_angles = angles(heads.key, keys.offsets);
  }
  transforms.apply(heads, query_angles, key_angles);
  const auto rows = [](const at::Tensor& heads) { return heads.squeeze(0).transpose(0, 1); };
  const auto attended = attend_varlen(rows(heads.query), rows(heads.key), rows(heads.value),
                                      queries.offsets, keys.offsets, options);  // [T, H, Dv]
  return unpack({project(output, attended.flatten(1).unsqueeze(0)), queries.offsets});
}

}  // namespace heed::detail
