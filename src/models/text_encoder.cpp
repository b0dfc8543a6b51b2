// SPDX-License-Identifier: BSD-3-Clause
#include <heed/pool_tokens.h>
#include <heed/text_encoder.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>

#include "core/checks.h"
#include "models/embedded_positions.h"
#include "models/embedding_scale.h"
#include "models/norm_options.h"
#include "modules/layers/drop_out.h"
#include "modules/layers/embedding.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kTextEncoder = "TextEncoder";

/// Positions that count all tokens but padding; see TextEncoderOptions.
at::Tensor counted_positions(const at::Tensor& tokens, int64_t padding) {
  const auto counts = tokens.ne(padding).to(at::kLong);
  return counts.cumsum(1) * counts + padding;
}

}  // namespace

std::string_view to_string(TextPooling pooling) {
  switch (pooling) {
    case TextPooling::last:
      return "last";
    case TextPooling::end:
      return "end";
    case TextPooling::largest:
      return "largest";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown TextPooling");
}

TextEncoderImpl::TextEncoderImpl(const TextEncoderOptions& options) : options(options) { reset(); }

void TextEncoderImpl::check_pooling_options() const {
  const auto& pooling = options.pooling();
  const auto end = options.end_token(), dim = options.projection_dim();
  HEED_CHECK(!pooling || *pooling == TextPooling::last || options.token_embedding(),
             "{}: pooling ({}) must not be given without token_embedding", kTextEncoder,
             to_string(*pooling));
  HEED_CHECK(end.has_value() == (pooling == TextPooling::end),
             "{}: end_token must be given with pooling (end), and with no other", kTextEncoder);
  HEED_CHECK(!end || (*end >= 0 && *end < options.vocab_size()),
             "{}: end_token ({}) must be at least 0 and below vocab_size ({})", kTextEncoder,
             end.value_or(0), options.vocab_size());
  if (dim) detail::check_positive(kTextEncoder, "projection_dim", *dim);
  HEED_CHECK(!dim || pooling, "{}: projection_dim ({}) must not be given without pooling",
             kTextEncoder, dim.value_or(0));
}

void TextEncoderImpl::reset() {
  const auto& block = options.stack().block();
  const auto width = block.emb_dim();
  const auto embedding_dim = options.embedding_dim().value_or(width);
  detail::check_positive(kTextEncoder, "vocab_size", options.vocab_size());
  detail::check_positive(kTextEncoder, "emb_dim", width);
  detail::check_positive(kTextEncoder, "embedding_dim", embedding_dim);
  detail::check_probability(kTextEncoder, "dropout", options.dropout());
  detail::check_not_negative(kTextEncoder, "type_vocab_size", options.type_vocab_size());
  detail::check_factor(kTextEncoder, "embedding_scale", options.embedding_scale());
  check_pooling_options();
  if (const auto padding = options.padding_token()) {
    HEED_CHECK(*padding >= 0 && *padding < options.vocab_size(),
               "{}: padding_token ({}) must be at least 0 and below vocab_size ({})", kTextEncoder,
               *padding, options.vocab_size());
    HEED_CHECK(options.token_embedding(),
               "{}: padding_token ({}) must not be given without token_embedding", kTextEncoder,
               *padding);
  }
  if (options.token_embedding()) {
    token_embedding = register_module("token_embedding",
                                      detail::make_embedding(options.vocab_size(), embedding_dim));
  }
  if (const auto& positions = options.positions()) {
    HEED_CHECK(positions->emb_dim() == embedding_dim,
               "{}: positions emb_dim ({}) must equal {} ({})", kTextEncoder, positions->emb_dim(),
               options.embedding_dim() ? "embedding_dim" : "attention emb_dim", embedding_dim);
    position_embedding = register_module("position_embedding", PositionEmbedding(*positions));
  }
  if (options.type_vocab_size() > 0) {
    type_embedding = register_module(
        "type_embedding", detail::make_embedding(options.type_vocab_size(), embedding_dim));
  }
  if (options.embedding_norm()) {
    const auto norm = detail::embedding_norm_options(kTextEncoder, block).dim(embedding_dim);
    embedding_norm = register_module("embedding_norm", Norm(norm));
  }
  if (embedding_dim != width) {
    embedding_projection =
        register_module("embedding_projection", detail::make_linear(embedding_dim, width, true));
  }
  stack = register_module("stack", Encoder(options.stack()));
  if (const auto dim = options.projection_dim()) {
    projection =
        register_module("projection", detail::make_linear(width, *dim, options.projection_bias()));
  }
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void TextEncoderImpl::reset_parameters() {
  if (token_embedding) detail::initialize_embedding(*token_embedding);
  if (position_embedding) position_embedding->reset_parameters();
  if (type_embedding) detail::initialize_embedding(*type_embedding);
  if (embedding_norm) embedding_norm->reset_parameters();
  if (embedding_projection) detail::initialize_linears(*embedding_projection);
  stack->reset_parameters();
  if (projection) detail::initialize_linears(*projection);
}

void TextEncoderImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kTextEncoder)
      .show("vocab_size", options.vocab_size())
      .option("embedding_dim", options.embedding_dim())
      .option("token_embedding", options.token_embedding(), true)
      .option("embedding_scale", options.embedding_scale(), 1.0)
      .option("padding_token", options.padding_token())
      .option("type_vocab_size", options.type_vocab_size(), int64_t{0})
      .option("embedding_norm", options.embedding_norm(), false)
      .option("dropout", options.dropout(), 0.0)
      .option("pooling",
              options.pooling() ? std::optional(to_string(*options.pooling())) : std::nullopt)
      .option("end_token", options.end_token())
      .option("projection_dim", options.projection_dim())
      .option("projection_bias", options.projection_bias(), false);
}

void TextEncoderImpl::check_tokens(const at::Tensor& tokens) const {
  if (token_embedding) {
    detail::check_indices(kTextEncoder, "tokens", tokens, token_embedding->weight, "vocab_size",
                          options.vocab_size());
    return;
  }
  const auto width =
      options.embedding_dim().value_or(options.stack().block().attention().emb_dim());
  HEED_CHECK(tokens.defined() && tokens.dim() == 3 && tokens.size(2) == width &&
                 tokens.is_floating_point(),
             "{}: tokens must be embeddings [B, L, {}] without token_embedding; tokens {}",
             kTextEncoder, width, tokens.defined() ? detail::shape(tokens) : "undefined");
}

void TextEncoderImpl::check_types(const at::Tensor& tokens,
                                  const std::optional<at::Tensor>& types) const {
  if (!types) return;
  HEED_CHECK(type_embedding, "{}: types must be absent: type_vocab_size is 0", kTextEncoder);
  detail::check_indices(kTextEncoder, "types", *types, type_embedding->weight, "type_vocab_size",
                        options.type_vocab_size());
  HEED_CHECK(types->sizes() == tokens.sizes().slice(0, 2),
             "{}: types {} must have the sizes of tokens {}", kTextEncoder, detail::shape(*types),
             detail::shape(tokens));
}

std::optional<at::Tensor> TextEncoderImpl::positions_of(const at::Tensor& tokens,
                                                        const TransformerInputs& inputs) const {
  const auto padding = options.padding_token();
  if (!padding || inputs.positions()) return detail::embedded_positions(tokens, inputs, stack);
  HEED_CHECK(!detail::shared_sequence(stack),
             "{}: positions must be given where processes share the sequence: those of "
             "padding_token ({}) count all tokens",
             kTextEncoder, *padding);
  return counted_positions(tokens, *padding);
}

at::Tensor TextEncoderImpl::embed(const at::Tensor& tokens, const TransformerInputs& inputs,
                                  const std::optional<at::Tensor>& types) const {
  auto x = token_embedding ? detail::embed(token_embedding, tokens) : tokens;
  x = detail::scaled_embeddings(x, options.embedding_scale());
  if (type_embedding) {
    const auto& weight = type_embedding->weight;
    x = x + (types ? at::embedding(weight, *types) : weight[0]);
  }
  if (position_embedding) {
    x = position_embedding.ptr()->forward(x, positions_of(tokens, inputs));
  }
  if (embedding_norm) x = embedding_norm.ptr()->forward(x);
  x = detail::drop_out(x, options.dropout(), is_training());
  return embedding_projection ? detail::project(embedding_projection, x) : x;
}

at::Tensor TextEncoderImpl::forward(const at::Tensor& tokens, const TransformerInputs& inputs,
                                    const std::optional<at::Tensor>& types) {
  check_tokens(tokens);
  check_types(tokens, types);
  return stack->forward(embed(tokens, inputs, types), inputs);
}

/// Marks the tokens [B, L] of which the first is pooled; none: the last one of all.
std::optional<at::Tensor> TextEncoderImpl::pooled_tokens(const at::Tensor& tokens) const {
  if (options.pooling() == TextPooling::last || tokens.size(1) == 0) return std::nullopt;
  const auto end = options.end_token();
  if (!end) return tokens.eq(tokens.amax({1}, /*keepdim=*/true));
  auto ends = tokens.eq(*end);
  // Other devices are not waited for.
  HEED_CHECK(!tokens.is_cpu() || ends.any(1).all().item<bool>(),
             "{}: tokens must have end_token ({}) in each text", kTextEncoder, *end);
  return ends;
}

at::Tensor TextEncoderImpl::forward_pooled(const at::Tensor& tokens,
                                           const TransformerInputs& inputs,
                                           const std::optional<at::Tensor>& types) {
  HEED_CHECK(options.pooling(), "{}: forward_pooled must have the option pooling", kTextEncoder);
  HEED_CHECK(!inputs.documents(),
             "{}: documents must not be given: one vector is pooled of each text", kTextEncoder);
  HEED_CHECK(!inputs.query_lengths() || options.pooling() != TextPooling::last,
             "{}: query_lengths must not be given with pooling (last), which may pool padding",
             kTextEncoder);
  HEED_CHECK(!detail::shared_sequence(stack),
             "{}: tokens must be whole sequences: processes share them", kTextEncoder);
  check_tokens(tokens);
  const auto pooled = pooled_tokens(tokens);
  const auto states = forward(tokens, inputs, types);
  const auto x = pool_tokens(states, pooled ? Pooling::first : Pooling::last, pooled);
  return projection ? detail::project(projection, x) : x;
}

}  // namespace heed
