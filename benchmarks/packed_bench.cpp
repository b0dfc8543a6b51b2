// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/pad_sequence.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <heed/attend.h>
#include <heed/masks.h>

#include "rows.h"

namespace heed::bench {

namespace {

constexpr int64_t kPackedHeads = 8;
constexpr int64_t kPackedHeadDim = 64;

/// Sequences end to end, and again padded to the longest.
struct PackedInputs {
  at::Tensor query, key, value;                       // [T, H, D]
  at::Tensor offsets;                                 // [N + 1]
  at::Tensor padded_query, padded_key, padded_value;  // [N, H, L, D]
  std::optional<at::Tensor> mask;                     // [N, 1, 1, L]; none where lengths are equal
};

/// [N, H, L, D], zeros behind each sequence.
at::Tensor pad(const at::Tensor& packed, const std::vector<int64_t>& lengths) {
  return at::pad_sequence(packed.split_with_sizes(lengths), /*batch_first=*/true).transpose(1, 2);
}

/// [T, H, D] of what `pad` made.
at::Tensor unpad(const at::Tensor& padded, const std::vector<int64_t>& lengths) {
  std::vector<at::Tensor> sequences;
  for (size_t n = 0; n < lengths.size(); ++n) {
    sequences.push_back(padded[static_cast<int64_t>(n)].narrow(1, 0, lengths[n]).transpose(0, 1));
  }
  return at::cat(sequences);
}

PackedInputs make_packed(const std::vector<int64_t>& lengths) {
  const auto counts = at::tensor(lengths, at::kLong);
  const auto total = counts.sum().item<int64_t>();
  const auto tokens = [total] { return at::randn({total, kPackedHeads, kPackedHeadDim}); };
  PackedInputs in{tokens(), tokens(), tokens(), {}, {}, {}, {}, {}};
  in.offsets = at::cat({at::zeros({1}, at::kLong), counts.cumsum(0)});
  in.padded_query = pad(in.query, lengths);
  in.padded_key = pad(in.key, lengths);
  in.padded_value = pad(in.value, lengths);
  const auto longest = in.padded_key.size(2);
  if (counts.min().item<int64_t>() < longest) in.mask = padding_mask(counts, longest);
  return in;
}

at::Tensor packed(PackedInputs& in) {
  return attend_varlen(in.query, in.key, in.value, in.offsets, in.offsets);
}

/// Padding and its removal are not the attention's: as if a model were padded throughout.
at::Tensor padded(PackedInputs& in) {
  return at::scaled_dot_product_attention(in.padded_query, in.padded_key, in.padded_value, in.mask);
}

double packed_flops(const std::vector<int64_t>& lengths) {
  double sum = 0.0;
  for (const auto length : lengths) {
    sum += 4.0 * kPackedHeads * kPackedHeadDim * static_cast<double>(length * length);
  }
  return sum;
}

/// 16 sequences of lengths from `shortest` to `longest`, evenly apart.
template <int64_t shortest, int64_t longest>
void add_packed(Rows& rows, const char* name, double target) {
  static const auto lengths = [] {
    std::vector<int64_t> result;
    for (int64_t n = 0; n < 16; ++n) result.push_back(shortest + (longest - shortest) * n / 15);
    return result;
  }();
  RowTraits traits;
  traits.flops = packed_flops(lengths);
  add_row<PackedInputs>(
      rows, name, traits, [] { return make_packed(lengths); },
      {{"heed", packed}, {"SDPA, padded", padded, target, [](const at::Tensor& output) {
                            return unpad(output, lengths);
                          }}});
}

}  // namespace

void add_packed_rows(Rows& rows) {
  add_packed<16, 1024>(rows, "packed/lengths16to1024", 2.0);
  add_packed<256, 256>(rows, "packed/lengths256", 1.0 / 1.05);
}

}  // namespace heed::bench
