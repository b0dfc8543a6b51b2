// SPDX-License-Identifier: BSD-3-Clause
// "Options of other libraries" in docs/conventions.md: heed's code in each row of the table is
// compiled here, runs, and must give what the documentation of the library says.

#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/attend_paged.h>
#include <heed/block_mask.h>
#include <heed/merge_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/rotary_embedding.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "table_inputs.h"

namespace heed::test::of_other_libraries {
namespace {

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
class OptionsOfOtherLibraries : public TableInputs {
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
}  // namespace heed::test::of_other_libraries
