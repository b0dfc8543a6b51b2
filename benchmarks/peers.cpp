// SPDX-License-Identifier: BSD-3-Clause
#include "peers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <heed/attend.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "support/limits.h"

namespace heed::bench {

namespace {

/// softmax(scores, hidden keys at -inf).
at::Tensor textbook_weights(at::Tensor scores, const std::optional<at::Tensor>& mask) {
  if (mask) scores = scores.masked_fill(*mask == 0, -std::numeric_limits<double>::infinity());
  return at::softmax(scores, -1);
}

double sqrt_of(int64_t dim) { return std::sqrt(static_cast<double>(dim)); }

/// [B, H, L, D] to [B, L, H * D].
at::Tensor merge(const at::Tensor& heads) {
  const auto merged = heads.transpose(1, 2).contiguous();
  return merged.view({merged.size(0), merged.size(1), -1});
}

torch::nn::Dropout dropout_of(double probability, bool training) {
  torch::nn::Dropout dropout(probability);
  dropout->train(training);
  return dropout;
}

/// Rows of `parameter`, `head_dim` to a head, repeated for every query head.
at::Tensor repeat_heads(const at::Tensor& parameter, int64_t head_dim, int64_t times) {
  return parameter.unflatten(0, {-1, head_dim}).repeat_interleave(times, 0).flatten(0, 1);
}

torch::nn::MultiheadAttention torch_peer(int64_t emb_dim, int64_t num_heads,
                                         const at::Tensor& weight, const at::Tensor& bias,
                                         const at::Tensor& out_weight, const at::Tensor& out_bias) {
  torch::nn::MultiheadAttention peer(emb_dim, num_heads);
  const torch::NoGradGuard no_grad;
  peer->in_proj_weight.copy_(weight);
  peer->in_proj_bias.copy_(bias);
  peer->out_proj->weight.copy_(out_weight);
  peer->out_proj->bias.copy_(out_bias);
  peer->eval();
  return peer;
}

at::Tensor by_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias);
}

/// `multiply(input, weight, bias)` for each projection, and `attend(query, key, value)`.
template <typename Multiply, typename Attend>
at::Tensor four_products(const MultiHeadAttention& ours, const at::Tensor& x,
                         const Multiply& multiply, const Attend& attend) {
  const auto project = [&](const torch::nn::Linear& linear, const at::Tensor& input) {
    return multiply(input, linear->weight, linear->bias);
  };
  const auto heads = [&](const torch::nn::Linear& linear) {
    return project(linear, x)
        .view({x.size(0), x.size(1), ours->options.head_nums(), -1})
        .transpose(1, 2);
  };
  return project(ours->fc_out,
                 merge(attend(heads(ours->fc_q), heads(ours->fc_k), heads(ours->fc_v))));
}

}  // namespace

at::Tensor textbook_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const std::optional<at::Tensor>& mask) {
  const auto scores = at::matmul(query, key.transpose(-1, -2)) / sqrt_of(query.size(-1));
  return at::matmul(textbook_weights(scores, mask), value);
}

TextbookAttention::TextbookAttention(const Attention& ours)
    : fc_q(ours->fc_q),
      fc_k(ours->fc_k),
      fc_v(ours->fc_v),
      dropout(dropout_of(ours->options.dropout(), ours->is_training())) {}

at::Tensor TextbookAttention::forward(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  const auto query = fc_q(x);
  const auto key = fc_k(x);
  const auto value = fc_v(x);
  auto scores = at::matmul(query, key.transpose(-1, -2));
  scores = scores / sqrt_of(x.size(2));
  const auto weights = dropout(textbook_weights(scores, mask));
  return at::matmul(weights, value);
}

TextbookAttentionV1::TextbookAttentionV1(const AttentionV1& ours)
    : qkv(ours->qkv), dropout(dropout_of(ours->options.dropout(), ours->is_training())) {}

at::Tensor TextbookAttentionV1::forward(const at::Tensor& x,
                                        const std::optional<at::Tensor>& mask) {
  const auto packed = qkv(x).split(x.size(2), -1);
  const auto scores = at::matmul(packed[0], packed[1].transpose(-1, -2)) / sqrt_of(x.size(2));
  const auto weights = dropout(textbook_weights(scores, mask));
  return at::matmul(weights, packed[2]);
}

TextbookMultiHeadAttention::TextbookMultiHeadAttention(const MultiHeadAttention& ours)
    : num_heads(ours->options.head_nums()),
      fc_q(ours->fc_q),
      fc_k(ours->fc_k),
      fc_v(ours->fc_v),
      fc_out(ours->fc_out),
      dropout(dropout_of(ours->options.dropout(), ours->is_training())) {}

at::Tensor TextbookMultiHeadAttention::forward(const at::Tensor& x,
                                               const std::optional<at::Tensor>& mask) {
  return std::get<0>(forward_with_weights(x, mask));
}

std::tuple<at::Tensor, at::Tensor> TextbookMultiHeadAttention::forward_with_weights(
    const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  const auto head_dim = x.size(2) / num_heads;
  const auto query = fc_q(x);
  const auto key = fc_k(x);
  const auto value = fc_v(x);
  const auto split = [&](const at::Tensor& packed) {
    return packed.view({x.size(0), x.size(1), num_heads, head_dim}).transpose(1, 2);
  };
  const auto query_heads = split(query);
  const auto key_heads = split(key);
  const auto value_heads = split(value);
  const auto scores = at::matmul(query_heads, key_heads.transpose(-1, -2)) / sqrt_of(head_dim);
  const auto weights = dropout(textbook_weights(scores, mask));
  return {fc_out(merge(at::matmul(weights, value_heads))), weights};
}

TextbookGroupQueryAttention::TextbookGroupQueryAttention(const GroupQueryAttention& ours)
    : num_heads(ours->options.head_num()),
      num_groups(ours->options.group_num()),
      fc_q(ours->fc_q),
      fc_k(ours->fc_k),
      fc_v(ours->fc_v),
      fc_o(ours->fc_o) {}

at::Tensor TextbookGroupQueryAttention::forward(const at::Tensor& x,
                                                const std::optional<at::Tensor>& mask) {
  const auto head_dim = x.size(2) / num_heads;
  auto query = fc_q(x);
  auto key = fc_k(x);
  auto value = fc_v(x);
  query = query.view({x.size(0), x.size(1), num_heads, head_dim}).transpose(1, 2);
  key = key.view({x.size(0), x.size(1), num_groups, head_dim}).transpose(1, 2);
  value = value.view({x.size(0), x.size(1), num_groups, head_dim}).transpose(1, 2);
  key = key.repeat_interleave(num_heads / num_groups, 1);
  value = value.repeat_interleave(num_heads / num_groups, 1);
  const auto scores = at::matmul(query, key.transpose(2, 3)) / sqrt_of(head_dim);
  const auto weights = textbook_weights(scores, mask);
  return fc_o(merge(at::matmul(weights, value)));
}

torch::nn::MultiheadAttention torch_peer(const Attention& ours) {
  const auto width = ours->options.emb_dim();
  return torch_peer(width, 1, at::cat({ours->fc_q->weight, ours->fc_k->weight, ours->fc_v->weight}),
                    at::cat({ours->fc_q->bias, ours->fc_k->bias, ours->fc_v->bias}), at::eye(width),
                    at::zeros({width}));
}

torch::nn::MultiheadAttention torch_peer(const AttentionV1& ours) {
  const auto width = ours->options.emb_dim();
  return torch_peer(width, 1, ours->qkv->weight, ours->qkv->bias, at::eye(width),
                    at::zeros({width}));
}

torch::nn::MultiheadAttention torch_peer(const MultiHeadAttention& ours) {
  return torch_peer(ours->options.emb_dim(), ours->options.head_nums(),
                    at::cat({ours->fc_q->weight, ours->fc_k->weight, ours->fc_v->weight}),
                    at::cat({ours->fc_q->bias, ours->fc_k->bias, ours->fc_v->bias}),
                    ours->fc_out->weight, ours->fc_out->bias);
}

torch::nn::MultiheadAttention torch_peer(const GroupQueryAttention& ours) {
  const auto head_dim = ours->options.emb_dim() / ours->options.head_num();
  const auto repeated = [&](const at::Tensor& parameter) {
    return repeat_heads(parameter, head_dim, ours->options.head_num() / ours->options.group_num());
  };
  return torch_peer(
      ours->options.emb_dim(), ours->options.head_num(),
      at::cat({ours->fc_q->weight, repeated(ours->fc_k->weight), repeated(ours->fc_v->weight)}),
      at::cat({ours->fc_q->bias, repeated(ours->fc_k->bias), repeated(ours->fc_v->bias)}),
      ours->fc_o->weight, ours->fc_o->bias);
}

at::Tensor products_and_sdpa(const MultiHeadAttention& ours, const at::Tensor& x) {
  return four_products(ours, x, by_linear, [](const auto&... heads) {
    return at::scaled_dot_product_attention(heads...);
  });
}

at::Tensor products_and_attend(const MultiHeadAttention& ours, const at::Tensor& x) {
  return four_products(ours, x, by_linear, [](const auto&... heads) { return attend(heads...); });
}

at::Tensor onednn_products_and_attend(const MultiHeadAttention& ours, const at::Tensor& x) {
  return four_products(ours, x, onednn_linear,
                       [](const auto&... heads) { return attend(heads...); });
}

}  // namespace heed::bench
