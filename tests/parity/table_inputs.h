// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/kv_cache.h>
#include <heed/quantize.h>
#include <heed/rotary_embedding.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "support/reference.h"

/// The inputs of the code in docs/conventions.md, "Options of other libraries".

namespace heed::test::of_other_libraries {

using Results = std::vector<at::Tensor>;

inline Results results(const at::Tensor& output) { return {output}; }
inline Results results(const std::tuple<at::Tensor, at::Tensor>& outputs) {
  return {std::get<0>(outputs), std::get<1>(outputs)};
}
inline Results results(const Results& outputs) { return outputs; }

inline Results output_and_lse(const ReferenceResult& result) { return {result.output, result.lse}; }
inline Results output_and_weights(const ReferenceResult& result) {
  return {result.output, result.weights};
}

/// An element of the scores.
struct Place {
  int64_t b, h, i, j;
};

/// Whether a query at position p sees key j.
using Sees = bool (*)(int64_t p, int64_t j);

inline bool any(int64_t /*p*/, int64_t /*j*/) { return true; }
inline bool causal(int64_t p, int64_t j) { return j <= p; }
// The window is that of `left` and `right`.
inline bool near(int64_t p, int64_t j) { return p - 2 <= j && j <= p + 1; }
inline bool causal_near(int64_t p, int64_t j) { return p - 2 <= j && j <= p; }
inline bool last(int64_t p, int64_t j) { return p - 3 < j && j <= p; }  // by `W`
inline bool in_chunk(int64_t p, int64_t j) { return p / 4 == j / 4; }

/// Draws the tensors that the code of the page names, float64 unless a name says otherwise.
inline at::Tensor drawn(at::IntArrayRef sizes) { return torch::randn(sizes, torch::kDouble); }

/// The tensors and numbers that the code of the page names, and what definitions give for them.
class TableInputs {
 protected:
  static constexpr int64_t B = 2, H = 4, G = 2, L = 5, S = 9, D = 8, Dv = 6;
  static constexpr int64_t W = 3, left = 2, right = 1, R = 3, chunk = 4;
  static constexpr double p = 0.25, scale = 0.3, cap = 0.5;

  at::Tensor query = drawn({B, H, L, D}), key = drawn({B, G, S, D}), value = drawn({B, G, S, Dv});
  at::Tensor mask = torch::rand({B, 1, L, S}) > 0.4, bias = drawn({1, H, L, S});
  at::Tensor shorter_mask = mask.slice(3, 0, 7);
  at::Tensor slopes = torch::rand({B, H}, torch::kDouble), table = drawn({H, 2 * R + 1});
  at::Tensor sinks = drawn({H});
  at::Tensor lengths = torch::tensor({7, 4}), query_lengths = torch::tensor({3, 5});
  at::Tensor ids = torch::tensor({0, 0, 1, 1, 2});
  at::Tensor key_ids = torch::tensor({0, 0, 0, 1, 1, 2, 1, 2, 2});
  at::Tensor first = torch::tensor({0, 3}), batches = torch::tensor({1, 0});
  at::Tensor indices = torch::rand({B, 1, L, S}).argsort(int64_t{3}).slice(3, 0, 3);
  std::function<bool(int64_t, int64_t, int64_t, int64_t)> rule =
      [](int64_t /*b*/, int64_t /*h*/, int64_t i, int64_t j) { return j <= i || j % 3 == 0; };

  // Two sequences of 2 and 3 queries, and 4 and 5 keys.
  at::Tensor q = drawn({L, H, D}), k = drawn({S, G, D}), v = drawn({S, G, Dv});
  at::Tensor offsets = torch::tensor({0, 2, 5}), key_offsets = torch::tensor({0, 4, 9});
  at::Tensor used = torch::tensor({1, 2, 3, 4, 7, 8, 9, 10, 11});
  at::Tensor gappy_k = torch::zeros({13, G, D}, torch::kDouble).index_copy(0, used, k);
  at::Tensor gappy_v = torch::zeros({13, G, Dv}, torch::kDouble).index_copy(0, used, v);
  at::Tensor key_pages = drawn({B, G, 16, D}), value_pages = drawn({B, G, 16, Dv});
  at::Tensor page_table = torch::arange(2).view({2, 1});

  // These are the tensors above, and others, in the layouts of other libraries.
  at::Tensor blhd = query.transpose(1, 2), qkv = torch::stack({blhd, blhd + 1, blhd + 2}, 2);
  at::Tensor q5 = blhd.unflatten(2, {G, H / G}), k5 = key.transpose(1, 2).unsqueeze(3);
  at::Tensor v5 = value.transpose(1, 2).unsqueeze(3);
  at::Tensor query3 = blhd.flatten(2), key3 = key.transpose(1, 2).flatten(2);
  at::Tensor value3 = value.transpose(1, 2).flatten(2);
  at::Tensor x = drawn({B, L, D});

  at::Tensor past_key = key.slice(2, 0, S - L), new_key = key.slice(2, S - L);
  at::Tensor past_value = value.slice(2, 0, S - L), new_value = value.slice(2, S - L);
  KVCache cache = filled_cache();
  at::Tensor first_output, first_lse, second_output, second_lse;
  at::Tensor query_of_values = drawn({B, H, L, Dv});
  at::Tensor int8_key, key_scales, int8_value, value_scales;
  at::Tensor cos = drawn({1, 1, L, D / 2}), sin = drawn({1, 1, L, D / 2});
  RotaryEmbedding rotary{RotaryEmbeddingOptions(D)};

  ReferenceResult plain = reference_attention(input());

  TableInputs() {
    std::tie(first_output, first_lse) = attend_with_lse(query, past_key, past_value);
    std::tie(second_output, second_lse) = attend_with_lse(query, new_key, new_value);
    std::tie(int8_key, key_scales) = quantize_int8(key);
    std::tie(int8_value, value_scales) = quantize_int8(value);
  }

  KVCache filled_cache() const {
    KVCacheOptions options(B, G, /*capacity=*/16, D);
    KVCache filled(options.value_head_dim(Dv).dtype(torch::kDouble));
    filled.append(past_key, past_value);
    return filled;
  }

  int64_t length(int64_t b) const { return lengths[b].item<int64_t>(); }
  int64_t query_length(int64_t b) const { return query_lengths[b].item<int64_t>(); }
  double slope(const Place& at) const { return slopes[at.b][at.h].item<double>(); }
  double entry(int64_t h, int64_t distance) const {
    return table[h][std::clamp<int64_t>(distance, -R, R) + R].item<double>();
  }
  static int64_t id(const at::Tensor& of, int64_t i) { return of[i].item<int64_t>(); }

  ReferenceInput input() const {
    ReferenceInput input;
    input.query = query;
    input.key = key;
    input.value = value;
    return input;
  }

  /// By the definition, with another input.
  at::Tensor given(const std::function<void(ReferenceInput&)>& change) const {
    auto changed = input();
    change(changed);
    return reference_attention(changed).output;
  }

  /// A number for each score.
  static at::Tensor of_scores(const std::function<double(Place)>& number) {
    auto numbers = torch::zeros({B, H, L, S}, torch::kDouble);
    auto elements = numbers.accessor<double, 4>();
    for (int64_t n = 0; n < numbers.numel(); ++n) {
      const Place at{n / S / L / H, n / S / L % H, n / S % L, n % S};
      elements[at.b][at.h][at.i][at.j] = number(at);
    }
    return numbers;
  }

  at::Tensor seen(const std::function<bool(Place)>& sees) const {
    return given([&](ReferenceInput& in) { in.mask = of_scores(sees); });
  }
  at::Tensor adding(const std::function<double(Place)>& adds) const {
    return given([&](ReferenceInput& in) { in.bias = of_scores(adds); });
  }

  /// The first query is at the first key, or the last at the last.
  /// @{
  at::Tensor at_start(Sees sees, const at::Tensor& other_mask = {},
                      const at::Tensor& added = {}) const {
    return given([&](ReferenceInput& in) {
      in.mask = of_scores([&](Place at) { return sees(at.i, at.j); });
      if (other_mask.defined()) in.mask = in.mask * other_mask;
      in.bias = added;
    });
  }
  at::Tensor at_end(Sees sees) const {
    return seen([&](Place at) { return sees(at.i + S - L, at.j); });
  }
  /// @}

  at::Tensor sdpa(const at::Tensor& attn_mask, bool is_causal = false,
                  std::optional<double> own_scale = {}) const {
    return at::scaled_dot_product_attention(
        query, key, value, attn_mask.defined() ? std::optional(attn_mask) : std::nullopt,
        /*dropout_p=*/0.0, is_causal, own_scale, /*enable_gqa=*/true);
  }

  /// Sequences one after the other: queries of `q`, and keys and values [B, G, n, D] of
  /// each.
  ReferenceResult of_sequences(const Results& keys, const Results& values, Sees sees, bool at_start,
                               std::optional<double> own_scale = {}) const {
    ReferenceResult joined;
    Results outputs, lses;
    for (int64_t n = 0; n < B; ++n) {
      const auto begin = id(offsets, n), end = id(offsets, n + 1);
      ReferenceInput in;
      in.query = q.slice(0, begin, end).transpose(0, 1).unsqueeze(0);
      in.key = keys[n].unsqueeze(0);
      in.value = values[n].unsqueeze(0);
      in.scale = own_scale;
      const auto rows = end - begin, columns = in.key.size(2);
      in.mask = torch::zeros({1, 1, rows, columns}, torch::kBool);
      for (int64_t i = 0; i < rows; ++i) {
        const auto position = i + (at_start ? 0 : columns - rows);
        for (int64_t j = 0; j < columns; ++j) in.mask[0][0][i][j] = sees(position, j);
      }
      const auto result = reference_attention(in);
      outputs.push_back(result.output.squeeze(0).transpose(0, 1));
      lses.push_back(result.lse.squeeze(0).transpose(0, 1));
    }
    joined.output = torch::cat(outputs);
    joined.lse = torch::cat(lses);
    return joined;
  }

  ReferenceResult of_packed(Sees sees, bool at_start, std::optional<double> own_scale = {}) const {
    Results keys, values;
    for (int64_t n = 0; n < B; ++n) {
      const auto begin = id(key_offsets, n), end = id(key_offsets, n + 1);
      keys.push_back(k.slice(0, begin, end).transpose(0, 1));
      values.push_back(v.slice(0, begin, end).transpose(0, 1));
    }
    return of_sequences(keys, values, sees, at_start, own_scale);
  }
  at::Tensor packed(Sees sees, std::optional<double> own_scale = {}) const {
    return of_packed(sees, /*at_start=*/false, own_scale).output;
  }
  at::Tensor packed_at_start(Sees sees) const { return of_packed(sees, /*at_start=*/true).output; }
  Results packed_output_and_lse() const { return output_and_lse(of_packed(any, false)); }

  at::Tensor paged(Sees sees) const {
    Results keys, values;
    for (int64_t n = 0; n < B; ++n) {
      keys.push_back(key_pages[n].slice(1, 0, length(n)));
      values.push_back(value_pages[n].slice(1, 0, length(n)));
    }
    return of_sequences(keys, values, sees, /*at_start=*/false).output;
  }

  static at::Tensor turned(const at::Tensor& heads, const at::Tensor& c, const at::Tensor& s,
                           bool interleaved) {
    const auto pairs = interleaved ? heads.unflatten(3, {D / 2, 2})
                                   : heads.unflatten(3, {2, D / 2}).transpose(3, 4);
    const auto a = pairs.select(4, 0), b = pairs.select(4, 1);
    const auto both = torch::stack({a * c - b * s, b * c + a * s}, interleaved ? 4 : 3);
    return both.flatten(3);
  }
  at::Tensor rotated(bool interleaved) const { return turned(query, cos, sin, interleaved); }
  at::Tensor rotated_from(const at::Tensor& begins) const {
    const auto positions = begins.view({B, 1, 1, 1}) + torch::arange(L).view({L, 1});
    const auto pair = torch::arange(D / 2, torch::kDouble);
    const auto angles = positions * torch::pow(10000.0, pair * (-2.0 / D));
    return turned(query, angles.cos(), angles.sin(), /*interleaved=*/false);
  }

  at::Tensor with_query_of_values() const {
    return given([&](ReferenceInput& in) {
      in.scale = 1.0 / std::sqrt(D + Dv);
      const auto values = value.repeat_interleave(H / G, 1);
      in.bias = query_of_values.matmul(values.transpose(2, 3)) * *in.scale;
    });
  }
  at::Tensor of_int8() const {
    return given([&](ReferenceInput& in) {
      in.key = int8_key * key_scales.to(torch::kDouble).unsqueeze(3);
      in.value = int8_value * value_scales.to(torch::kDouble).unsqueeze(3);
    });
  }
  at::Tensor gathered() const {
    return seen([&](Place at) { return indices[at.b][0][at.i].eq(at.j).any().item<bool>(); });
  }
  at::Tensor ruled() const {
    const auto all = of_scores([&](Place at) { return rule(at.b, at.h, at.i, at.j); });
    return all.slice(0, 0, 1).slice(1, 0, 1);
  }
  at::Tensor of_one_head() const {
    const auto head = x.unsqueeze(1);
    return given([&](ReferenceInput& in) { in.query = in.key = in.value = head; }).squeeze(1);
  }

  /// The output less that of the weights that were not dropped: zeros.
  at::Tensor dropped(const AttendOptions& options) const {
    const auto [output, weights] = attend_with_weights(query, key, value, options);
    EXPECT_TRUE(weights.eq(0).any().item<bool>());
    const auto kept = weights / plain.weights;
    return output - given([&](ReferenceInput& in) { in.kept = kept; });
  }
};

}  // namespace heed::test::of_other_libraries
