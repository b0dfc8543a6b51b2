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

/// Memory-efficient attention.

namespace heed::test::kernels {

namespace {

struct EfficientCall {
  Tensor query, key, value, bias;
  std::optional<Tensor> query_offsets, key_offsets, key_lengths;
  double dropout;
  int64_t mask_type;
  std::optional<double> scale;
  std::optional<int64_t> window;

  bool is_packed() const { return query_offsets.has_value() && query_offsets->defined(); }

  void check() const {
    const auto dtype = query.scalar_type();
    TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
                "Only fp32, half & bf16 supported at the moment");  // BIN
    TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4, "Expected 4 dims");
    TORCH_CHECK(query.size(0) == key.size(0), "Expected query.size(0) == key.size(0)");  // BIN
    TORCH_CHECK(query.size(2) == key.size(2), "Expected query.size(2) == key.size(2)");  // ATT:1042
    TORCH_CHECK(!is_packed() || query.size(0) == 1,
                "cu_seqlen only supports batch_size=1");  // ATT:1057
    TORCH_CHECK(mask_type >= 0 && mask_type <= 2, "invalid custom_mask_type");
    TORCH_CHECK(!has_window() || mask_type > 0, "custom_mask_type not supported");  // KF:616
    // Below 2.15 the offset of the diagonal is unsigned (KF:143).
    for (const auto& s : sequences()) {
      TORCH_CHECK(mask_type != 2 || s.keys == 0 || s.queries <= s.keys,
                  "simulated CUDA: custom_mask_type 2 is wrong where L > S");
    }
    TORCH_CHECK(!is_packed() || dropout == 0.0,
                "simulated CUDA: dropout is wrong between offsets");  // KF:206, KB:767
    for (const auto* tensor : {&query, &key, &value}) {
      TORCH_CHECK(tensor->stride(-1) == 1, "last stride must be 1");     // ATT:1249-1254
      check_alignment("cutlassF: no kernel found to launch!", *tensor);  // ATT:1249
    }
    if (!bias.defined()) return;
    TORCH_CHECK(!is_packed(), "cu seqlen + bias not supported");  // BIN, in the backward pass
    TORCH_CHECK(bias.scalar_type() == dtype,
                "invalid dtype for bias - should match query's dtype");  // ATT:1331
    TORCH_CHECK(
        bias.sizes() == at::IntArrayRef({query.size(0), query.size(2), query.size(1), key.size(1)}),
        "bias must be [B, H, L, S]");
    TORCH_CHECK(bias.stride(-1) == 1, "attn_bias: last dim must be contiguous");
    check_alignment("attn_bias is not correctly aligned", bias);  // ATT:1331-1357
  }

  bool has_window() const { return window.value_or(0) > 0; }

  /// KF:889: a window of W keys has the diagonal.
  Softmax softmax(uint64_t seed) const {
    Span span;
    if (mask_type > 0) span.right = 0;
    if (has_window()) span.left = *window - 1;
    span.from_the_end = mask_type == 2;
    return {scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1)))), dropout, span,
            seed};
  }

  std::vector<Sequence> sequences() const {
    // Lengths of keys are ignored without offsets (KF:214).
    return is_packed() ? sequences_between(*query_offsets, *key_offsets, or_undefined(key_lengths))
                       : sequences_of_batch(query, key);
  }
};

/// [sequences, H, L rounded up to 32]: +inf beyond a sequence, 0 where there is no key
/// (KF:1174-1185).
Tensor efficient_lse(int64_t longest, const std::vector<Tensor>& lses) {
  const auto all =
      at::full({static_cast<int64_t>(lses.size()), lses[0].size(0), (longest + 31) / 32 * 32},
               kInfinity, at::kFloat);
  for (size_t i = 0; i < lses.size(); ++i) {
    all[static_cast<int64_t>(i)]
        .narrow(1, 0, lses[i].size(1))
        .copy_(lses[i].masked_fill(lses[i].isinf(), 0.0));
  }
  return all;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt> efficient_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& query_offsets, const std::optional<Tensor>& key_offsets,
    std::optional<c10::SymInt> longest_query, std::optional<c10::SymInt> longest_key,
    double dropout, int64_t mask_type, bool with_lse, std::optional<double> scale,
    const std::optional<Tensor>& key_lengths, std::optional<int64_t> window) {
  constexpr auto kName = "aten::_efficient_attention_forward";
  count_launch(kName);
  const EfficientCall call{query,         key,         value,       or_undefined(bias),
                           query_offsets, key_offsets, key_lengths, dropout,
                           mask_type,     scale,       window};
  call.check();
  TORCH_CHECK(!call.is_packed() || longest_query, "max_seqlen_q must be given with offsets");
  const auto state = seed_of_device(dropout);
  const auto seed = state[0].item<int64_t>();
  const auto fault = fault_of(kName);
  const auto host_bias = on_host(call.bias);
  const auto sequences = call.sequences();
  const auto found =
      attend_to(pack(query, key, value), sequences, host_bias,
                with_fault(call.softmax(static_cast<uint64_t>(seed)), fault, kName), fault);
  const auto longest =
      call.is_packed() ? longest_query->guard_int(__FILE__, __LINE__) : query.size(1);
  auto sizes = query.sizes().vec();
  sizes[3] = value.size(3);
  const auto lse =
      with_lse ? efficient_lse(longest, found.lses)
               : at::empty({static_cast<int64_t>(sequences.size()), query.size(2), 0}, at::kFloat);
  // Below 2.14 the length of keys comes back as 0 between offsets unless it was given (ATT:1401).
  const auto keys = call.is_packed() ? longest_key.value_or(0) : key.sym_size(1);
  return {on_device(found.output.to(query.scalar_type()).view(sizes).contiguous()),
          on_device(lse),
          state[0].clone(),
          state[0].clone(),
          c10::SymInt(longest),
          keys};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& output_gradient, const Tensor& query, const Tensor& key, const Tensor& value,
    const std::optional<Tensor>& bias, const Tensor& output,
    const std::optional<Tensor>& query_offsets, const std::optional<Tensor>& key_offsets,
    c10::SymInt /*longest_query*/, c10::SymInt longest_key, const Tensor& lse, double dropout,
    const Tensor& seed, const Tensor& /*offset*/, int64_t mask_type, bool of_bias,
    std::optional<double> scale, std::optional<int64_t> /*num_splits_key*/,
    std::optional<int64_t> window, bool /*shared_storage*/) {
  constexpr auto kName = "aten::_efficient_attention_backward";
  count_launch(kName);
  const EfficientCall call{query,         key,         value, or_undefined(bias),
                           query_offsets, key_offsets, {},    dropout,
                           mask_type,     scale,       window};
  call.check();
  TORCH_CHECK(!of_bias || call.bias.defined(),
              "bias_requires_grad is true but no bias was provided");                     // BIN
  TORCH_CHECK(!call.is_packed() || longest_key > 0, "max_seqlen_k must be above 0");      // BWD:332
  TORCH_CHECK(longest_key <= key.size(1), "Invalid max_seqlen_k:", longest_key);          // BWD:336
  TORCH_CHECK(output.is_contiguous(), "simulated CUDA: out must be contiguous");          // KB:684
  TORCH_CHECK(lse.size(-1) % 8 == 0 && lse.numel() > 0, "lse is not correctly aligned");  // KB:1189
  TORCH_CHECK(!call.has_window() || mask_type != 2 || query.size(1) == key.size(1),
              "simulated CUDA: windows are shifted where L != S");  // KB:1653
  const auto fault = fault_of(kName);
  const auto number = dropout > 0 ? on_host(seed).item<int64_t>() : 0;
  const auto softmax = with_fault(call.softmax(static_cast<uint64_t>(number)), fault, kName);
  const auto host_lse = on_host(lse).to(at::kDouble);
  const auto found =
      gradients_to({query, key, value}, output, output_gradient, call.sequences(),
                   on_host(call.bias), softmax, /*beyond=*/0.0, [&](const Sequence& s, size_t i) {
                     return host_lse[static_cast<int64_t>(i)].narrow(1, 0, s.queries);
                   });
  for (const auto& s : call.sequences()) {
    // Without keys nothing is written (KB:1290).
    if (s.keys == 0) on_host(found.query).narrow(1, s.first_query, s.queries).fill_(NAN);
  }
  const auto bias_gradient =
      of_bias ? on_device(at::stack(found.biases).to(call.bias.scalar_type())) : Tensor();
  return {found.query, found.key, found.value, bias_gradient};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> sdpa_efficient(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias,
    bool with_lse, double dropout, bool causal, std::optional<double> scale) {
  count_launch("aten::_scaled_dot_product_efficient_attention");
  auto [output, lse, seed, offset, longest_query, longest_key] =
      efficient_forward(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), bias, {},
                        {}, {}, {}, dropout, causal ? 1 : 0, with_lse, scale, {}, {});
  return {output.transpose(1, 2), lse, seed, offset};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> sdpa_efficient_backward(
    const Tensor& output_gradient, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& bias, const Tensor& output, const Tensor& lse, const Tensor& seed,
    const Tensor& offset, double dropout, std::array<bool, 4> wanted, bool causal,
    std::optional<double> scale) {
  if (!output_gradient.defined()) return {};
  const auto turned = [](const Tensor& x) { return x.transpose(1, 2); };
  const auto given_bias = bias.defined() ? std::optional(bias) : std::nullopt;
  auto [of_query, of_key, of_value, of_bias] = efficient_backward(
      turned(output_gradient).contiguous(), turned(query), turned(key), turned(value), given_bias,
      turned(output), {}, {}, query.sym_size(2), key.sym_size(2), lse, dropout, seed, offset,
      causal ? 1 : 0, wanted[3] && bias.defined(), scale, {}, {}, false);
  return {turned(of_query), turned(of_key), turned(of_value), of_bias};
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_efficient_attention_forward", Recorded<&efficient_forward>::call);
  library.impl("_efficient_attention_backward", Recorded<&efficient_backward>::call);
  library.impl("_scaled_dot_product_efficient_attention", Recorded<&sdpa_efficient>::call);
  library.impl("_scaled_dot_product_efficient_attention_backward",
               Recorded<&sdpa_efficient_backward>::call);
}

}  // namespace

}  // namespace heed::test::kernels
