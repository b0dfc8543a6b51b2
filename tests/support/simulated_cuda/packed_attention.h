// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <array>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/simulated_cuda/attention_kernels.h"
#include "support/simulated_cuda/device_tensors.h"

/// The common part of the simulated kernels of attention: attention of sequences that lie one after
/// the other, in float64. See attention_kernels.h for the sources that comments name.

namespace heed::test::kernels {

using at::Tensor;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The fault that a kernel has now.
KernelFault fault_of(const std::string& kernel);

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

  /// The gradients of query, key, value and bias, in the layouts of the constructor.
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
inline void check_alignment(const char* name, const Tensor& tensor) {
  const auto elements = 16 / tensor.element_size();
  bool aligned = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
    aligned = aligned && (tensor.size(dim) == 1 || tensor.stride(dim) % elements == 0);
  }
  TORCH_CHECK(aligned, "CUDA error: misaligned address (", name, ")");
}

inline void check_lengths(const char* name, const Tensor& lengths, int64_t count) {
  TORCH_CHECK(lengths.is_cuda() && lengths.scalar_type() == at::kInt && lengths.is_contiguous() &&
                  lengths.dim() == 1 && lengths.size(0) == count,
              name, " must be int32, on the device, contiguous, of size ", count);  // FA:579-599
}

inline Tensor or_undefined(const std::optional<Tensor>& tensor) {
  return tensor.value_or(Tensor());
}

/// The sequences of dense tensors [B, L, H, D] and [B, S, G, D].
inline std::vector<Sequence> sequences_of_batch(const Tensor& query, const Tensor& key) {
  std::vector<Sequence> sequences;
  for (int64_t b = 0; b < query.size(0); ++b) {
    sequences.push_back({b * query.size(1), query.size(1), b * key.size(1), key.size(1)});
  }
  return sequences;
}

inline std::vector<Sequence> sequences_between(const Tensor& query_offsets,
                                               const Tensor& key_offsets,
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

inline Tensor rows(const Tensor& tensor, int64_t first, int64_t count) {
  return tensor.narrow(0, first, count);
}

/// The bias [B, H, L, S] of a sequence.
inline Tensor bias_of(const Tensor& bias, size_t number) {
  return bias.defined() ? bias[static_cast<int64_t>(number)] : bias;
}

struct Packed {
  Tensor query, key, value;  // [T, H, D], of the host
};

inline Packed pack(const Tensor& query, const Tensor& key, const Tensor& value) {
  const auto flat = [](const Tensor& x) {
    const auto host = on_host(x);
    return host.dim() == 4 ? host.reshape({-1, host.size(2), host.size(3)}) : host;
  };
  return {flat(query), flat(key), flat(value)};
}

inline Attention attention_of(const Packed& packed, const Sequence& s, const Tensor& bias,
                              const Softmax& softmax, size_t number) {
  return {rows(packed.query, s.first_query, s.queries),
          rows(packed.key, s.first_key, s.keys),
          rows(packed.value, s.first_key, s.keys),
          bias_of(bias, number),
          softmax,
          static_cast<int64_t>(number)};
}

struct Results {
  Tensor output;             // [T, H, Dv] in float64, NaN in rows of no sequence
  std::vector<Tensor> lses;  // [H, L] of each sequence
};

inline Results attend_to(const Packed& packed, const std::vector<Sequence>& sequences,
                         const Tensor& bias, const Softmax& softmax, KernelFault fault) {
  const auto& query = packed.query;
  Results results;
  results.output = at::full({query.size(0), query.size(1), packed.value.size(2)}, NAN, at::kDouble);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto& s = sequences[i];
    const auto attention = attention_of(packed, s, bias, softmax, i);
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

struct Gradients {
  Tensor query, key, value;    // as these are, on the device
  std::vector<Tensor> biases;  // [H, L, S] of each sequence
};

/// `lse_of` gives a sequence's [H, L]; `beyond` stands in rows of no sequence.
template <typename LseOf>
Gradients gradients_to(const std::array<Tensor, 3>& inputs, const Tensor& output,
                       const Tensor& output_gradient, const std::vector<Sequence>& sequences,
                       const Tensor& bias, const Softmax& softmax, double beyond,
                       const LseOf& lse_of) {
  const auto packed = pack(inputs[0], inputs[1], inputs[2]);
  const auto of_output = pack(output_gradient, output, output);
  const auto filled = [&](const Tensor& x) { return at::full(x.sizes(), beyond, at::kDouble); };
  const Packed sums{filled(packed.query), filled(packed.key), filled(packed.value)};
  Gradients result;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto& s = sequences[i];
    const auto found = attention_of(packed, s, bias, softmax, i)
                           .gradients(lse_of(s, i), rows(of_output.key, s.first_query, s.queries),
                                      rows(of_output.query, s.first_query, s.queries));
    rows(sums.query, s.first_query, s.queries).copy_(found[0]);
    rows(sums.key, s.first_key, s.keys).copy_(found[1]);
    rows(sums.value, s.first_key, s.keys).copy_(found[2]);
    result.biases.push_back(found[3]);
  }
  const auto like = [](const Tensor& x, const Tensor& model) {
    return on_device(x.to(model.scalar_type()).view(model.sizes()).contiguous());
  };
  result.query = like(sums.query, inputs[0]);
  result.key = like(sums.key, inputs[1]);
  result.value = like(sums.value, inputs[2]);
  return result;
}

/// Breaks what a kernel is asked for.
inline Softmax with_fault(Softmax softmax, KernelFault fault, const char* kernel) {
  TORCH_CHECK(fault != KernelFault::throws, kernel, ": CUDA error: an illegal instruction");
  if (fault == KernelFault::no_memory) throw std::bad_alloc();
  if (fault == KernelFault::window && softmax.span.left > 0) --softmax.span.left;
  if (fault == KernelFault::top_left && softmax.span.right == 0) softmax.span.from_the_end = false;
  return softmax;
}

inline Tensor seed_of_device(double dropout) {
  const auto seed = dropout > 0 ? static_cast<int64_t>(draw_on_device() >> 1) : 0;
  return at::full({2}, seed, at::kLong);
}

}  // namespace heed::test::kernels
