// "Options of other libraries" in docs/conventions.md: heed's code in each row of the table is
// compiled here, runs, and must give what the documentation of the library says.

#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/attend_paged.h>
#include <heed/block_mask.h>
#include <heed/kv_cache.h>
#include <heed/merge_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/quantize.h>
#include <heed/rotary_embedding.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "support/expect.h"
#include "support/reference.h"
#include "support/seeds.h"

namespace heed::test {
namespace {

using Results = std::vector<at::Tensor>;

Results results(const at::Tensor& output) { return {output}; }
Results results(const std::tuple<at::Tensor, at::Tensor>& outputs) {
  return {std::get<0>(outputs), std::get<1>(outputs)};
}
Results results(const Results& outputs) { return outputs; }

Results output_and_lse(const ReferenceResult& result) { return {result.output, result.lse}; }
Results output_and_weights(const ReferenceResult& result) {
  return {result.output, result.weights};
}

/// An element of the scores.
struct Place {
  int64_t b, h, i, j;
};

/// Whether a query at position p sees key j.
using Sees = bool (*)(int64_t p, int64_t j);

bool any(int64_t /*p*/, int64_t /*j*/) { return true; }
bool causal(int64_t p, int64_t j) { return j <= p; }
bool near(int64_t p, int64_t j) { return p - 2 <= j && j <= p + 1; }  // by `left` and `right`
bool causal_near(int64_t p, int64_t j) { return p - 2 <= j && j <= p; }
bool last(int64_t p, int64_t j) { return p - 3 < j && j <= p; }  // by `W`
bool in_chunk(int64_t p, int64_t j) { return p / 4 == j / 4; }

/// Draws the tensors that the code of the page names, float64 unless a name says otherwise.
at::Tensor drawn(at::IntArrayRef sizes) { return torch::randn(sizes, torch::kDouble); }

/// The tensors and numbers that the code of the page names, and what definitions give for them.
class Given {
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

  Given() {
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

/// A row of the table. A row without code says what heed has not.
struct TableRow {
  std::string library, option, code;
  Results actual, expected;
};

// The code of a row, as text and as a value; `expected` comes before it, for it may have commas.
#define OPTIONS(option, expected, ...)                                                       \
  add(option, #__VA_ARGS__, results(attend(query, key, value, AttendOptions().__VA_ARGS__)), \
      results(expected))
#define CALL(option, expected, ...) \
  add(option, #__VA_ARGS__, results(__VA_ARGS__), results(expected))
#define DROPOUT(option, ...)                                        \
  add(option, #__VA_ARGS__, {dropped(AttendOptions().__VA_ARGS__)}, \
      {torch::zeros({B, H, L, Dv}, torch::kDouble)})

/// The rows of the table, in its order.
class OptionsOfOtherLibraries : public Given {
 public:
  OptionsOfOtherLibraries() {
    add_sdpa();
    add_varlen_attn();
    add_flash_attention_1();
    add_flash_attention_2();
    add_flash_attention_3();
    add_flash_attention_4();
    add_flex_attention_1();
    add_flex_attention_2();
    add_xformers_1();
    add_xformers_2();
    add_xformers_3();
    add_xformers_4();
    add_onnx_1();
    add_onnx_2();
    add_mlx();
  }

  std::vector<TableRow> rows;

 private:
  void add_sdpa() {
    library = "SDPA";
    OPTIONS("`attn_mask`, bool", sdpa(mask), mask(mask));
    OPTIONS("`attn_mask`, floating", sdpa(bias), bias(bias));
    DROPOUT("`dropout_p`", dropout(p));
    OPTIONS("`is_causal=True`", sdpa({}, /*causal=*/true), causal(true).top_left(true));
    OPTIONS("`attn_mask` and `is_causal`", at_start(causal, mask),
            mask(mask).causal(true).top_left(true));
    OPTIONS("`scale`", sdpa({}, false, scale), scale(scale));
    CALL("`enable_gqa=True`", sdpa({}), attend(query, key, value));
    OPTIONS("`causal_upper_left(L, S)`", at_start(causal), causal(true).top_left(true));
    OPTIONS("`causal_lower_right(L, S)`", at_end(causal), causal(true));
    CALL("nested tensors", packed(any), attend_varlen(q, k, v, offsets, key_offsets));
    add("`sdpa_kernel(backends)`", "no", {}, {});
  }

  void add_varlen_attn() {
    library = "`varlen_attn`";
    CALL("`cu_seq_q`, `cu_seq_k`, `max_q`, `max_k`", packed(any),
         attend_varlen(q, k, v, offsets, key_offsets));
    CALL("`window_size=(left, right)`", packed(near),
         attend_varlen(q, k, v, offsets, key_offsets,
                       AttendOptions().left_window(left).right_window(right)));
    CALL("`window_size=(-1, 0)`", packed(causal),
         attend_varlen(q, k, v, offsets, key_offsets, AttendOptions().causal(true)));
    CALL("`return_aux=AuxRequest(lse=True)`", packed_output_and_lse(),
         attend_varlen_with_lse(q, k, v, offsets, key_offsets));
    CALL("`scale`", packed(any, scale),
         attend_varlen(q, k, v, offsets, key_offsets, AttendOptions().scale(scale)));
    CALL("`enable_gqa=True`", packed(any), attend_varlen(q, k, v, offsets, key_offsets));
    CALL("`block_table`, `seqused_k`", paged(any),
         attend_paged(q, key_pages, value_pages, page_table, offsets, lengths));
    add("`num_splits`", "no", {}, {});
    add("`varlen_attn_out(out, …)`", "no", {}, {});
  }

  void add_flash_attention_1() {
    library = "FlashAttention";
    CALL("`q`, `k`, `v` `[B, L, H, D]`", query, blhd.transpose(1, 2));
    CALL("`qkv` `[B, L, 3, H, D]`", at::stack({query, query + 1, query + 2}),
         qkv.permute({2, 0, 3, 1, 4}));
    DROPOUT("`dropout_p`", dropout(p));
    OPTIONS("`softmax_scale`", given([&](ReferenceInput& in) { in.scale = scale; }), scale(scale));
    OPTIONS("`causal=True`", at_end(causal), causal(true));
    OPTIONS("`window_size=(left, right)`", at_end(near), left_window(left).right_window(right));
    OPTIONS("`window_size=(W - 1, 0)`, `causal=True`", at_end(last), causal(true).window(W));
    OPTIONS("`softcap`", given([&](ReferenceInput& in) { in.softcap = cap; }), softcap(cap));
    OPTIONS("`alibi_slopes`",
            adding([&](Place a) { return -slope(a) * std::abs(a.i + S - L - a.j); }),
            alibi_slopes(slopes));
  }

  void add_flash_attention_2() {
    add("`deterministic=True`", "no", {}, {});
    CALL("`return_attn_probs=True`", output_and_weights(plain),
         attend_with_weights(query, key, value));
    CALL("`softmax_lse`", output_and_lse(plain), attend_with_lse(query, key, value));
    CALL("`cu_seqlens_q`, `cu_seqlens_k`, `max_seqlen_q`, `max_seqlen_k`", packed(any),
         attend_varlen(q, k, v, offsets, key_offsets));
    CALL("`block_table`, `cache_seqlens`", paged(causal),
         attend_paged(q, key_pages, value_pages, page_table, offsets, lengths,
                      AttendOptions().causal(true)));
    OPTIONS("`cache_seqlens`", seen([&](Place a) { return a.j < length(a.b); }),
            key_lengths(lengths));
    OPTIONS("`cache_seqlens`, `causal=True`",
            seen([&](Place a) { return a.j <= a.i + length(a.b) - L; }),
            key_lengths(lengths).causal(true));
    cache.append(new_key, new_value);
    add("`k`, `v` beside a cache", "cache.append(new_key, new_value)",
        results(attend(query, cache.keys(), cache.values(), AttendOptions().causal(true))),
        results(at_end(causal)));
    CALL("`rotary_cos`, `rotary_sin`, `rotary_interleaved=False`", rotated(/*interleaved=*/false),
         rotary->rotate(query, {cos, sin}));
    CALL("`rotary_interleaved=True`", rotated(/*interleaved=*/true),
         RotaryEmbedding(RotaryEmbeddingOptions(D).pairing(RotaryPairing::interleaved))
             ->rotate(query, {cos, sin}));
    CALL("`cache_batch_idx`", given([&](ReferenceInput& in) {
           in.key = key.flip(0);
           in.value = value.flip(0);
         }),
         attend(query, key.index_select(0, batches), value.index_select(0, batches)));
    OPTIONS("`cache_leftpad`", seen([&](Place a) { return a.j >= (a.b == 0 ? 0 : 3); }),
            mask(torch::arange(S) >= first.view({-1, 1, 1, 1})));
    add("`num_splits`", "no", {}, {});
  }

  void add_flash_attention_3() {
    library = "FlashAttention 3";
    CALL("`qv`", with_query_of_values(),
         attend(torch::cat({query, query_of_values}, 3), torch::cat({key, value}, 3), value));
    CALL("`k_descale`, `v_descale`", of_int8(),
         attend(query, int8_key, int8_value,
                AttendOptions().key_scales(key_scales).value_scales(value_scales)));
    OPTIONS("`attention_chunk`", at_end(in_chunk),
            documents((torch::arange(L) + S - L).div(chunk, "floor"))
                .key_documents(torch::arange(S).div(chunk, "floor")));
    OPTIONS("`seqused_q`, `seqused_k`",
            seen([&](Place a) { return a.i < query_length(a.b) && a.j < length(a.b); }),
            query_lengths(query_lengths).key_lengths(lengths));
    CALL("`rotary_seqlens`", rotated_from(lengths),
         rotary->forward(query, lengths.view({-1, 1}) + torch::arange(L)));
    CALL("`page_table`, `cu_seqlens_q`", paged(causal),
         attend_paged(q, key_pages, value_pages, page_table, offsets, lengths,
                      AttendOptions().causal(true)));
    CALL("`flash_attn_combine`", output_and_lse(plain),
         merge_attention({first_output, second_output}, {first_lse, second_lse}));
    add("`pack_gqa`, `sm_margin`, `scheduler_metadata`", "no", {}, {});
  }

  void add_flash_attention_4() {
    library = "FlashAttention 4";
    OPTIONS("`learnable_sink`", given([&](ReferenceInput& in) { in.sinks = sinks; }), sinks(sinks));
    OPTIONS("`mask_mod`, `aux_tensors`, `block_sparse_tensors`",
            seen([&](Place a) { return rule(a.b, a.h, a.i, a.j); }),
            block_mask(make_block_mask(1, 1, L, S, rule)));
    OPTIONS("`gather_kv_indices`", gathered(),
            mask(torch::zeros({B, 1, L, S}, torch::kBool).scatter(3, indices, true)));
    add("`score_mod`, `score_mod_bwd`", "no", {}, {});
    add("`min_seqlen_k`, `seqlen_k_per_split`", "no", {}, {});
  }

  void add_flex_attention_1() {
    library = "FlexAttention";
    add("`score_mod`, any function", "no", {}, {});
    OPTIONS("`score_mod`: `score + table[h, kv_idx - q_idx + R]`",
            adding([&](Place a) { return entry(a.h, a.j - a.i); }),
            relative_bias(table).top_left(true));
    OPTIONS("`score_mod`: `score - slopes[b, h] * (q_idx - kv_idx).abs()`",
            adding([&](Place a) { return -slope(a) * std::abs(a.i - a.j); }),
            alibi_slopes(slopes).top_left(true));
    OPTIONS("`score_mod`: `cap * tanh(score / cap)`",
            given([&](ReferenceInput& in) { in.softcap = cap; }), softcap(cap));
    OPTIONS("`create_block_mask(mask_mod, None, None, L, S)`",
            seen([&](Place a) { return rule(a.b, a.h, a.i, a.j); }),
            block_mask(make_block_mask(1, 1, L, S, rule)));
    CALL("`create_mask`", ruled(), make_block_mask(1, 1, L, S, rule).mask());
    OPTIONS("`mask_mod`: `q_idx >= kv_idx`", at_start(causal), causal(true).top_left(true));
    OPTIONS("`mask_mod`: `(q_idx >= kv_idx) & (q_idx - kv_idx <= left)`", at_start(causal_near),
            causal(true).left_window(left).top_left(true));
  }

  void add_flex_attention_2() {
    OPTIONS("`mask_mod`: `ids[q_idx] == key_ids[kv_idx]`",
            seen([&](Place a) { return id(ids, a.i) == id(key_ids, a.j); }),
            documents(ids).key_documents(key_ids));
    OPTIONS("`and_masks`",
            seen([&](Place a) { return a.j <= a.i + S - L && id(ids, a.i) == id(key_ids, a.j); }),
            documents(ids).key_documents(key_ids).causal(true));
    OPTIONS("`scale`", given([&](ReferenceInput& in) { in.scale = scale; }), scale(scale));
    CALL("`enable_gqa=True`", plain.output, attend(query, key, value));
    CALL("`return_aux=AuxRequest(lse=True)`", output_and_lse(plain),
         attend_with_lse(query, key, value));
    add("`AuxRequest(max_scores=True)`", "no", {}, {});
    add("`BlockMask.from_kv_blocks`", "no", {}, {});
    add("`BLOCK_SIZE`, `kernel_options`", "no", {}, {});
  }

  void add_xformers_1() {
    library = "xformers";
    CALL("`[B, M, H, K]`", query, blhd.transpose(1, 2));
    CALL("`[B, M, K]`", of_one_head(),
         attend(x.unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1)).squeeze(1));
    CALL("`[B, M, G, H, K]`", plain.output,
         attend(q5.flatten(2, 3).transpose(1, 2), k5.select(3, 0).transpose(1, 2),
                v5.select(3, 0).transpose(1, 2)));
    OPTIONS("`attn_bias`, a tensor", given([&](ReferenceInput& in) { in.bias = bias; }),
            bias(bias));
    DROPOUT("`p`", dropout(p));
    OPTIONS("`scale`", given([&](ReferenceInput& in) { in.scale = scale; }), scale(scale));
    CALL("`output_dtype`", plain.output, attend(query, key, value).to(torch::kFloat));
  }

  void add_xformers_2() {
    add("`op`", "no", {}, {});
    OPTIONS("`LowerTriangularMask`", at_start(causal), causal(true).top_left(true));
    OPTIONS("`LowerTriangularFromBottomRightMask`", at_end(causal), causal(true));
    OPTIONS("`LowerTriangularFromBottomRightLocalAttentionMask(W)`", at_end(last),
            causal(true).window(W));
    OPTIONS("`LocalAttentionFromBottomRightMask(left, right)`", at_end(near),
            left_window(left).right_window(right));
    OPTIONS("`LowerTriangularMaskWithTensorBias(bias)`", at_start(causal, {}, bias),
            causal(true).top_left(true).bias(bias));
    CALL("`BlockDiagonalMask`", packed(any), attend_varlen(q, k, v, offsets, key_offsets));
    CALL("`BlockDiagonalCausalMask`", packed_at_start(causal),
         attend_varlen(q, k, v, offsets, key_offsets, AttendOptions().causal(true).top_left(true)));
    CALL("`BlockDiagonalCausalFromBottomRightMask`", packed(causal),
         attend_varlen(q, k, v, offsets, key_offsets, AttendOptions().causal(true)));
  }

  void add_xformers_3() {
    CALL("`BlockDiagonalCausalLocalAttentionMask(W)`", packed_at_start(last),
         attend_varlen(q, k, v, offsets, key_offsets,
                       AttendOptions().causal(true).top_left(true).window(W)));
    CALL("`BlockDiagonalCausalLocalAttentionFromBottomRightMask(W)`", packed(last),
         attend_varlen(q, k, v, offsets, key_offsets, AttendOptions().causal(true).window(W)));
    CALL("`BlockDiagonalPaddedKeysMask`", paged(any),
         attend_paged(q, key_pages, value_pages, page_table, offsets, lengths));
    CALL("`BlockDiagonalCausalWithOffsetPaddedKeysMask`", paged(causal),
         attend_paged(q, key_pages, value_pages, page_table, offsets, lengths,
                      AttendOptions().causal(true)));
    CALL("`BlockDiagonalLocalAttentionPaddedKeysMask(left, right)`", paged(near),
         attend_paged(q, key_pages, value_pages, page_table, offsets, lengths,
                      AttendOptions().left_window(left).right_window(right)));
    CALL("`BlockDiagonalCausalLocalAttentionPaddedKeysMask(W)`", paged(last),
         attend_paged(q, key_pages, value_pages, page_table, offsets, lengths,
                      AttendOptions().causal(true).window(W)));
    CALL("`PagedBlockDiagonalPaddedKeysMask`", paged(any),
         attend_paged(q, key_pages, value_pages, page_table, offsets, lengths));
  }

  void add_xformers_4() {
    CALL("`PagedBlockDiagonalCausalWithOffsetPaddedKeysMask`", paged(causal),
         attend_paged(q, key_pages, value_pages, page_table, offsets, lengths,
                      AttendOptions().causal(true)));
    CALL("`BlockDiagonalGappyKeysMask`", packed(any),
         attend_varlen(q, gappy_k.index_select(0, used), gappy_v.index_select(0, used), offsets,
                       key_offsets));
    CALL("`BlockDiagonalCausalWithOffsetGappyKeysMask`", packed(causal),
         attend_varlen(q, gappy_k.index_select(0, used), gappy_v.index_select(0, used), offsets,
                       key_offsets, AttendOptions().causal(true)));
    add("`PagedBlockDiagonalGappyKeysMask`, `PagedBlockDiagonalCausalWithOffsetGappyKeysMask`",
        "no", {}, {});
    CALL("`memory_efficient_attention_partial`, `…_forward_requires_grad`", output_and_lse(plain),
         attend_with_lse(query, key, value));
    CALL("`merge_attentions`", output_and_lse(plain),
         merge_attention({first_output, second_output}, {first_lse, second_lse}));
  }

  void add_onnx_1() {
    library = "ONNX `Attention`";
    CALL("`q_num_heads`, `kv_num_heads`, inputs of rank 3", plain.output.transpose(1, 2).flatten(2),
         multi_head_attention(query3, key3, value3, H));
    OPTIONS("`attn_mask`, bool", given([&](ReferenceInput& in) { in.mask = mask; }), mask(mask));
    OPTIONS("`attn_mask`, bool, with fewer keys", given([&](ReferenceInput& in) {
              in.mask = mask.clone();
              in.mask.slice(3, 7).fill_(false);
            }),
            mask(torch::constant_pad_nd(shorter_mask, {0, S - 7})));
    OPTIONS("`attn_mask`, floating", given([&](ReferenceInput& in) { in.bias = bias; }),
            bias(bias));
    OPTIONS("`is_causal=1`", at_start(causal), causal(true).top_left(true));
    CALL("`is_causal=1`, `past_key`, `past_value`", at_end(causal),
         attend(query, torch::cat({past_key, new_key}, 2), torch::cat({past_value, new_value}, 2),
                AttendOptions().causal(true)));
    OPTIONS("`nonpad_kv_seqlen`", seen([&](Place a) { return a.j < length(a.b); }),
            key_lengths(lengths));
    OPTIONS("`is_causal=1`, `nonpad_kv_seqlen`",
            seen([&](Place a) { return a.j <= a.i + length(a.b) - L; }),
            key_lengths(lengths).causal(true));
  }

  void add_onnx_2() {
    OPTIONS("`scale`", given([&](ReferenceInput& in) { in.scale = scale; }), scale(scale));
    OPTIONS("`softcap`", given([&](ReferenceInput& in) { in.softcap = cap; }), softcap(cap));
    CALL("`qk_matmul_output_mode=3`", output_and_weights(plain),
         attend_with_weights(query, key, value));
    add("`qk_matmul_output_mode` 0 to 2", "no", {}, {});
    add("`softmax_precision`", "no", {}, {});
    OPTIONS("`left_window_size`, `right_window_size` (version 25)", at_start(near),
            left_window(left).right_window(right).top_left(true));
  }

  void add_mlx() {
    library = "MLX";
    OPTIONS("`scale`", given([&](ReferenceInput& in) { in.scale = scale; }), scale(scale));
    CALL("`k`, `v` of fewer heads", plain.output, attend(query, key, value));
    OPTIONS("`mask=\"causal\"`", at_end(causal), causal(true));
    OPTIONS("`mask`, bool", given([&](ReferenceInput& in) { in.mask = mask; }), mask(mask));
    OPTIONS("`mask`, floating", given([&](ReferenceInput& in) { in.bias = bias; }), bias(bias));
    OPTIONS("`sinks`", given([&](ReferenceInput& in) { in.sinks = sinks; }), sinks(sinks));
    add("`force_fused`, `stream`", "no", {}, {});
  }

  void add(const std::string& option, const std::string& code, const Results& actual,
           const Results& expected) {
    rows.push_back({library, option, code, actual, expected});
  }

  std::string library;
};

#undef OPTIONS
#undef CALL
#undef DROPOUT

TEST(OtherLibraries, HaveOptionsThatHeedHas) {
  torch::manual_seed(moved(0));
  const OptionsOfOtherLibraries table;
  for (const auto& row : table.rows) {
    EXPECT_TRUE(are_close(row.actual, row.expected, 1e-6)) << row.library << ", " << row.option;
  }
}

/// Code without spaces, which the formatting of this file may change.
std::string without_spaces(std::string code) {
  code.erase(std::remove(code.begin(), code.end(), ' '), code.end());
  return code;
}

std::string row_name(const std::string& library, const std::string& option,
                     const std::string& code) {
  return library + " | " + option + " | " + without_spaces(code);
}

TEST(OtherLibraries, AreInTheTableOfThePage) {
  std::ifstream page(HEED_CONVENTIONS_PAGE);
  std::vector<std::string> shown, compiled;
  std::string line;
  while (std::getline(page, line) && line.rfind("| library | its option |", 0) != 0) {
  }
  std::getline(page, line);
  while (std::getline(page, line) && line.rfind("| ", 0) == 0) {
    std::vector<std::string> cells;
    for (size_t begin = 2, end = 0; cells.size() < 3; begin = end + 3) {
      end = line.find(" | ", begin);
      ASSERT_NE(end, std::string::npos) << line;
      cells.push_back(line.substr(begin, end - begin));
    }
    shown.push_back(row_name(cells[0], cells[1], cells[2]));
  }
  torch::manual_seed(moved(0));
  const OptionsOfOtherLibraries table;
  for (const auto& row : table.rows) {
    const auto code = row.code == "no" ? row.code : '`' + row.code + '`';
    compiled.push_back(row_name(row.library, row.option, code));
  }
  EXPECT_EQ(shown, compiled);
}

}  // namespace
}  // namespace heed::test
