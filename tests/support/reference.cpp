// SPDX-License-Identifier: BSD-3-Clause
#include "support/reference.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace heed::test {

namespace {

/// A float64 copy on the CPU, read and written by index; dimensions of size 1 broadcast.
class Array {
 public:
  Array() = default;
  explicit Array(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    tensor_ = tensor.detach().to(at::kCPU, at::kDouble).contiguous().resolve_neg();
    data_ = tensor_.data_ptr<double>();
    int64_t stride = 1;
    for (size_t dim = 4; dim-- > 0;) {
      sizes_[dim] = tensor_.size(static_cast<int64_t>(dim));
      strides_[dim] = sizes_[dim] == 1 ? 0 : stride;
      stride *= sizes_[dim];
    }
  }

  bool defined() const { return tensor_.defined(); }
  int64_t size(size_t dim) const { return sizes_[dim]; }
  const at::Tensor& tensor() const { return tensor_; }

  double& operator()(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return data_[a * strides_[0] + b * strides_[1] + c * strides_[2] + d * strides_[3]];
  }

 private:
  at::Tensor tensor_;
  double* data_ = nullptr;
  std::array<int64_t, 4> sizes_ = {}, strides_ = {};
};

Array zeros_of(const at::Tensor& tensor) {
  return Array(tensor.defined() ? at::zeros(tensor.sizes(), at::kDouble) : at::Tensor());
}

at::Tensor by_head(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.view({1, -1, 1, 1}) : tensor;
}

/// A sum over keys, of which there are up to 100,000: a double's error would grow with them.
using Sum = long double;

struct Run {
  const ReferenceInput& input;
  Array query{input.query}, key{input.key}, value{input.value};
  Array slopes{by_head(input.alibi_slopes)}, sinks{by_head(input.sinks)};
  Array mask{input.mask}, bias{input.bias}, kept{input.kept}, grad{input.output_gradient};
  Array output{
      at::zeros({query.size(0), query.size(1), query.size(2), value.size(3)}, at::kDouble)};
  Array softmax{at::zeros({query.size(0), query.size(1), query.size(2), key.size(2)}, at::kDouble)};
  Array weights{softmax.tensor().clone()};
  Array lse{at::full({query.size(0), query.size(1), query.size(2), 1},
                     -std::numeric_limits<double>::infinity(), at::kDouble)};
  Array lse_grad{input.lse_gradient.defined() ? input.lse_gradient.unsqueeze(3)
                                              : at::zeros_like(lse.tensor())};
  Array query_grad = zeros_of(input.query), key_grad = zeros_of(input.key);
  Array value_grad = zeros_of(input.value), bias_grad = zeros_of(input.bias);
  Array sinks_grad = zeros_of(by_head(input.sinks));
  double scale = input.scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));

  bool sees(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const auto position = i + key.size(2) - query.size(2);
    if (mask.defined() && mask(b, h, i, j) == 0.0) return false;
    if (input.causal && j > position) return false;
    if (!input.window) return true;
    return input.causal ? j > position - *input.window : std::abs(position - j) < *input.window;
  }

  double product(int64_t b, int64_t h, int64_t i, int64_t j) const {
    double dot = 0.0;
    for (int64_t d = 0; d < query.size(3); ++d) dot += query(b, h, i, d) * key(b, group(h), j, d);
    return dot * scale;
  }

  double score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!sees(b, h, i, j)) return -std::numeric_limits<double>::infinity();
    double score = product(b, h, i, j);
    if (input.softcap) score = *input.softcap * std::tanh(score / *input.softcap);
    if (bias.defined()) score += bias(b, h, i, j);
    const auto distance = static_cast<double>(std::abs(i + key.size(2) - query.size(2) - j));
    if (slopes.defined()) score -= slopes(0, h, 0, 0) * distance;
    return score;
  }

  /// The derivative of the score by the scaled product.
  double score_slope(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!input.softcap) return 1.0;
    const double cosh = std::cosh(product(b, h, i, j) / *input.softcap);
    return 1.0 / (cosh * cosh);
  }

  int64_t group(int64_t h) const { return h / (query.size(1) / key.size(1)); }
  double keep(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return kept.defined() ? kept(b, h, i, j) : 1.0;
  }

  void row(int64_t b, int64_t h, int64_t i) const {
    std::vector<double> scores;
    const double sink =
        sinks.defined() ? sinks(0, h, 0, 0) : -std::numeric_limits<double>::infinity();
    double largest = sink;
    for (int64_t j = 0; j < key.size(2); ++j) {
      scores.push_back(score(b, h, i, j));
      largest = std::max(largest, scores.back());
    }
    if (std::isinf(largest)) return;  // sees no key: zeros
    Sum total = std::exp(sink - largest);
    for (const auto s : scores) total += std::exp(s - largest);
    const auto sum = static_cast<double>(total);
    lse(b, h, i, 0) = largest + std::log(sum);
    std::vector<Sum> outputs(value.size(3));
    for (int64_t j = 0; j < key.size(2); ++j) {
      softmax(b, h, i, j) = std::exp(scores[j] - largest) / sum;
      weights(b, h, i, j) = softmax(b, h, i, j) * keep(b, h, i, j);
      for (int64_t d = 0; d < value.size(3); ++d) {
        outputs[d] += weights(b, h, i, j) * value(b, group(h), j, d);
      }
    }
    for (int64_t d = 0; d < value.size(3); ++d) {
      output(b, h, i, d) = static_cast<double>(outputs[d]);
    }
  }

  void row_backward(int64_t b, int64_t h, int64_t i) const {
    const auto g = group(h);
    std::vector<double> softmax_grad(key.size(2), 0.0);
    Sum weighted_grads = 0.0;
    for (int64_t j = 0; j < key.size(2); ++j) {
      for (int64_t d = 0; d < value.size(3); ++d) {
        softmax_grad[j] += keep(b, h, i, j) * grad(b, h, i, d) * value(b, g, j, d);
        value_grad(b, g, j, d) += weights(b, h, i, j) * grad(b, h, i, d);
      }
      weighted_grads += softmax(b, h, i, j) * softmax_grad[j];
    }
    Sum seen_weights = 0.0;
    for (int64_t j = 0; j < key.size(2); ++j) seen_weights += softmax(b, h, i, j);
    const auto seen = static_cast<double>(seen_weights);  // of the softmax; the sink has the rest
    const auto mean = static_cast<double>(weighted_grads) - lse_grad(b, h, i, 0);
    if (sinks.defined() && !std::isinf(lse(b, h, i, 0))) {
      sinks_grad(0, h, 0, 0) -= (1.0 - seen) * mean;
    }
    std::vector<Sum> query_grads(query.size(3));
    for (int64_t j = 0; j < key.size(2); ++j) {
      auto score_grad = softmax(b, h, i, j) * (softmax_grad[j] - mean);
      if (bias.defined()) bias_grad(b, h, i, j) += score_grad;
      score_grad *= score_slope(b, h, i, j);
      for (int64_t d = 0; d < query.size(3); ++d) {
        query_grads[d] += scale * score_grad * key(b, g, j, d);
        key_grad(b, g, j, d) += scale * score_grad * query(b, h, i, d);
      }
    }
    for (int64_t d = 0; d < query.size(3); ++d) {
      query_grad(b, h, i, d) = static_cast<double>(query_grads[d]);
    }
  }
};

}  // namespace

ReferenceResult reference_attention(const ReferenceInput& input) {
  const Run run{input};
  for (int64_t b = 0; b < run.query.size(0); ++b) {
    for (int64_t h = 0; h < run.query.size(1); ++h) {
      for (int64_t i = 0; i < run.query.size(2); ++i) {
        run.row(b, h, i);
        if (run.grad.defined()) run.row_backward(b, h, i);
      }
    }
  }
  ReferenceResult result;
  result.output = run.output.tensor();
  result.weights = run.weights.tensor();
  result.lse = run.lse.tensor().squeeze(3);
  if (!run.grad.defined()) return result;
  result.query_grad = run.query_grad.tensor();
  result.key_grad = run.key_grad.tensor();
  result.value_grad = run.value_grad.tensor();
  result.bias_grad = run.bias_grad.tensor();
  if (input.sinks.defined()) result.sinks_grad = run.sinks_grad.tensor().flatten();
  return result;
}

}  // namespace heed::test
