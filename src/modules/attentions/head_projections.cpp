// SPDX-License-Identifier: BSD-3-Clause
#include "modules/attentions/head_projections.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <heed/sharded_layers.h>

#include <vector>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "core/offsets.h"
#include "core/to_device.h"
#include "modules/attentions/given_inputs.h"
#include "modules/attentions/nested.h"
#include "modules/module_checks.h"

namespace heed::detail {

namespace {

/// The position of the first of `length` queries, as in `attend`. The first key stands at 0.
int64_t first_position(const AttendOptions& options, int64_t length, int64_t key_length) {
  return options.top_left() ? 0 : key_length - length;
}

/// The positions [first, first + count).
at::Tensor positions(int64_t first, int64_t count, const at::Tensor& like) {
  return at::arange(first, first + count, at::device(like.device()).dtype(at::kLong));
}

/// The angles of the queries of packed sequences, of which sequence n has key_lengths[n] keys.
RotaryAngles packed_angles(const RotaryEmbedding& rotary, const at::Tensor& offsets,
                           const std::vector<int64_t>& key_lengths, const AttendOptions& options,
                           const at::Tensor& like) {
  const auto own = lengths(offsets);
  std::vector<at::Tensor> parts;
  parts.reserve(own.size());
  std::vector<int64_t> of_tokens;  // key_lengths[n] for each token of sequence n
  for (size_t n = 0; n < own.size(); ++n) {
    parts.push_back(positions(first_position(options, own[n], key_lengths[n]), own[n], like));
    if (rotary->depends_on_length()) of_tokens.insert(of_tokens.end(), own[n], key_lengths[n]);
  }
  const auto all = at::cat(parts);
  return rotary->depends_on_length()
             ? rotary->angles(all, to_device(of_tokens, all.device()), like.scalar_type())
             : rotary->angles(all, like.scalar_type());
}

/// Normalizes each head over its D elements, or all heads together if the norm has size H * D.
/// Keeps the memory order of the projection.
at::Tensor normalize(const Norm& norm, const at::Tensor& heads) {
  const auto by_token = heads.transpose(1, 2);  // [B, L, H, D]
  if (norm->options.dim() == heads.size(3)) return norm.ptr()->forward(by_token).transpose(1, 2);
  return split_heads(norm.ptr()->forward(merge_heads(heads)), heads.size(1));
}

/// Whether a mask has the dtype and shape of a memory [B, S, E], which was probably passed by
/// mistake.
bool is_like_memory(const at::Tensor& mask, const at::Tensor& query, int64_t key_length) {
  return mask.defined() && at::isFloatingType(mask.scalar_type()) && mask.dim() == 3 &&
         mask.size(2) == query.size(2) && mask.size(2) != key_length;
}

bool is_nested(const at::Tensor& tensor) { return tensor.defined() && tensor.is_nested(); }

}  // namespace

at::Tensor HeadTransforms::apply(at::Tensor heads, const Norm& norm,
                                 const RotaryAngles& angles) const {
  if (norm && !norm_after_rotary) heads = normalize(norm, heads);
  if (rotary) heads = rotary->rotate(heads, angles);
  return norm && norm_after_rotary ? normalize(norm, heads) : heads;
}

at::Tensor HeadTransforms::of_query(const at::Tensor& heads, const RotaryAngles& angles) const {
  return apply(heads, query_norm, angles);
}

at::Tensor HeadTransforms::of_key(const at::Tensor& heads, const RotaryAngles& angles) const {
  return apply(heads, key_norm, angles);
}

void HeadProjections::check(const Sources& inputs) const {
  const bool self = inputs.is_self();
  check_input(function, self ? "x" : "query", inputs.query, query->weight);
  check_input(function, self ? "x" : "key", inputs.key, key->weight, key_dim_name);
  check_input(function, self ? "x" : "value", inputs.value, value->weight, value_dim_name);
  check_sources(function, inputs.query, inputs.key, inputs.value);
}

void HeadProjections::check_memory(const at::Tensor& query_input, const ProjectedMemory& memory,
                                   int64_t batch) const {
  const auto check = [&](const char* name, const at::Tensor& tensor, int64_t dim) {
    check_defined(function, name, tensor);
    check_same_device(function, name, tensor, "query", query_input);
    HEED_CHECK(tensor.dim() == 4 && tensor.size(0) == batch && tensor.size(1) == sizes.groups &&
                   tensor.size(3) == dim,
               "{}: {} {} must be [{}, {}, S, {}], as project_memory makes it", function, name,
               shape(tensor), batch, sizes.groups, dim);
  };
  check("memory key", memory.key, sizes.head_dim);
  check("memory value", memory.value, sizes.value_head_dim);
  check_same_dim(function, "memory value", memory.value, "memory key", memory.key, 2);
  check_same_dtype(function, "memory value", memory.value, "memory key", memory.key);
}

void HeadProjections::check_scores(const at::Tensor& query_input, const at::Tensor& key,
                                   int64_t key_length, const AttendOptions& options) const {
  const ScoreSizes scores{query_input,         key,        query_input.size(0), whole_heads(),
                          query_input.size(1), key_length, options.mask_batch()};
  if (const auto& mask = options.mask()) {
    HEED_CHECK(!is_like_memory(*mask, query_input, key_length),
               "{}: mask {} must not be a memory: cross-attention takes query, key and value",
               function, shape(*mask));
    check_mask(function, "mask", *mask, scores);
  }
  if (options.bias()) check_bias(function, *options.bias(), scores);
}

int64_t HeadProjections::whole_heads() const {
  const auto part = sharing(*query).part();
  return part ? part->whole / sizes.head_dim : sizes.heads;
}

Sources HeadProjections::enter(const Sources& inputs) const {
  const auto entered = sharing(*query).enter(inputs.query);
  if (inputs.is_self()) return inputs.with(entered, entered, entered);
  const auto memory = enter_memory(inputs);
  return inputs.with(entered, memory.key, memory.value);
}

Sources HeadProjections::enter_memory(const Sources& inputs) const {
  const auto& own = sharing(*key);
  const auto entered = own.enter_whole(inputs.key);
  return inputs.with(inputs.query, entered,
                     inputs.value_is_key ? entered : own.enter_whole(inputs.value));
}

std::pair<at::Tensor, at::Tensor> HeadProjections::project_key_and_value(
    const Sources& sources) const {
  const auto split = [&](const at::Tensor& packed) { return split_heads(packed, sizes.groups); };
  if (!sources.value_is_key) {
    return {split(project(key, sources.key)), split(project(value, sources.value))};
  }
  const auto packed = project_together({key, value}, sources.key);
  return {split(packed[0]), split(packed[1])};
}

Heads HeadProjections::project_heads(const Sources& sources) const {
  if (sources.is_self()) {
    const auto packed = project_together({query, key, value}, sources.query);
    return {split_heads(packed[0], sizes.heads), split_heads(packed[1], sizes.groups),
            split_heads(packed[2], sizes.groups)};
  }
  auto [keys, values] = project_key_and_value(sources);
  return {split_heads(project(query, sources.query), sizes.heads), keys, values};
}

Heads HeadProjections::heads(const Sources& inputs, const AttendOptions& options,
                             const AttentionInputs& given) const {
  check(inputs);
  const auto sources = enter(inputs);
  const auto processes = sequence == nullptr ? 1 : sequence->processes();
  check_scores(sources.query, sources.key, sources.key.size(1) * processes, options);
  auto own = given_angles(function, given, transforms.rotary, sources.query, sequence);
  if (own) own = {sharing(*query).enter_whole(own->cos), sharing(*query).enter_whole(own->sin)};
  const auto heads = project_heads(sources);
  const auto [query_angles, key_angles] =
      own ? std::pair(*own, *own)
          : angles(heads.query.size(2), heads.key.size(2), options, heads.query.options());
  return {transforms.of_query(heads.query, query_angles), transforms.of_key(heads.key, key_angles),
          heads.value};
}

std::pair<RotaryAngles, RotaryAngles> HeadProjections::angles(int64_t length, int64_t key_length,
                                                              const AttendOptions& options,
                                                              const at::TensorOptions& like) const {
  const auto& rotary = transforms.rotary;
  if (!rotary) return {};
  const auto processes = sequence == nullptr ? 1 : sequence->processes();
  const auto of = [&](int64_t first, int64_t count) {
    auto whole = rotary->angles(first, count, like);
    if (sequence == nullptr) return whole;
    return RotaryAngles{sequence->shard(whole.cos, -2), sequence->shard(whole.sin, -2)};
  };
  const auto keys = of(0, key_length * processes);
  if (length == key_length) return {keys, keys};
  const auto first = first_position(options, length, key_length);
  return {of(first * processes, length * processes), keys};
}

void HeadProjections::check_whole_sequence(const char* use) const {
  HEED_CHECK(sequence == nullptr, "{}: {} must not be used while processes share the sequence",
             function, use);
}

ProjectedMemory HeadProjections::project_memory(const at::Tensor& key_input,
                                                const at::Tensor& value_input) const {
  check_whole_sequence("project_memory");
  check_input(function, "key", key_input, key->weight, key_dim_name);
  check_input(function, "value", value_input, value->weight, value_dim_name);
  check_sources(function, key_input, key_input, value_input);
  const auto [keys, values] =
      project_key_and_value(enter_memory(Sources::of({}, key_input, value_input)));
  const auto& rotary = transforms.rotary;
  const auto angles = rotary ? rotary->angles(0, keys.size(2), keys.options()) : RotaryAngles();
  return {transforms.of_key(keys, angles), values};
}

Heads HeadProjections::heads(const at::Tensor& query_input, const ProjectedMemory& memory,
                             const AttendOptions& options) const {
  check_whole_sequence("a projected memory");
  check_input(function, "query", query_input, query->weight);
  check_memory(query_input, memory, query_input.size(0));
  const auto input = sharing(*query).enter(query_input);
  check_scores(input, memory.key, memory.key.size(2), options);
  const auto heads = split_heads(project(query, input), sizes.heads);
  check_same_dtype(function, "memory key", memory.key, "projected query", heads);
  RotaryAngles angles;
  if (const auto& rotary = transforms.rotary) {
    const auto length = heads.size(2);
    const auto first = first_position(options, length, memory.key.size(2));
    angles = rotary->angles(first, length, heads.options());
  }
  return {transforms.of_query(heads, angles), memory.key, memory.value};
}

void HeadProjections::check_step(const at::Tensor& x, const ProjectedMemory& memory,
                                 const AttendOptions& options) const {
  check_whole_sequence("a cache");
  check_input(function, "x", x, query->weight);
  check_defined(function, "memory key", memory.key);
  check_rank(function, "memory key", memory.key, 4);
  const auto batch = memory.key.size(0);
  check_memory(x, memory, batch);
  const bool has_window = options.window() || options.left_window() || options.right_window();
  HEED_CHECK(!options.causal() && !has_window && !options.alibi_slopes() && !transforms.rotary,
             "{}: causal, windows, alibi and rotary must be absent where a step attends to a "
             "memory: its tokens have no positions there",
             function);
  check_no_dropout(function, "dropout", options.dropout(), /*training=*/true);
  if (!options.mask()) return;
  check_mask(function, "mask", *options.mask(),
             {x, memory.key, batch, whole_heads(), /*query_length=*/1, memory.key.size(2)});
}

AttendOptions HeadProjections::of_own_heads(AttendOptions options, const TensorShard& part) const {
  const auto first = part.first / sizes.head_dim, whole = part.whole / sizes.head_dim;
  const auto own = [&](const at::Tensor& scores) {
    const bool has_heads = scores.dim() == 4 && scores.size(1) == whole;
    return has_heads ? scores.narrow(1, first, sizes.heads) : scores;
  };
  if (auto& mask = options.mask()) mask = own(*mask);
  if (auto& bias = options.bias()) bias = own(sharing(*query).enter_whole(*bias));
  if (auto& bias = options.relative_bias(); bias && bias->dim() == 2 && bias->size(0) == whole) {
    bias = sharing(*query).enter_whole(*bias).narrow(0, first, sizes.heads);
  }
  return options;
}

template <typename Attend>
auto HeadProjections::with_own_heads(const AttendOptions& options, const Attend& attend) const {
  const auto part = sharing(*query).part();
  if (!part) return attend(options);
  const OwnRandomNumbers own(query, query->weight.device(), options.dropout());
  return attend(of_own_heads(options, *part));
}

at::Tensor HeadProjections::attended(const Heads& heads, const AttendOptions& options) const {
  return project(output, merge_heads(with_own_heads(options, [&](const auto& own) {
                   if (sequence != nullptr) {
                     return sequence->attend(heads.query, heads.key, heads.value, own);
                   }
                   return attend(heads.query, heads.key, heads.value, own);
                 })));
}

at::Tensor HeadProjections::attended_rows(const at::Tensor& x, const ProjectedMemory& memory,
                                          const MemoryRows& rows,
                                          const AttendOptions& options) const {
  const WholeSequence whole;
  const auto heads = split_heads(project(query, sharing(*query).enter(x)), sizes.heads);
  check_same_dtype(function, "memory key", memory.key, "projected query", heads);
  auto call = options;
  call.query_lengths(rows.query_lengths());
  if (auto& mask = call.mask()) {
    if (mask->dim() == 2) mask = mask->unsqueeze(0);  // [1, 1, S]
    if (mask->size(0) != 1) mask = mask->narrow(0, 0, rows.count());
  }
  const auto queries = rows.gather(transforms.of_query(heads, {}));
  const auto keys = memory.key.narrow(0, 0, rows.count());
  const auto values = memory.value.narrow(0, 0, rows.count());
  return project(output, merge_heads(rows.scatter(with_own_heads(call, [&](const auto& own) {
                   return attend(queries, keys, values, own);
                 }))));
}

std::tuple<at::Tensor, at::Tensor> HeadProjections::attended_with_weights(
    const Heads& heads, const AttendOptions& options) const {
  auto [attended, weights] = with_own_heads(options, [&](const auto& own) {
    return attend_with_weights(heads.query, heads.key, heads.value, own);
  });
  return {project(output, merge_heads(attended)), weights};
}

at::Tensor HeadProjections::forward(const Sources& inputs, const AttendOptions& options,
                                    const AttentionInputs& given) const {
  if (is_nested(inputs.query)) return forward_nested(inputs, options, given);
  return attended(heads(inputs, options, given), options);
}

std::tuple<at::Tensor, at::Tensor> HeadProjections::forward_with_weights(
    const Sources& inputs, const AttendOptions& options, const AttentionInputs& given) const {
  check_whole_sequence("forward_with_weights");
  HEED_CHECK(!is_nested(inputs.query),
             "{}: query must not be nested where weights are asked for: their shapes would differ",
             function);
  return attended_with_weights(heads(inputs, options, given), options);
}

at::Tensor HeadProjections::forward_appended(const at::Tensor& x, AppendedTokens& tokens,
                                             const AttendOptions& options,
                                             const AttentionInputs& given) const {
  check_whole_sequence("a cache");
  check_cached_inputs(function, given);
  tokens.check(options);
  const auto inputs = Sources::self(x);
  check(inputs);
  const WholeSequence whole;
  auto heads = project_heads(enter(inputs));
  const auto& rotary = transforms.rotary;
  const auto own = given_angles(function, given, rotary, x, sequence);
  const auto angles = own      ? *own
                      : rotary ? tokens.angles(rotary, x.size(1), heads.query.options())
                               : RotaryAngles();
  heads.query = transforms.of_query(heads.query, angles);
  heads.key = transforms.of_key(heads.key, angles);
  return project(output, merge_heads(with_own_heads(options, [&](const auto& own) {
                   return tokens.append_and_attend(heads, own);
                 })));
}

at::Tensor HeadProjections::forward_nested(const Sources& inputs, const AttendOptions& options,
                                           const AttentionInputs& given) const {
  check_whole_sequence("a nested tensor");
  HEED_CHECK(!given.positions() && !given.rotary_angles(),
             "{}: positions and rotary_angles must be absent where x is nested: each sequence "
             "counts its own positions",
             function);
  const auto queries = pack(function, "query", inputs.query);
  const auto keys = inputs.key_is_query ? queries : pack(function, "key", inputs.key);
  const auto values = inputs.value_is_key     ? keys
                      : inputs.value_is_query ? queries
                                              : pack(function, "value", inputs.value);
  const auto key_lengths = lengths(keys.offsets), value_lengths = lengths(values.offsets);
  HEED_CHECK(key_lengths == value_lengths,
             "{}: nested value lengths ({}) must equal nested key lengths ({})", function,
             c10::str(at::IntArrayRef(value_lengths)), c10::str(at::IntArrayRef(key_lengths)));
  const auto rows = inputs.with(queries.rows, keys.rows, values.rows);
  check(rows);
  HEED_CHECK(sharing(*query).sequence_parts() == 1,
             "{}: query must not be nested where the sequence is split among processes", function);
  auto heads = project_heads(enter(rows));  // [1, H, T, D]
  RotaryAngles query_angles, key_angles;
  if (const auto& rotary = transforms.rotary) {
    query_angles = packed_angles(rotary, queries.offsets, key_lengths, options, heads.query);
    key_angles = packed_angles(rotary, keys.offsets, key_lengths, options, heads.key);
  }
  heads.query = transforms.of_query(heads.query, query_angles);
  heads.key = transforms.of_key(heads.key, key_angles);
  const auto by_token = [](const at::Tensor& heads) { return heads.squeeze(0).transpose(0, 1); };
  const auto device = heads.query.device();
  const auto query_offsets = to_device(queries.offsets, device);
  const auto key_offsets = inputs.key_is_query ? query_offsets : to_device(keys.offsets, device);
  const auto attended = with_own_heads(options, [&](const auto& own) {
    return attend_varlen(by_token(heads.query), by_token(heads.key), by_token(heads.value),
                         query_offsets, key_offsets, longest(lengths(queries.offsets)),
                         longest(key_lengths), own);  // [T, H, Dv]
  });
  return unpack({project(output, attended.flatten(1).unsqueeze(0)), queries.offsets});
}

}  // namespace heed::detail
