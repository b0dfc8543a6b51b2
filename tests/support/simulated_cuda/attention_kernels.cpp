// The attention of CUDA's kernels, as LibTorch's sources say that they compute it, with what they
// refuse. Comments name the sources: FA is flash_attn/flash_api.cpp, ATT attention.cu and BWD
// attention_backward.cu of PyTorch 2.6 where no other version stands, KF the 2.13
// mem_eff_attention/kernel_forward.h, META the 2.13 _meta_registrations.py.
#include "support/simulated_cuda/attention_kernels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/simulated_cuda/device_tensors.h"
#include "support/simulated_cuda/recording.h"

namespace heed::test {

namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::map<std::string, KernelFault>& faults() {
  static auto* const instance = new std::map<std::string, KernelFault>;
  return *instance;
}

KernelFault fault_of(const std::string& kernel) {
  const auto found = faults().find(kernel);
  return found == faults().end() ? KernelFault::none : found->second;
}

/// The keys of query i: [i + offset - left, i + offset + right]; below 0: all on that side.
struct Span {
  int64_t left = -1, right = -1;
  bool from_the_end = true;  ///< offset S - L, else 0
};

/// One sequence, or one of a batch: rows of tensors [T, H, D].
struct Sequence {
  int64_t first_query, queries, first_key, keys;
};

struct Softmax {
  double scale, dropout;
  Span span;
  uint64_t seed;
};

/// One sequence in float64, heads first.
class Attention {
 public:
  /// query [L, H, D], key [S, G, D], value [S, G, Dv]; bias [H, L, S] or undefined.
  Attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
            const Softmax& softmax, int64_t number)
      : repeats_(query.size(1) / key.size(1)), softmax_(softmax) {
    const auto heads_first = [](const Tensor& x) { return x.to(at::kDouble).transpose(0, 1); };
    query_ = heads_first(query);
    key_ = heads_first(key).repeat_interleave(repeats_, 0);
    value_ = heads_first(value).repeat_interleave(repeats_, 0);
    scores_ = at::matmul(query_, key_.transpose(1, 2)) * softmax.scale;
    if (bias.defined()) scores_ = scores_ + bias.to(at::kDouble);
    scores_.masked_fill_(hidden(), -kInfinity);
    if (softmax.dropout > 0) {
      auto generator =
          at::make_generator<at::CPUGeneratorImpl>(softmax.seed + static_cast<uint64_t>(number));
      kept_ = (at::rand(scores_.sizes(), generator, scores_.options()) >= softmax.dropout)
                  .to(at::kDouble)
                  .div_(1 - softmax.dropout);
    }
  }

  /// [H, L]; -inf for a query without keys.
  Tensor lse() const {
    return scores_.size(2) == 0 ? at::full(scores_.sizes().slice(0, 2), -kInfinity, at::kDouble)
                                : scores_.logsumexp(2);
  }

  /// [L, H, Dv]
  Tensor output(const Tensor& lse) const {
    return at::matmul(dropped(weights(lse)), value_).transpose(0, 1);
  }

  /// Of query, key, value and bias, in the layouts of the constructor.
  std::array<Tensor, 4> gradients(const Tensor& lse, const Tensor& output,
                                  const Tensor& output_gradient) const {
    const auto own_weights = weights(lse);
    const auto of_output = output_gradient.to(at::kDouble).transpose(0, 1);
    const auto delta =
        (of_output * output.to(at::kDouble).transpose(0, 1)).sum(2, /*keepdim=*/true);
    const auto of_weights = dropped(at::matmul(of_output, value_.transpose(1, 2)));
    const auto of_scores = own_weights * (of_weights - delta);
    const auto grouped = [&](const Tensor& x) {
      return x.unflatten(0, {-1, repeats_}).sum(1).transpose(0, 1);
    };
    return {(at::matmul(of_scores, key_) * softmax_.scale).transpose(0, 1),
            grouped(at::matmul(of_scores.transpose(1, 2), query_) * softmax_.scale),
            grouped(at::matmul(dropped(own_weights).transpose(1, 2), of_output)), of_scores};
  }

 private:
  Tensor hidden() const {
    const auto queries = query_.size(1), keys = key_.size(1);
    const auto& span = softmax_.span;
    const auto place = at::arange(queries).unsqueeze(1) + (span.from_the_end ? keys - queries : 0);
    const auto key = at::arange(keys);
    auto hidden = at::zeros({queries, keys}, at::kBool);
    if (span.left >= 0) hidden = hidden | (key < place - span.left);
    if (span.right >= 0) hidden = hidden | (key > place + span.right);
    return hidden;
  }
  Tensor weights(const Tensor& lse) const {
    const auto none = lse.isinf();
    return (scores_ - lse.masked_fill(none, 0.0).unsqueeze(2))
        .exp()
        .masked_fill(none.unsqueeze(2), 0.0);
  }
  Tensor dropped(const Tensor& x) const { return kept_.defined() ? x * kept_ : x; }

  int64_t repeats_;
  Softmax softmax_;
  Tensor query_, key_, value_, scores_, kept_;
};

/// Kernels read 16 bytes at a time.
void check_alignment(const char* name, const Tensor& tensor) {
  const auto elements = 16 / tensor.element_size();
  bool aligned = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
    aligned = aligned && (tensor.size(dim) == 1 || tensor.stride(dim) % elements == 0);
  }
  TORCH_CHECK(aligned, "CUDA error: misaligned address (", name, ")");
}

void check_lengths(const char* name, const Tensor& lengths, int64_t count) {
  TORCH_CHECK(lengths.is_cuda() && lengths.scalar_type() == at::kInt && lengths.is_contiguous() &&
                  lengths.dim() == 1 && lengths.size(0) == count,
              name, " must be int32, on the device, contiguous, of size ", count);  // FA:579-599
}

Tensor or_undefined(const std::optional<Tensor>& tensor) { return tensor.value_or(Tensor()); }

/// Of dense tensors [B, L, H, D] and [B, S, G, D].
std::vector<Sequence> sequences_of_batch(const Tensor& query, const Tensor& key) {
  std::vector<Sequence> sequences;
  for (int64_t b = 0; b < query.size(0); ++b) {
    sequences.push_back({b * query.size(1), query.size(1), b * key.size(1), key.size(1)});
  }
  return sequences;
}

std::vector<Sequence> sequences_between(const Tensor& query_offsets, const Tensor& key_offsets,
                                        const Tensor& key_lengths) {
  const auto queries = on_host(query_offsets), keys = on_host(key_offsets),
             lengths = on_host(key_lengths);
  const auto* query = queries.const_data_ptr<int32_t>();
  const auto* key = keys.const_data_ptr<int32_t>();
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i + 1 < queries.size(0); ++i) {
    const auto length =
        lengths.defined() ? lengths.const_data_ptr<int32_t>()[i] : key[i + 1] - key[i];
    sequences.push_back({query[i], query[i + 1] - query[i], key[i], length});
  }
  return sequences;
}

Tensor rows(const Tensor& tensor, int64_t first, int64_t count) {
  return tensor.narrow(0, first, count);
}

/// The bias [B, H, L, S] of a sequence.
Tensor bias_of(const Tensor& bias, size_t number) {
  return bias.defined() ? bias[static_cast<int64_t>(number)] : bias;
}

struct Packed {
  Tensor query, key, value;  // [T, H, D], of the host
};

Packed pack(const Tensor& query, const Tensor& key, const Tensor& value) {
  const auto flat = [](const Tensor& x) {
    const auto host = on_host(x);
    return host.dim() == 4 ? host.reshape({-1, host.size(2), host.size(3)}) : host;
  };
  return {flat(query), flat(key), flat(value)};
}

struct Results {
  Tensor output;             // [T, H, Dv] in float64, NaN in rows of no sequence
  std::vector<Tensor> lses;  // [H, L] of each sequence
};

Results attend_to(const Packed& packed, const std::vector<Sequence>& sequences, const Tensor& bias,
                  const Softmax& softmax, KernelFault fault) {
  const auto& [query, key, value] = packed;
  Results results;
  results.output = at::full({query.size(0), query.size(1), value.size(2)}, NAN, at::kDouble);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto& s = sequences[i];
    const Attention attention(rows(query, s.first_query, s.queries), rows(key, s.first_key, s.keys),
                              rows(value, s.first_key, s.keys), bias_of(bias, i), softmax,
                              static_cast<int64_t>(i));
    const auto lse = attention.lse();
    auto output = attention.output(lse);
    if (fault == KernelFault::nan_rows) {
      output = output.masked_fill(lse.isinf().transpose(0, 1).unsqueeze(2), NAN);
    }
    rows(results.output, s.first_query, s.queries).copy_(output);
    results.lses.push_back(lse);
  }
  return results;
}

/// Breaks what a kernel is asked for.
Softmax with_fault(Softmax softmax, KernelFault fault, const char* kernel) {
  TORCH_CHECK(fault != KernelFault::throws, kernel, ": CUDA error: an illegal instruction");
  if (fault == KernelFault::window && softmax.span.left > 0) --softmax.span.left;
  if (fault == KernelFault::top_left && softmax.span.right == 0) softmax.span.from_the_end = false;
  return softmax;
}

Tensor seed_of_device(double dropout) {
  const auto seed = dropout > 0 ? static_cast<int64_t>(draw_on_device() >> 1) : 0;
  return at::full({2}, seed, at::kLong);
}

// ---- FlashAttention-2 ----

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
        "query and key must have the same dtype");
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

  /// FA:399-404, ATT:920: both ends belong to the window; causal overwrites the right one.
  Softmax softmax(uint64_t seed) const {
    Span span;
    if (left) span.left = left->guard_int(__FILE__, __LINE__);
    if (right) span.right = right->guard_int(__FILE__, __LINE__);
    if (causal) span.right = 0;
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

Tensor lse_of_sequence(const Tensor& lse, const FlashCall& call, const Sequence& sequence,
                       size_t number) {
  const auto host = on_host(lse).to(at::kDouble);
  return call.is_packed() ? host.narrow(1, sequence.first_query, sequence.queries)
                          : host[static_cast<int64_t>(number)];
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
              "This flash attention build does not support alibi.");
  TORCH_CHECK(!block_table || !block_table->defined(), "simulated CUDA: no pages");
  TORCH_CHECK(!return_debug_mask || dropout > 0,
              "return_softmax is only supported when p_dropout > 0.0");
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
  const auto packed = pack(query, key, value);
  const auto of_output = pack(output_gradient, output, output);
  const auto empty = [](const Tensor& x) { return at::full(x.sizes(), NAN, at::kDouble); };
  std::array<Tensor, 3> sums = {empty(packed.query), empty(packed.key), empty(packed.value)};
  const auto sequences = call.sequences();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto& s = sequences[i];
    const Attention attention(
        rows(packed.query, s.first_query, s.queries), rows(packed.key, s.first_key, s.keys),
        rows(packed.value, s.first_key, s.keys), {}, softmax, static_cast<int64_t>(i));
    const auto found = attention.gradients(lse_of_sequence(lse, call, s, i),
                                           rows(of_output.key, s.first_query, s.queries),
                                           rows(of_output.query, s.first_query, s.queries));
    rows(sums[0], s.first_query, s.queries).copy_(found[0]);
    rows(sums[1], s.first_key, s.keys).copy_(found[1]);
    rows(sums[2], s.first_key, s.keys).copy_(found[2]);
  }
  const auto like = [](const Tensor& x, const Tensor& model) {
    return on_device(x.to(model.scalar_type()).view(model.sizes()).contiguous());
  };
  return {like(sums[0], query), like(sums[1], key), like(sums[2], value)};
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

// ---- Memory-efficient attention ----

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
                "Only fp32, half & bf16 supported at the moment");
    TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4, "Expected 4 dims");
    TORCH_CHECK(query.size(0) == key.size(0), "Expected query.size(0) == key.size(0)");
    TORCH_CHECK(query.size(2) == key.size(2), "Expected query.size(2) == key.size(2)");  // ATT:1042
    TORCH_CHECK(!is_packed() || query.size(0) == 1,
                "cu_seqlen only supports batch_size=1");  // ATT:1057
    TORCH_CHECK(mask_type >= 0 && mask_type <= 2, "invalid custom_mask_type");
    TORCH_CHECK(!has_window() || mask_type > 0, "custom_mask_type not supported");  // KF:616
    // Below 2.15 the offset of the diagonal is unsigned (KF:143).
    TORCH_CHECK(mask_type != 2 || is_packed() || query.size(1) <= key.size(1),
                "simulated CUDA: custom_mask_type 2 is wrong where L > S");
    TORCH_CHECK(!is_packed() || dropout == 0.0,
                "simulated CUDA: dropout is wrong between offsets");  // KF:206, KB:767
    for (const auto* tensor : {&query, &key, &value}) {
      TORCH_CHECK(tensor->stride(-1) == 1, "last stride must be 1");
      check_alignment("cutlassF: no kernel found to launch!", *tensor);  // ATT:1249
    }
    if (!bias.defined()) return;
    TORCH_CHECK(!is_packed(), "simulated CUDA: cu seqlen + bias not supported");
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
              "bias_requires_grad is true but no bias was provided");
  TORCH_CHECK(!call.is_packed() || longest_key > 0, "max_seqlen_k must be above 0");      // BWD:332
  TORCH_CHECK(output.is_contiguous(), "simulated CUDA: out must be contiguous");          // KB:684
  TORCH_CHECK(lse.size(-1) % 8 == 0 && lse.numel() > 0, "lse is not correctly aligned");  // KB:1189
  TORCH_CHECK(!call.has_window() || mask_type != 2 || query.size(1) == key.size(1),
              "simulated CUDA: windows are shifted where L != S");  // KB:1653
  const auto fault = fault_of(kName);
  const auto number = dropout > 0 ? on_host(seed).item<int64_t>() : 0;
  const auto softmax = with_fault(call.softmax(static_cast<uint64_t>(number)), fault, kName);
  const auto packed = pack(query, key, value);
  const auto of_output = pack(output_gradient, output, output);
  const auto host_bias = on_host(call.bias), host_lse = on_host(lse).to(at::kDouble);
  const auto zeros = [](const Tensor& x) { return at::zeros(x.sizes(), at::kDouble); };
  std::array<Tensor, 3> sums = {zeros(packed.query), zeros(packed.key), zeros(packed.value)};
  std::vector<Tensor> of_biases;
  const auto sequences = call.sequences();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto& s = sequences[i];
    const Attention attention(rows(packed.query, s.first_query, s.queries),
                              rows(packed.key, s.first_key, s.keys),
                              rows(packed.value, s.first_key, s.keys), bias_of(host_bias, i),
                              softmax, static_cast<int64_t>(i));
    const auto found =
        attention.gradients(host_lse[static_cast<int64_t>(i)].narrow(1, 0, s.queries),
                            rows(of_output.key, s.first_query, s.queries),
                            rows(of_output.query, s.first_query, s.queries));
    rows(sums[0], s.first_query, s.queries).copy_(found[0]);
    rows(sums[1], s.first_key, s.keys).copy_(found[1]);
    rows(sums[2], s.first_key, s.keys).copy_(found[2]);
    of_biases.push_back(found[3]);
  }
  const auto like = [](const Tensor& x, const Tensor& model) {
    return on_device(x.to(model.scalar_type()).view(model.sizes()).contiguous());
  };
  const auto bias_gradient =
      of_bias ? on_device(at::stack(of_biases).to(call.bias.scalar_type())) : Tensor();
  return {like(sums[0], query), like(sums[1], key), like(sums[2], value), bias_gradient};
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

/// What an A100 can run: 0 math, 1 flash, 2 memory-efficient (SDPU, UCPP).
std::vector<int64_t> possible_choices(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const std::optional<Tensor>& mask, bool causal,
                                      bool enable_gqa) {
  const auto dtype = query.scalar_type();
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  if (query.dim() != 4 || (!half && dtype != at::kFloat)) return {0};
  const auto last_stride = [](const Tensor& x) { return x.stride(-1) == 1; };
  if (!last_stride(query) || !last_stride(key) || !last_stride(value)) return {0};
  if (query.size(2) == 0 || key.size(2) == 0) return {0};
  const bool has_mask = mask && mask->defined();
  const bool same_heads = query.size(1) == key.size(1);
  const bool grouped = enable_gqa && query.size(1) % key.size(1) == 0;
  const bool flash = half && !has_mask && query.size(3) == value.size(3) && query.size(3) <= 256 &&
                     (same_heads || grouped) && !(causal && query.size(2) != key.size(2));
  const auto elements = 16 / query.element_size();
  const bool aligned = query.size(3) % elements == 0 && value.size(3) % elements == 0;
  const bool good_mask = !has_mask || mask->stride(-1) == 1;
  std::vector<int64_t> choices;
  if (flash) choices.push_back(1);
  if (same_heads && aligned && good_mask) choices.push_back(2);
  choices.push_back(0);
  return choices;
}

/// The first that is possible and allowed.
int64_t sdpa_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                    const std::optional<Tensor>& mask, double /*dropout*/, bool causal,
                    std::optional<double> /*scale*/, bool enable_gqa) {
  const auto& context = at::globalContext();
  const std::array<bool, 3> allowed = {context.userEnabledMathSDP(), context.userEnabledFlashSDP(),
                                       context.userEnabledMemEfficientSDP()};
  for (const auto choice : possible_choices(query, key, value, mask, causal, enable_gqa)) {
    if (allowed[static_cast<size_t>(choice)]) return choice;
  }
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_flash_attention_forward", Recorded<&flash_forward>::call);
  library.impl("_flash_attention_backward", Recorded<&flash_backward>::call);
  library.impl("_scaled_dot_product_flash_attention", Recorded<&sdpa_flash>::call);
  library.impl("_scaled_dot_product_flash_attention_backward",
               Recorded<&sdpa_flash_backward>::call);
  library.impl("_efficient_attention_forward", Recorded<&efficient_forward>::call);
  library.impl("_efficient_attention_backward", Recorded<&efficient_backward>::call);
  library.impl("_scaled_dot_product_efficient_attention", Recorded<&sdpa_efficient>::call);
  library.impl("_scaled_dot_product_efficient_attention_backward",
               Recorded<&sdpa_efficient_backward>::call);
  library.impl("_fused_sdp_choice", sdpa_choice);
}

}  // namespace

namespace {

// SDPA asks here rather than the operator.
[[maybe_unused]] const bool kChoiceIsRegistered = [] {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&sdpa_choice);
  return true;
}();

}  // namespace

BrokenKernel::BrokenKernel(const std::string& kernel, KernelFault fault) : kernel_(kernel) {
  faults()[kernel_] = fault;
}

BrokenKernel::~BrokenKernel() { faults().erase(kernel_); }

}  // namespace heed::test
