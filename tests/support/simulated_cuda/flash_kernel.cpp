// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "support/simulated_cuda/packed_attention.h"
#include "support/simulated_cuda/recording.h"

/// FlashAttention-2.

namespace heed::test::kernels {

namespace {

struct FlashCall {
  Tensor query, key, value;
  std::optional<Tensor> query_offsets, key_offsets, key_lengths;
  c10::SymInt longest_query, longest_key;
  double dropout;
  bool causal;
  std::optional<double> scale;
  std::optional<c10::SymInt> left, right;

  bool is_packed() const { return query_offsets.has_value() && query_offsets->defined(); }

  void check() const {
    TORCH_CHECK(query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16,
                "FlashAttention only support fp16 and bf16 data type");  // FA:372
    TORCH_CHECK(
        key.scalar_type() == query.scalar_type() && value.scalar_type() == key.scalar_type(),
        "query and key must have the same dtype");  // BIN
    // FA:350, 579
    TORCH_CHECK(query.dim() == (is_packed() ? 3 : 4), "query has ", query.dim(), " dims");
    const auto head_dim = query.size(-1), heads = query.size(-2), groups = key.size(-2);
    TORCH_CHECK(head_dim % 8 == 0,
                "head_size must be a multiple of 8, this is ensured by padding!");  // FA:395
    TORCH_CHECK(head_dim <= 256,
                "FlashAttention forward only supports head dimension at most 256");  // FA:396
    TORCH_CHECK(heads % groups == 0,
                "Number of heads in key/value must divide number of heads in query");  // FA:397
    TORCH_CHECK(value.sizes() == key.sizes() && key.size(-1) == head_dim,
                "v must have shape (batch_size, seqlen_k, num_heads_k, head_size_og)");  // FA:419
    for (const auto* tensor : {&query, &key, &value}) {
      TORCH_CHECK(tensor->stride(-1) == 1,
                  "Input tensor must have contiguous last dimension");  // FA:382-384
      check_alignment("flash", *tensor);
    }
    TORCH_CHECK(!scale || *scale > 0,
                "simulated CUDA: flash takes no scale <= 0");  // softmax.h:108
    // ATT:926
    TORCH_CHECK(is_packed() == (key_offsets.has_value() && key_offsets->defined()),
                "cum_seq_q and cum_seq_k must be both set or both not set");
    if (is_packed()) {
      const auto count = query_offsets->size(0);
      check_lengths("cu_seqlens_q", *query_offsets, count);
      check_lengths("cu_seqlens_k", *key_offsets, count);
      // FA:620-628: the grouped decoding case counts on one query a sequence.
      const bool decodes =
          longest_query == 1 && heads > groups && dropout == 0.0 && !left && !right;
      TORCH_CHECK(!decodes || query.size(0) == count - 1,
                  "simulated CUDA: with max_q 1 every sequence must have one query");
      if (key_lengths) check_lengths("seqused_k", *key_lengths, count - 1);
    } else {
      TORCH_CHECK(query.size(0) > 0 && query.size(1) > 0,
                  "CUDA error: invalid configuration argument");  // FA:525
    }
  }

  /// FA:399-404, ATT:920: both ends belong to the window; causal overwrites the right one. If only
  /// one is given that is narrower than the longest sequence, the other becomes as wide as that
  /// (FA:123).
  Softmax softmax(uint64_t seed) const {
    const auto longest = is_packed() ? longest_key.guard_int(__FILE__, __LINE__) : key.size(1);
    const auto end = [&](const std::optional<c10::SymInt>& given) {
      const auto size = given ? given->guard_int(__FILE__, __LINE__) : -1;
      return size >= longest ? -1 : size;
    };
    Span span;
    span.left = end(left);
    span.right = causal ? 0 : end(right);
    if (span.left >= 0 && span.right < 0) span.right = longest;
    if (span.left < 0 && span.right > 0) span.left = longest;
    return {scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1)))), dropout, span,
            seed};
  }

  std::vector<Sequence> sequences() const {
    // Lengths of keys are ignored without offsets (FA:473).
    return is_packed() ? sequences_between(*query_offsets, *key_offsets, or_undefined(key_lengths))
                       : sequences_of_batch(query, key);
  }
};

/// Dense: [B, H, L]; packed: [H, T] (META:6671). +inf where there is no key (softmax.h:176).
Tensor flash_lse(const FlashCall& call, const std::vector<Sequence>& sequences,
                 const std::vector<Tensor>& lses) {
  const auto heads = call.query.size(-2);
  if (!call.is_packed()) {
    const auto all = at::stack(lses);
    return all.masked_fill(all.isinf(), kInfinity).to(at::kFloat);
  }
  const auto all = at::full({heads, call.query.size(0)}, NAN, at::kFloat);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto& s = sequences[i];
    all.narrow(1, s.first_query, s.queries).copy_(lses[i].masked_fill(lses[i].isinf(), kInfinity));
  }
  return all;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_forward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const std::optional<Tensor>& query_offsets, const std::optional<Tensor>& key_offsets,
    c10::SymInt longest_query, c10::SymInt longest_key, double dropout, bool causal,
    bool return_debug_mask, std::optional<double> scale, std::optional<c10::SymInt> left,
    std::optional<c10::SymInt> right, const std::optional<Tensor>& key_lengths,
    const std::optional<Tensor>& alibi_slopes, const std::optional<Tensor>& block_table,
    std::optional<int64_t> /*num_splits*/) {
  constexpr auto kName = "aten::_flash_attention_forward";
  count_launch(kName);
  TORCH_CHECK(!alibi_slopes || !alibi_slopes->defined(),
              "This flash attention build does not support alibi.");  // BIN
  TORCH_CHECK(!block_table || !block_table->defined(), "simulated CUDA: no pages");
  TORCH_CHECK(!return_debug_mask || dropout > 0,
              "return_softmax is only supported when p_dropout > 0.0");  // BIN
  const FlashCall call{query,       key,           value,       query_offsets, key_offsets,
                       key_lengths, longest_query, longest_key, dropout,       causal,
                       scale,       left,          right};
  call.check();
  const auto state = seed_of_device(dropout);
  const auto fault = fault_of(kName);
  const auto sequences = call.sequences();
  const auto found = attend_to(
      pack(query, key, value), sequences, {},
      with_fault(call.softmax(static_cast<uint64_t>(state[0].item<int64_t>())), fault, kName),
      fault);
  const auto output = found.output.to(query.scalar_type()).view(query.sizes());
  return {on_device(output.contiguous()), on_device(flash_lse(call, sequences, found.lses)),
          on_device(state.view(at::kUInt64)), on_device(at::empty({}, at::kUInt64)),
          on_device(at::empty({0}, query.options().device(at::kCPU)))};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& output_gradient, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& output, const Tensor& lse, const Tensor& query_offsets, const Tensor& key_offsets,
    c10::SymInt longest_query, c10::SymInt longest_key, double dropout, bool causal,
    const Tensor& rng_state, const Tensor& /*unused*/, std::optional<double> scale,
    std::optional<c10::SymInt> left, std::optional<c10::SymInt> right) {
  constexpr auto kName = "aten::_flash_attention_backward";
  count_launch(kName);
  const auto defined = [](const Tensor& x) {
    return x.defined() ? std::optional(x) : std::nullopt;
  };
  const FlashCall call{query,
                       key,
                       value,
                       defined(query_offsets),
                       defined(key_offsets),
                       {},
                       longest_query,
                       longest_key,
                       dropout,
                       causal,
                       scale,
                       left,
                       right};
  call.check();
  TORCH_CHECK(lse.is_contiguous() && lse.scalar_type() == at::kFloat,
              "simulated CUDA: logsumexp must be contiguous float32");  // FA:854
  const auto seed = dropout > 0 ? on_host(rng_state).view(at::kLong)[0].item<int64_t>() : 0;
  const auto fault = fault_of(kName);
  const auto softmax = with_fault(call.softmax(static_cast<uint64_t>(seed)), fault, kName);
  const auto host_lse = on_host(lse).to(at::kDouble);
  const auto found = gradients_to({query, key, value}, output, output_gradient, call.sequences(),
                                  {}, softmax, /*beyond=*/NAN, [&](const Sequence& s, size_t i) {
                                    return call.is_packed()
                                               ? host_lse.narrow(1, s.first_query, s.queries)
                                               : host_lse[static_cast<int64_t>(i)];
                                  });
  return {found.query, found.key, found.value};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
sdpa_flash(const Tensor& query, const Tensor& key, const Tensor& value, double dropout, bool causal,
           bool return_debug_mask, std::optional<double> scale) {
  count_launch("aten::_scaled_dot_product_flash_attention");
  auto [output, lse, state, unused, debug] = flash_forward(
      query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), {}, {}, query.sym_size(2),
      key.sym_size(2), dropout, causal, return_debug_mask, scale, {}, {}, {}, {}, {}, {});
  return {output.transpose(1, 2), lse,   Tensor(), Tensor(), query.sym_size(2),
          key.sym_size(2),        state, unused,   debug};
}

std::tuple<Tensor, Tensor, Tensor> sdpa_flash_backward(
    const Tensor& output_gradient, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& output, const Tensor& lse, const Tensor& query_offsets, const Tensor& key_offsets,
    c10::SymInt longest_query, c10::SymInt longest_key, double dropout, bool causal,
    const Tensor& state, const Tensor& unused, std::optional<double> scale) {
  const auto turned = [](const Tensor& x) { return x.transpose(1, 2); };
  auto [of_query, of_key, of_value] = flash_backward(
      turned(output_gradient).contiguous(), turned(query), turned(key), turned(value),
      turned(output).contiguous(), lse, query_offsets, key_offsets, std::move(longest_query),
      std::move(longest_key), dropout, causal, state, unused, scale, {}, {});
  return {turned(of_query), turned(of_key), turned(of_value)};
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_flash_attention_forward", Recorded<&flash_forward>::call);
  library.impl("_flash_attention_backward", Recorded<&flash_backward>::call);
  library.impl("_scaled_dot_product_flash_attention", Recorded<&sdpa_flash>::call);
  library.impl("_scaled_dot_product_flash_attention_backward",
               Recorded<&sdpa_flash_backward>::call);
}

}  // namespace

}  // namespace heed::test::kernels
