// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <heed/attend.h>
#include <heed/quantize.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "rows.h"
#include "support/limits.h"

namespace heed::bench {

namespace {

struct DecodeShape {
  int64_t B, H, G, L, S, D;
};

struct DecodeInputs {
  at::Tensor query, key, value;
};

at::Tensor decode_heed(DecodeInputs& in) {
  return attend(in.query, in.key, in.value, AttendOptions().causal(true));
}

/// The mask that L > 1 needs: SDPA's own causal mask is top-left.
at::Tensor decode_sdpa(DecodeInputs& in) {
  const auto length = in.query.size(2), key_length = in.key.size(2);
  std::optional<at::Tensor> mask;
  if (length > 1) mask = at::ones({length, key_length}, at::kBool).tril(key_length - length);
  return at::scaled_dot_product_attention(in.query, in.key, in.value, mask, /*dropout_p=*/0.0,
                                          /*is_causal=*/false, /*scale=*/std::nullopt,
                                          /*enable_gqa=*/true);
}

/// As grouped heads are often written: keys and values repeated, scores in memory.
at::Tensor run_repeat(DecodeInputs& in) {
  const auto repeats = in.query.size(1) / in.key.size(1);
  const auto key = in.key.repeat_interleave(repeats, 1);
  const auto value = in.value.repeat_interleave(repeats, 1);
  const auto scores =
      at::matmul(in.query, key.transpose(2, 3)) / std::sqrt(static_cast<double>(in.query.size(3)));
  return at::matmul(at::softmax(scores, -1), value);
}

at::Tensor read_keys_and_values(DecodeInputs& in) {
  return at::tensor({plain_read(in.key), plain_read(in.value)});
}

void add_rows(Rows& rows, const DecodeShape& s, at::ScalarType dtype, double sdpa, double repeat) {
  const auto make = [s, dtype] {
    return DecodeInputs{at::randn({s.B, s.H, s.L, s.D}).to(dtype),
                        at::randn({s.B, s.G, s.S, s.D}).to(dtype),
                        at::randn({s.B, s.G, s.S, s.D}).to(dtype)};
  };
  RowTraits traits;
  traits.bytes = 2.0 * static_cast<double>(s.B * s.G * s.S * s.D * c10::elementSize(dtype));
  traits.flops = 4.0 * static_cast<double>(s.B * s.H * s.L * s.S * s.D);
  const auto name = fmt::format("decode/{}/B{}_H{}_G{}_L{}_S{}_D{}", c10::toString(dtype), s.B, s.H,
                                s.G, s.L, s.S, s.D);
  std::vector<Contestant<DecodeInputs>> contestants = {{"heed", decode_heed},
                                                       {"SDPA", decode_sdpa, sdpa}};
  if (repeat > 0.0) contestants.push_back({"repeat_interleave", run_repeat, repeat});
  contestants.push_back(
      {"a plain read", read_keys_and_values, dtype == at::kFloat ? 0.7 : 0.6, no_result});
  add_row<DecodeInputs>(rows, name, traits, make, contestants);
}

struct Int8Inputs {
  DecodeInputs bfloat16;
  at::Tensor key, value;
  AttendOptions scales;
};

at::Tensor decode_int8(Int8Inputs& in) {
  return attend(in.bfloat16.query, in.key, in.value, in.scales);
}
at::Tensor decode_bfloat16(Int8Inputs& in) { return decode_heed(in.bfloat16); }
at::Tensor read_int8(Int8Inputs& in) {
  return at::tensor({plain_read(in.key), plain_read(in.value)});
}

void add_int8_rows(Rows& rows, const DecodeShape& s) {
  const auto make = [s] {
    Int8Inputs in;
    in.bfloat16.query = at::randn({s.B, s.H, s.L, s.D}).to(at::kBFloat16);
    const auto quantize = [&](at::Tensor* numbers, at::Tensor* heads) {
      at::Tensor scales;
      std::tie(*numbers, scales) = quantize_int8(at::randn({s.B, s.G, s.S, s.D}));
      *heads = (*numbers * scales.unsqueeze(3)).to(at::kBFloat16);
      return scales;
    };
    in.scales.key_scales(quantize(&in.key, &in.bfloat16.key));
    in.scales.value_scales(quantize(&in.value, &in.bfloat16.value));
    return in;
  };
  RowTraits traits;
  traits.bytes = 2.0 * static_cast<double>(s.B * s.G * s.S * (s.D + 4));
  traits.flops = 4.0 * static_cast<double>(s.B * s.H * s.L * s.S * s.D);
  const auto name =
      fmt::format("decode/int8/B{}_H{}_G{}_L{}_S{}_D{}", s.B, s.H, s.G, s.L, s.S, s.D);
  add_row<Int8Inputs>(rows, name, traits, make,
                      {{"heed", decode_int8},
                       {"heed in bfloat16", decode_bfloat16, s.S >= 16384 ? 1.6 : 1.0},
                       {"a plain read", read_int8, 0.6, no_result}});
}

}  // namespace

void add_decode_rows(Rows& rows) {
  for (const int64_t S : {1024, 4096, 16384}) add_int8_rows(rows, {1, 32, 8, 1, S, 128});
  add_int8_rows(rows, {8, 32, 8, 1, 4096, 128});
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double sdpa = dtype == at::kFloat ? 5.0 : 8.0;
    for (const int64_t batch : {1, 8}) {
      for (const int64_t S : {1024, 4096, 16384}) {
        if (batch * S > 65536) continue;  // repeated keys and values would fill the memory
        add_rows(rows, {batch, 32, 8, 1, S, 128}, dtype, sdpa, 10.0);
      }
    }
    add_rows(rows, {1, 32, 32, 1, 4096, 128}, dtype, 1.0, 0.0);
    add_rows(rows, {1, 32, 1, 1, 4096, 128}, dtype, 2.0, 0.0);
    add_rows(rows, {1, 32, 8, 4, 4096, 128}, dtype, 1.3, 0.0);
    add_rows(rows, {16384, 8, 8, 1, 1, 16}, dtype, 1.0, 0.0);
  }
}

}  // namespace heed::bench
