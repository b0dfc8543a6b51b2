// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "rows.h"

namespace heed::bench {

namespace {

struct BlockShape {
  int64_t B, H, G, L, S, D, Dv;
  at::ScalarType dtype = at::kFloat;
};

struct BlockInputs {
  at::Tensor query, key, value, output_gradient;
  AttendOptions options;
  std::optional<at::Tensor> sdpa_mask;  // what SDPA needs instead of the options
  bool training;
};

/// A call of `attend`, and SDPA's arguments for the same.
struct Work {
  std::string name;
  BlockShape shape;
  bool training = false;
  std::function<AttendOptions()> options = [] { return AttendOptions(); };
  std::function<std::optional<at::Tensor>(const AttendOptions&)> sdpa_mask =
      [](const AttendOptions&) { return std::optional<at::Tensor>(); };
  bool lesser_peers = false;  // some do less: only the shapes of results are alike
};

BlockInputs make_inputs(const Work& work) {
  const auto& s = work.shape;
  const auto options = work.options();
  // Heads in the memory of [B, L, H, D], as the modules split them.
  const auto heads = [&](int64_t length, int64_t count, int64_t dim) {
    return at::randn({s.B, length, count, dim})
        .to(s.dtype)
        .transpose(1, 2)
        .detach()
        .requires_grad_(work.training);
  };
  return {heads(s.L, s.H, s.D),
          heads(s.S, s.G, s.D),
          heads(s.S, s.G, s.Dv),
          at::ones({s.B, s.H, s.L, s.Dv}, s.dtype),
          options,
          work.sdpa_mask(options),
          work.training};
}

/// The output; in training the gradient of query, those of the others computed too.
at::Tensor finish(const BlockInputs& in, const at::Tensor& output,
                  const std::optional<at::Tensor>& bias) {
  if (!in.training) return output;
  std::vector<at::Tensor> leaves = {in.query, in.key, in.value};
  if (bias && bias->requires_grad()) leaves.push_back(*bias);
  return torch::autograd::grad({output}, leaves, {in.output_gradient}).front();
}

at::Tensor block_heed(BlockInputs& in) {
  return finish(in, attend(in.query, in.key, in.value, in.options), in.options.bias());
}

at::Tensor sdpa(BlockInputs& in, double dropout, bool causal) {
  return finish(in,
                at::scaled_dot_product_attention(
                    in.query, in.key, in.value, in.sdpa_mask, dropout, causal,
                    /*scale=*/std::nullopt, /*enable_gqa=*/in.query.size(1) != in.key.size(1)),
                in.sdpa_mask);
}

at::Tensor block_sdpa(BlockInputs& in) { return sdpa(in, in.options.dropout(), /*causal=*/false); }

/// For scale: SDPA with less to do.
at::Tensor run_sdpa_causal(BlockInputs& in) {
  auto plain = in;
  plain.sdpa_mask.reset();
  return sdpa(plain, 0.0, /*causal=*/true);
}
at::Tensor run_sdpa_without_dropout(BlockInputs& in) { return sdpa(in, 0.0, /*causal=*/false); }

void add(Rows& rows, const Work& work, std::vector<Contestant<BlockInputs>> peers) {
  RowTraits traits;
  traits.training = work.training;
  traits.random = work.lesser_peers || work.options().dropout() > 0.0;
  peers.insert(peers.begin(), {"heed", block_heed});
  const auto& s = work.shape;
  add_row<BlockInputs>(
      rows,
      fmt::format("{}{}/{}x{}x{}x{}x{}", work.name, work.training ? "/training" : "", s.B, s.H, s.L,
                  s.S, s.D),
      traits, [work] { return make_inputs(work); }, peers);
}

void add_dropout_rows(Rows& rows) {
  for (const int64_t L : {128, 512, 2048}) {
    add(rows,
        {"dropout", {2, 8, 8, L, L, 64, 64}, true, [] { return AttendOptions().dropout(0.1); }},
        {{"SDPA", block_sdpa, L == 2048 ? 3.0 : 2.0},
         {"SDPA without dropout", run_sdpa_without_dropout, L == 2048 ? 1.0 / 1.3 : 0.0}});
  }
}

void add_training_rows(Rows& rows) {
  for (const bool causal : {false, true}) {
    add(rows,
        {causal ? "causal" : "plain",
         {2, 8, 8, 2048, 2048, 64, 64},
         true,
         [causal] { return AttendOptions().causal(causal); }},
        {{"SDPA", [causal](BlockInputs& in) { return sdpa(in, 0.0, causal); }, 1.0 / 1.05}});
  }
}

/// bfloat16 beside float32 in the same call.
struct PrecisionInputs {
  BlockInputs half, full;
};

void add_half_training_rows(Rows& rows) {
  for (const bool causal : {false, true}) {
    const BlockShape shape{2, 8, 8, 2048, 2048, 64, 64};
    const auto make = [=] {
      Work work{"", shape, true, [causal] { return AttendOptions().causal(causal); }};
      PrecisionInputs in{{}, make_inputs(work)};
      in.half = in.full;
      for (auto* tensor : {&in.half.query, &in.half.key, &in.half.value}) {
        *tensor = tensor->detach().to(at::kBFloat16).requires_grad_();
      }
      in.half.output_gradient = in.half.output_gradient.to(at::kBFloat16);
      return in;
    };
    RowTraits traits;
    traits.training = true;
    add_row<PrecisionInputs>(
        rows,
        fmt::format("{}_bf16/training/{}x{}x{}x{}x{}", causal ? "causal" : "plain", shape.B,
                    shape.H, shape.L, shape.S, shape.D),
        traits, make,
        {{"heed", [](PrecisionInputs& in) { return block_heed(in.half); }},
         {"float32", [](PrecisionInputs& in) { return block_heed(in.full); }, 1.4,
          [](const at::Tensor& gradient) { return gradient.to(at::kBFloat16); }},
         {"SDPA", [causal](PrecisionInputs& in) { return sdpa(in.half, 0.0, causal); }}});
  }
}

/// One key head, which 8 query heads share, and long sequences: what the backward pass needs beside
/// its gradients shows in the peak.
void add_grouped_rows(Rows& rows) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    add(rows,
        {fmt::format("one_key_head_causal/{}", c10::toString(dtype)),
         {1, 8, 1, 4096, 4096, 64, 64, dtype},
         true,
         [] { return AttendOptions().causal(true); },
         [](const AttendOptions&) { return std::optional<at::Tensor>(); },
         /*lesser_peers=*/true},
        {{"SDPA", run_sdpa_causal}});
  }
}

constexpr int64_t kWindow = 256;

void add_window_rows(Rows& rows) {
  for (const bool training : {false, true}) {
    for (const int64_t L : {4096, 8192, 16384, 32768}) {
      std::vector<Contestant<BlockInputs>> peers = {
          {"SDPA causal", run_sdpa_causal, L < 8192 ? 0.0 : 4.0}};
      // For 32768 keys it would take 1 GiB, and 4 GiB more once LibTorch has converted it.
      const bool has_mask = L < 32768;
      if (has_mask) peers.push_back({"SDPA", block_sdpa, L < 8192 ? 0.0 : 10.0});
      add(rows,
          {"window256",
           {1, 2, 2, L, L, 64, 64},
           training,
           [] { return AttendOptions().causal(true).window(kWindow); },
           [=](const AttendOptions&) -> std::optional<at::Tensor> {
             if (!has_mask) return std::nullopt;
             return window_mask(L, L, kWindow, /*causal=*/true);
           },
           /*lesser_peers=*/true},
          peers);
    }
  }
}

void add_chunk_rows(Rows& rows) {
  constexpr int64_t kKeys = 4096;
  for (const int64_t L : {2, 16, 64}) {
    add(rows,
        {"chunked_prefill",
         {1, 32, 8, L, kKeys, 128, 128},
         false,
         [] { return AttendOptions().causal(true); },
         [L](const AttendOptions&) { return causal_mask(L, kKeys); }},
        {{"SDPA", block_sdpa, 1.3}});
  }
}

void add_prefill_rows(Rows& rows) {
  const BlockShape shape{1, 16, 16, 2048, 2048, 64, 64};
  auto half = shape;
  half.dtype = at::kHalf;
  auto wide = shape;
  wide.Dv = 32;
  auto brain = shape;
  brain.dtype = at::kBFloat16;
  add(rows, {"prefill_fp16", half}, {{"SDPA", block_sdpa, 3.0}});
  add(rows, {"prefill_bf16", brain}, {{"SDPA", block_sdpa, 1.6}});
  add(rows, {"value_dim_32", wide}, {{"SDPA", block_sdpa, 2.0}});
  add(rows, {"causal", shape, false, [] { return AttendOptions().causal(true); }},
      {{"SDPA", [](BlockInputs& in) { return sdpa(in, 0.0, /*causal=*/true); }, 1.1}});
}

void add_bias_rows(Rows& rows) {
  constexpr int64_t kLength = 1024;
  constexpr int64_t kHeads = 8;
  const BlockShape shape{2, kHeads, kHeads, kLength, kLength, 64, 64};
  add(rows,
      {"learned_bias", shape, true,
       [] {
         return AttendOptions().bias(at::randn({1, kHeads, kLength, kLength}).requires_grad_());
       },
       [](const AttendOptions& options) { return options.bias(); }},
      {{"SDPA", block_sdpa, 1.5}});
  add(rows,
      {"alibi_causal", shape, false,
       [] {
         return AttendOptions().bias(at::randn({1, kHeads, 1, kLength})).causal(true);
       },
       [](const AttendOptions& options) {
         return options.bias()->masked_fill(causal_mask(kLength, kLength).logical_not(),
                                            -std::numeric_limits<double>::infinity());
       }},
      {{"SDPA", block_sdpa, 1.0}});
  add(rows,
      {"mask_BLS", shape, false,
       [] {
         return AttendOptions().mask(at::rand({2, kLength, kLength}).gt(0.2));
       },
       [](const AttendOptions& options) { return options.mask()->unsqueeze(1); }},
      {{"SDPA", block_sdpa, 1.0}});
}

}  // namespace

void add_block_rows(Rows& rows) {
  add_dropout_rows(rows);
  add_training_rows(rows);
  add_half_training_rows(rows);
  add_grouped_rows(rows);
  add_window_rows(rows);
  add_chunk_rows(rows);
  add_prefill_rows(rows);
  add_bias_rows(rows);
}

}  // namespace heed::bench
