// SPDX-License-Identifier: BSD-3-Clause
#include "translator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <heed/masks.h>
#include <torch/utils.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace heed::examples {

namespace {

constexpr char kFirstPrinted = ' ';
constexpr char kLastPrinted = '~';
constexpr int64_t kWidth = 64;
constexpr int64_t kHeads = 4;
constexpr int64_t kLayers = 2;

TransformerBlockOptions block() {
  return TransformerBlockOptions(GroupQueryAttentionOptions(kWidth, kHeads, kHeads))
      .feed_forward(FeedForwardOptions(kWidth).hidden_dim(2 * kWidth));
}

}  // namespace

at::Tensor to_tokens(const std::vector<std::string>& texts) {
  size_t longest = 0;
  for (const auto& text : texts) longest = std::max(longest, text.size());
  const auto tokens = at::full(
      {static_cast<int64_t>(texts.size()), static_cast<int64_t>(longest) + 2}, kPadding, at::kLong);
  const auto rows = tokens.accessor<int64_t, 2>();
  for (size_t b = 0; b < texts.size(); ++b) {
    auto row = rows[static_cast<int64_t>(b)];
    int64_t place = 0;
    row[place++] = kBegin;
    for (const char c : texts[b]) {
      if (c < kFirstPrinted || c > kLastPrinted) {
        throw std::runtime_error("character " + std::to_string(place) + " of '" + texts[b] +
                                 "' is not printable ASCII");
      }
      row[place++] = c;
    }
    row[place] = kEnd;
  }
  return tokens;
}

std::vector<std::string> to_texts(const at::Tensor& tokens) {
  const auto on_cpu = tokens.cpu();
  const auto rows = on_cpu.accessor<int64_t, 2>();
  std::vector<std::string> texts(static_cast<size_t>(rows.size(0)));
  for (int64_t b = 0; b < rows.size(0); ++b) {
    for (int64_t i = 0; i < rows.size(1) && rows[b][i] != kEnd; ++i) {
      if (rows[b][i] != kBegin) texts[static_cast<size_t>(b)] += static_cast<char>(rows[b][i]);
    }
  }
  return texts;
}

TranslatorImpl::TranslatorImpl()
    : token_embedding(
          register_module("token_embedding", torch::nn::Embedding(kVocabulary, kWidth))),
      position_embedding(register_module("position_embedding", PositionEmbedding(kWidth))),
      encoder(register_module("encoder", Encoder(EncoderOptions(block(), kLayers)))),
      decoder(register_module(
          "decoder", Decoder(DecoderOptions(kVocabulary, block().cross_attention(true), kLayers)
                                 .positions(PositionEmbeddingOptions(kWidth))))) {}

TransformerInputs TranslatorImpl::encode(const at::Tensor& source) const {
  const auto mask = key_padding_mask(source != kPadding);
  const auto x = position_embedding.ptr()->forward(token_embedding.ptr()->forward(source));
  const auto memory = encoder.ptr()->forward(x, mask);  // [B, S, E]
  return TransformerInputs().memory(memory).memory_mask(mask);
}

at::Tensor TranslatorImpl::forward(const at::Tensor& source, const at::Tensor& target) const {
  return decoder.ptr()->forward(target, encode(source));
}

at::Tensor TranslatorImpl::translate(const at::Tensor& source, int64_t max_length) const {
  const torch::NoGradGuard no_grad;
  const auto encoded = encode(source);
  const auto inputs = TransformerInputs()
                          .projected_memory(decoder->project_memory(*encoded.memory()))
                          .memory_mask(encoded.memory_mask());
  auto caches = decoder->make_caches(source.size(0), max_length);
  auto next = at::full({source.size(0), 1}, kBegin, source.options());
  std::vector<at::Tensor> target = {next};
  while (static_cast<int64_t>(target.size()) < max_length && !next.eq(kEnd).all().item<bool>()) {
    const auto scores = decoder->forward_cached(next, caches, {}, inputs);  // [B, 1, V]
    next = at::where(next.eq(kEnd), next, scores.argmax(-1));  // what has ended stays so
    target.push_back(next);
  }
  return at::cat(target, 1);
}

at::Tensor TranslatorImpl::cross_attention_weights(const at::Tensor& source,
                                                   const at::Tensor& target) const {
  const torch::NoGradGuard no_grad;
  const auto attended = decoder->forward_with_weights(target, encode(source));
  std::vector<at::Tensor> weights;
  for (const auto& block : std::get<1>(attended)) weights.push_back(block.cross);
  return at::stack(weights, 1);
}

}  // namespace heed::examples
