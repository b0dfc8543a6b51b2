// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/decode/decode.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "core/ceil_div.h"
#include "core/direct.h"
#include "cpu/capability.h"
#include "cpu/decode/plan.h"
#include "cpu/shown_keys.h"
#include "cpu/tensor_rows.h"
#include "cpu/threads.h"

// Few queries, many keys (flash-decoding). A column is the keys of a sequence for one group, or
// for all groups that lie side by side in memory.
//
//   for each split of keys, in parallel:
//     for each column of which the split has keys:
//       for each block of up to 64 of these keys, for each group of the column:
//         for each strip of 1, 2, 4 or 8 query rows of the group:
//           update maximum, sum and output; prefetch the next block    # cpu/isa/decode.cpp
//       write the result if the split has the whole column; else keep the state as a part
//   for each query of a cut column, in parallel: merge its parts and write the result
//
//   part:  maximum, sum [rows of a strip]   output [rows, Dv]: sum of exp(score - maximum) * value
//
// Each key and value is read once, so memory is the bound. Splits depend only on shapes, strides
// and the keys that are seen, so the result does not depend on threads. docs/kernels.md, Decode.

namespace heed::detail {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kMergeGrain = 32768;  // floats to merge that are worth a thread

/// Partial output, maximum and sum of each group, over some of its keys.
class Parts {
 public:
  Parts(const DecodePlan& plan, int64_t count)
      : outputs_(empty_on_cpu({count, plan.padded_rows, plan.output_row}, at::kFloat)),
        strips_(static_cast<int64_t>(plan.strips.size())),
        states_(static_cast<size_t>(count * strips_)) {}

  DecodeState* states(int64_t part) { return states_.data() + part * strips_; }
  float* outputs(int64_t part) { return outputs_.data_ptr<float>() + part * outputs_.stride(0); }

 private:
  at::Tensor outputs_;  // [parts, padded_rows, Dv], rows padded for kernels
  int64_t strips_;
  std::vector<DecodeState> states_;  // [parts, strips]
};

/// The states of one group in `count` parts; `stride` states lie from one part to the next.
struct PartStates {
  const DecodeState* first;  // [strips]
  int64_t count, stride;
  const DecodeState& at(int64_t part, int64_t strip) const { return first[part * stride + strip]; }
};

/// The maximum of a query's scores in all parts, and the total of exp(score - maximum).
struct Merged {
  float maximum, total;
  float factor() const { return total == 0.0F ? 0.0F : 1.0F / total; }
  float lse() const { return total == 0.0F ? kMinusInfinity : maximum + std::log(total); }
};

/// Merges the parts of one query row: `sums` [Dv] becomes its output before it is divided by the
/// total. A sink counts in maximum and total.
Merged merge_row(const DecodePlan& plan, const PartStates& parts, int64_t g, int64_t row,
                 float* sums) {
  int64_t strip = 0, r = row;
  while (r >= plan.strips[strip]) r -= plan.strips[strip++];
  const float sink =
      plan.sinks.defined() ? plan.sinks.const_data_ptr<float>()[plan.head(g, row)] : kMinusInfinity;
  auto maximum = sink;
  for (int64_t part = 0; part < parts.count; ++part) {
    maximum = std::max(maximum, parts.at(part, strip).maximum[r]);
  }
  const auto columns = plan.problem.value_head_dim();
  std::fill_n(sums, columns, 0.0F);
  float total = sink == kMinusInfinity ? 0.0F : std::exp(sink - maximum);
  for (int64_t part = 0; part < parts.count; ++part) {
    const auto& state = parts.at(part, strip);
    if (state.maximum[r] == kMinusInfinity && state.sum[r] == 0.0F) continue;  // saw no keys
    const float weight = std::exp(state.maximum[r] - maximum);
    total += weight * state.sum[r];
    const float* output = state.output + r * plan.output_row;
    for (int64_t d = 0; d < columns; ++d) sums[d] += weight * output[d];
  }
  return {maximum, total};
}

/// Merges and writes one query's result; `sums` is scratch.
void write_row(const DecodePlan& plan, const PartStates& parts, int64_t b, int64_t g, int64_t row,
               float* sums, const DecodeOutput& result) {
  const auto merged = merge_row(plan, parts, g, row, sums);
  const auto h = plan.head(g, row), i = plan.position(row);
  instruction_set().matrix.of_float.unpack(sums, plan.problem.value_head_dim(), merged.factor(),
                                           nullptr, tensor_rows(result.output, b, h, i, 1));
  if (result.lse.defined()) {
    const auto query = (b * plan.problem.heads() + h) * plan.problem.query_length() + i;
    result.lse.mutable_data_ptr<float>()[query] = merged.lse();
  }
}

/// Computes the splits that one thread takes.
class Worker {
 public:
  /// Columns that are cut leave their states in `parts` [splits.parts(), column_groups]; columns
  /// that are whole write to `result`.
  Worker(const DecodePlan& plan, Parts* parts, const DecodeOutput& result)
      : plan_(plan),
        parts_(parts),
        result_(result),
        sums_(plan.problem.value_head_dim()),
        packed_row_(plan.query_row),
        packed_(plan.column_groups * plan.padded_rows * packed_row_),
        added_(plan.padded_rows * kDecodeBlock),
        seen_(static_cast<size_t>(plan.padded_rows), ~uint64_t{0}) {}

  void attend(int64_t split) {
    plan_.splits.for_each_part(split, [&](int64_t column, KeyRange keys, int64_t number) {
      attend_part(column, keys, number);
    });
  }

 private:
  void attend_part(int64_t column, KeyRange keys, int64_t number) {
    const auto b = column / plan_.columns_per_sequence();
    const auto first = column % plan_.columns_per_sequence() * plan_.column_groups;
    const bool is_whole = number == Splits::kWhole;
    if (is_whole && !whole_) whole_.emplace(plan_, plan_.column_groups);
    auto& parts = is_whole ? *whole_ : *parts_;
    const auto part = is_whole ? 0 : number * plan_.column_groups;
    const auto groups = plan_.column_groups;
    for (int64_t n = 0; n < groups; ++n) start(b, first + n, parts, part + n, packed(n));
    for (auto key = keys.first; key < keys.last;) {
      const KeyRange block{key, key + plan_.block_of({key, keys.last})};
      const auto next_count = block.last < keys.last ? plan_.block_of({block.last, keys.last}) : 0;
      for (int64_t n = 0; n < groups; ++n) {
        attend_block(b, first + n, parts.states(part + n), block, next_count, packed(n));
      }
      key = block.last;
    }
    for (int64_t n = 0; n < groups; ++n) {
      auto* states = parts.states(part + n);
      for (size_t strip = 0; strip < plan_.strips.size(); ++strip) {
        plan_.kernels.finish(plan_.strips[strip], plan_.problem.value_head_dim(), states + strip);
      }
      for (int64_t row = 0; is_whole && row < plan_.rows; ++row) {
        write_row(plan_, {states, 1, 0}, b, first + n, row, sums_.data(), result_);
      }
    }
  }

  float* packed(int64_t n) { return packed_.data() + n * plan_.padded_rows * packed_row_; }

  void start(int64_t b, int64_t g, Parts& parts, int64_t part, float* packed) {
    for (int64_t row = 0; row < plan_.rows; ++row) {
      plan_.kernels.pack(row_address(plan_.query, b, plan_.head(g, row), plan_.position(row)),
                         plan_.problem.head_dim(), static_cast<float>(plan_.problem.scale),
                         packed + row * packed_row_);
    }
    auto* state = parts.states(part);
    auto* output = parts.outputs(part);
    std::fill_n(output, plan_.padded_rows * plan_.output_row, 0.0F);
    for (const auto rows : plan_.strips) {
      std::fill(std::begin(state->maximum), std::end(state->maximum), kMinusInfinity);
      std::fill(std::begin(state->sum), std::end(state->sum), 0.0F);
      state->output = output;
      output += rows * plan_.output_row;
      ++state;
    }
  }

  void attend_block(int64_t b, int64_t g, DecodeState* state, KeyRange keys, int64_t next_count,
                    const float* packed) {
    const auto& problem = plan_.problem;
    const bool hides = plan_.may_hide(b, keys) && look(b, g, keys);
    if (hides && std::all_of(seen_.begin(), seen_.begin() + plan_.rows,
                             [](uint64_t keys) { return keys == 0; })) {
      return;
    }
    if (plan_.adds()) fill_added(b, g, keys);
    DecodeBlock block;
    block.key = plan_.key_address(problem.key, b, g, keys.first);
    block.value = plan_.key_address(problem.value, b, g, keys.first);
    block.key_stride = problem.key.stride(2);
    block.value_stride = problem.value.stride(2);
    block.head_dim = problem.head_dim();
    block.value_head_dim = problem.value_head_dim();
    block.key_scales = block.value_scales = nullptr;
    if (problem.is_quantized()) {
      block.key_scales = plan_.key_address<float>(problem.key_scales, b, g, keys.first);
      block.value_scales = plan_.key_address<float>(problem.value_scales, b, g, keys.first);
    }
    block.count = keys.last - keys.first;
    block.softcap = static_cast<float>(problem.softcap);
    prefetch(b, g, keys.last, next_count, &block);
    const bool careful = hides && !plan_.kernels.are_finite(block.value, block.value_stride,
                                                            block.count, block.value_head_dim);
    int64_t row = 0;
    for (const auto rows : plan_.strips) {
      block.rows = rows;
      block.query = packed + row * packed_row_;
      block.added = plan_.adds() ? added_.data() + row * kDecodeBlock : nullptr;
      block.seen = hides ? seen_.data() + row : nullptr;
      if (careful) {
        attend_carefully(block, state++);
      } else {
        plan_.kernels.attend(block, state++);
      }
      block.next_key = block.key;  // the next block is prefetched once
      block.next_value = block.value;
      row += rows;
    }
  }

  /// Sets the addresses to prefetch from: those of the next block, or of the block itself if it is
  /// the last. If groups lie side by side, each prefetches its share of the keys of all groups, so
  /// that memory is read in order.
  void prefetch(int64_t b, int64_t g, int64_t next, int64_t next_count, DecodeBlock* block) const {
    block->next_key = block->key;
    block->next_value = block->value;
    if (next_count == 0) return;
    const auto share = g % plan_.column_groups;
    const auto first = next + next_count * share / plan_.column_groups;
    block->next_key = plan_.key_address(plan_.problem.key, b, g - share, first);
    block->next_value = plan_.key_address(plan_.problem.value, b, g - share, first);
  }

  /// Sets the bits of `seen_` for the keys that each row sees. Returns false if all rows see all.
  bool look(int64_t b, int64_t g, KeyRange keys) {
    const auto all = first_bits(keys.last - keys.first);
    // If masks are the same for all heads, so is what they see: the first head is copied.
    const auto own_rows = plan_.heads_differ() ? plan_.rows : plan_.problem.query_length();
    bool hides = false;
    for (int64_t row = 0; row < plan_.rows; ++row) {
      auto& seen = seen_[static_cast<size_t>(row)];
      seen = row < own_rows ? plan_.seen_keys(b, plan_.head(g, row), plan_.position(row), keys)
                            : seen_[static_cast<size_t>(row - own_rows)];
      hides = hides || seen != all;
    }
    return hides;
  }

  /// Fills `added_` [rows, kDecodeBlock] with what is to be added to the scores.
  void fill_added(int64_t b, int64_t g, KeyRange keys) {
    for (int64_t row = 0; row < plan_.rows; ++row) {
      float* added = added_.data() + row * kDecodeBlock;
      std::fill_n(added, keys.last - keys.first, 0.0F);
      add_bias(b, plan_.head(g, row), plan_.position(row), keys, added);
      add_distances(b, plan_.head(g, row), plan_.position(row), keys, added);
    }
  }

  void add_bias(int64_t b, int64_t h, int64_t i, KeyRange keys, float* added) const {
    const auto& bias = plan_.bias;
    if (!bias.defined()) return;
    const auto* row = row_address<float>(bias, plan_.problem.score_batch(bias, b), h, i);
    for (auto key = keys.first; key < keys.last; ++key) *added++ += row[key * bias.stride(3)];
  }

  /// Adds what depends on the distance of keys and query i of head h: ALiBi and relative biases.
  void add_distances(int64_t b, int64_t h, int64_t i, KeyRange keys, float* added) const {
    const auto& problem = plan_.problem;
    const auto position = problem.position(b, i);
    if (const auto& slopes = problem.alibi_slopes; slopes.defined()) {
      const auto slope = row_of_batch<float>(slopes, b)[h];
      for (auto key = keys.first; key < keys.last; ++key) {
        added[key - keys.first] -= slope * static_cast<float>(std::abs(position - key));
      }
    }
    const auto& table = problem.relative_bias;
    if (!table.defined()) return;
    const auto reach = table.size(1) / 2;
    const auto* middle = table.const_data_ptr<float>() + h * table.size(1) + reach;
    const auto* of_keys =
        plan_.relative_keys.defined()
            ? plan_.relative_keys.const_data_ptr<int64_t>() + b * plan_.relative_keys.stride(0)
            : nullptr;
    const auto of_row =
        of_keys == nullptr
            ? position
            : plan_.relative_rows.const_data_ptr<int64_t>()[b * plan_.relative_rows.stride(0) + i];
    for (auto key = keys.first; key < keys.last; ++key) {
      const auto apart = (of_keys == nullptr ? key : of_keys[key]) - of_row;
      added[key - keys.first] += middle[std::clamp(apart, -reach, reach)];
    }
  }

  /// Attends for one row after the other, with 0 in place of the values that the row does not see:
  /// a weight of 0 times a NaN or infinite value would be NaN.
  void attend_carefully(DecodeBlock block, DecodeState* state) const {
    const auto row_bytes = block.value_head_dim * plan_.problem.value.element_size();
    const auto stride_bytes = block.value_stride * plan_.problem.value.element_size();
    const auto* values = static_cast<const char*>(block.value);
    std::vector<char> seen_values(static_cast<size_t>(block.count * row_bytes));
    block.value = seen_values.data();
    block.value_stride = block.value_head_dim;
    const auto before = *state;
    const auto size = block.rows * plan_.output_row;
    const std::vector<float> outputs(before.output, before.output + size);
    auto results = outputs;
    for (int64_t r = 0; r < block.rows; ++r) {
      for (int64_t n = 0; n < block.count; ++n) {
        auto* to = seen_values.data() + n * row_bytes;
        if ((block.seen[r] >> n & 1U) != 0) {
          std::copy_n(values + n * stride_bytes, row_bytes, to);
        } else {
          std::fill_n(to, row_bytes, char{0});
        }
      }
      *state = before;
      std::copy(outputs.begin(), outputs.end(), state->output);
      plan_.kernels.attend(block, state);
      std::copy_n(state->output + r * plan_.output_row, plan_.output_row,
                  results.begin() + r * plan_.output_row);
    }
    std::copy(results.begin(), results.end(), state->output);
  }

  const DecodePlan& plan_;
  Parts* const parts_;
  const DecodeOutput& result_;
  std::optional<Parts> whole_;  // states of a whole column, once there is one
  std::vector<float> sums_;     // [Dv]
  int64_t packed_row_;
  std::vector<float> packed_;   // [column_groups, padded_rows, packed_row]
  std::vector<float> added_;    // [padded_rows, kDecodeBlock]
  std::vector<uint64_t> seen_;  // [padded_rows]: a bit for each key of the block
};

/// Merges the parts of the columns that are cut, and writes their results.
void merge(const DecodePlan& plan, Parts& parts, const DecodeOutput& result) {
  const auto& problem = plan.problem;
  const auto groups = problem.batch() * problem.groups();
  const auto strips = static_cast<int64_t>(plan.strips.size());
  const auto parts_per_group = plan.splits.count() / groups + 1;
  const auto grain =
      std::max<int64_t>(1, kMergeGrain / (parts_per_group * problem.value_head_dim()));
  at::parallel_for(0, groups * plan.rows, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(static_cast<size_t>(problem.value_head_dim()));
    for (auto n = begin; n < end; ++n) {
      const auto group = n / plan.rows;
      const auto b = group / problem.groups(), g = group % problem.groups();
      const auto [first, last] = plan.splits.parts_of(plan.column(b, g));
      if (first == last) continue;  // a whole column, which is written
      const PartStates states{parts.states(first * plan.column_groups + g % plan.column_groups),
                              last - first, plan.column_groups * strips};
      write_row(plan, states, b, g, n % plan.rows, sums.data(), result);
    }
  });
}

}  // namespace

bool decodes(at::ScalarType dtype) { return decode_kernels(dtype) != nullptr; }

DecodeOutput decode(const Problem& problem) {
  const DecodePlan plan(problem);
  DecodeOutput result;
  result.output = empty_heads(problem.batch(), problem.heads(), problem.query_length(),
                              problem.value_head_dim(), problem.result_dtype());
  if (problem.wanted == Wanted::output_and_lse) {
    result.lse =
        empty_on_cpu({problem.batch(), problem.heads(), problem.query_length()}, at::kFloat);
  }
  std::optional<Parts> parts;
  if (plan.splits.parts() > 0) parts.emplace(plan, plan.splits.parts() * plan.column_groups);
  const auto threads = useful_threads(plan.splits.cost());
  // Threads take no splits from a queue: in the next call each finds the same keys in its core's
  // cache.
  const auto grain = ceil_div(plan.splits.count(), threads);
  at::parallel_for(0, plan.splits.count(), grain, [&](int64_t begin, int64_t end) {
    Worker worker(plan, parts ? &*parts : nullptr, result);
    for (auto split = begin; split < end; ++split) worker.attend(split);
  });
  if (parts) merge(plan, *parts, result);
  return result;
}

}  // namespace heed::detail
