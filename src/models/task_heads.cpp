// SPDX-License-Identifier: BSD-3-Clause
#include <heed/task_heads.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <torch/nn/init.h>

#include "core/checks.h"
#include "models/embedded_positions.h"
#include "modules/layers/activation.h"
#include "modules/layers/drop_out.h"
#include "modules/layers/embedding.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kHeadTransform = "HeadTransform";
constexpr auto kSequenceClassifier = "SequenceClassifier";
constexpr auto kTokenClassifier = "TokenClassifier";
constexpr auto kMaskedLanguageModel = "MaskedLanguageModel";

const EncoderOptions& stack_of(const TokenModelOptions& model) {
  return std::visit([](const auto& own) -> const EncoderOptions& { return own.stack(); }, model);
}

int64_t width_of(const TokenModelOptions& model) { return stack_of(model).block().emb_dim(); }

int64_t vocabulary_of(const TokenModelOptions& model) {
  return std::visit([](const auto& own) { return own.vocab_size(); }, model);
}

void check_transform(const char* name, const HeadTransformOptions& transform, int64_t width) {
  HEED_CHECK(transform.emb_dim() == width,
             "{}: transform emb_dim ({}) must equal attention emb_dim ({})", name,
             transform.emb_dim(), width);
}

/// Checks the options that classifiers share.
template <typename Options>
void check_classifier(const char* name, const Options& options) {
  detail::check_positive(name, "num_labels", options.num_labels());
  detail::check_probability(name, "dropout", options.dropout());
  const auto* decoder = std::get_if<DecoderOptions>(&options.model());
  HEED_CHECK(decoder == nullptr || !decoder->head(),
             "{}: model must be a decoder without a head: head(false)", name);
  if (const auto& transform = options.transform()) {
    check_transform(name, *transform, width_of(options.model()));
  }
}

/// Registers the modules that classifiers share.
template <typename Classifier>
void register_classifier(Classifier& self) {
  const auto& options = self.options;
  const auto width = width_of(options.model());
  if (const auto* decoder = std::get_if<DecoderOptions>(&options.model())) {
    self.decoder = self.register_module("decoder", Decoder(*decoder));
  } else {
    const auto& encoder = std::get<TextEncoderOptions>(options.model());
    self.encoder = self.register_module("encoder", TextEncoder(encoder));
  }
  if (const auto& transform = options.transform()) {
    self.transform = self.register_module("transform", HeadTransform(*transform));
  }
  self.classifier = self.register_module(
      "classifier", detail::make_linear(width, options.num_labels(), options.bias()));
}

template <typename Classifier>
void reset_classifier(Classifier& self) {
  if (self.encoder) self.encoder->reset_parameters();
  if (self.decoder) self.decoder->reset_parameters();
  if (self.transform) self.transform->reset_parameters();
  detail::initialize_linears(*self.classifier);
}

/// The hidden states [B, L, E] that a classifier's model computes.
template <typename Classifier>
at::Tensor states_of(const char* name, Classifier& self, const at::Tensor& tokens,
                     const TransformerInputs& inputs, const std::optional<at::Tensor>& types) {
  if (self.encoder) return self.encoder->forward(tokens, inputs, types);
  HEED_CHECK(!types, "{}: types must be absent: the model is a Decoder", name);
  return self.decoder->forward(tokens, inputs);
}

/// Whether a mask says of each key whether it is there, and nothing else.
bool is_padding_mask(const at::Tensor& mask, const at::Tensor& tokens) {
  if (!mask.defined() || mask.dim() != 4 || !tokens.defined() || tokens.dim() != 2) return false;
  return (mask.size(0) == 1 || mask.size(0) == tokens.size(0)) && mask.size(1) == 1 &&
         mask.size(2) == 1 && mask.size(3) == tokens.size(1);
}

/// Checks that the inputs say which tokens count.
void check_pooled(const at::Tensor& tokens, const TransformerInputs& inputs, bool has_padding) {
  HEED_CHECK(!inputs.documents(),
             "{}: documents must not be given: one vector is pooled of each sequence",
             kSequenceClassifier);
  HEED_CHECK(!inputs.key_lengths() || inputs.query_lengths(),
             "{}: query_lengths must be given with key_lengths: they say which tokens are pooled",
             kSequenceClassifier);
  const auto& mask = inputs.mask();
  const bool is_known = !mask || !mask->defined() || inputs.query_lengths() || has_padding ||
                        is_padding_mask(*mask, tokens);
  HEED_CHECK(is_known,
             "{}: mask {} must be [B or 1, 1, 1, L], as padding_mask returns it, or query_lengths "
             "must be given: they say which tokens are pooled",
             kSequenceClassifier, detail::shape(*mask));
}

/// The tokens [B or 1, L] that count in pooling; none: all of them.
std::optional<at::Tensor> counted_tokens(const at::Tensor& tokens, const TransformerInputs& inputs,
                                         const std::optional<int64_t>& padding) {
  std::optional<at::Tensor> counted;
  const auto add = [&](const at::Tensor& more) {
    counted = counted ? counted->logical_and(more) : more;
  };
  if (const auto& mask = inputs.mask(); mask && is_padding_mask(*mask, tokens)) {
    add(mask->ne(0).squeeze(1).squeeze(1));
  }
  if (const auto& lengths = inputs.query_lengths()) {
    add(at::arange(tokens.size(1), tokens.options()).lt(lengths->unsqueeze(1)));
  }
  if (padding) add(tokens.ne(*padding));
  return counted;
}

}  // namespace

HeadTransformImpl::HeadTransformImpl(const HeadTransformOptions& options) : options(options) {
  reset();
}

void HeadTransformImpl::reset() {
  const auto width = options.emb_dim();
  detail::check_positive(kHeadTransform, "emb_dim", width);
  detail::check_probability(kHeadTransform, "dropout", options.dropout());
  HEED_CHECK(!detail::is_gated(options.activation()), "{}: activation ({}) must not be gated",
             kHeadTransform, to_string(options.activation()));
  const auto& norm_options = options.norm();
  HEED_CHECK(!norm_options || norm_options->dim() == width,
             "{}: norm dim ({}) must equal emb_dim ({})", kHeadTransform,
             norm_options ? norm_options->dim() : 0, width);
  dense = register_module("dense", detail::make_linear(width, width, options.bias()));
  if (norm_options) norm = register_module("norm", Norm(*norm_options));
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void HeadTransformImpl::reset_parameters() {
  detail::initialize_linears(*dense);
  if (norm) norm->reset_parameters();
}

void HeadTransformImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kHeadTransform)
      .show("emb_dim", options.emb_dim())
      .show("activation", to_string(options.activation()))
      .option("bias", options.bias(), true)
      .option("dropout", options.dropout(), 0.0);
}

at::Tensor HeadTransformImpl::forward(const at::Tensor& x) {
  detail::check_rows(kHeadTransform, "x", x, dense->weight);
  const auto input = detail::drop_out(x, options.dropout(), is_training());
  const auto y = detail::activate(options.activation(), detail::project(dense, input));
  return norm ? norm->forward(y) : y;
}

SequenceClassifierImpl::SequenceClassifierImpl(const SequenceClassifierOptions& options)
    : options(options) {
  reset();
}

void SequenceClassifierImpl::reset() {
  check_classifier(kSequenceClassifier, options);
  const auto vocabulary = vocabulary_of(options.model());
  const auto padding = options.padding_token();
  HEED_CHECK(!padding || (*padding >= 0 && *padding < vocabulary),
             "{}: padding_token ({}) must be at least 0 and below vocab_size ({})",
             kSequenceClassifier, padding.value_or(0), vocabulary);
  register_classifier(*this);
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void SequenceClassifierImpl::reset_parameters() { reset_classifier(*this); }

void SequenceClassifierImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kSequenceClassifier)
      .show("num_labels", options.num_labels())
      .show("pooling", to_string(options.pooling()))
      .option("padding_token", options.padding_token())
      .option("bias", options.bias(), true)
      .option("dropout", options.dropout(), 0.0);
}

at::Tensor SequenceClassifierImpl::forward(const at::Tensor& tokens,
                                           const TransformerInputs& inputs,
                                           const std::optional<at::Tensor>& types) {
  check_pooled(tokens, inputs, options.padding_token().has_value());
  HEED_CHECK(!detail::shared_sequence(encoder ? encoder->stack : decoder->stack),
             "{}: tokens must be whole sequences: processes share them", kSequenceClassifier);
  const auto states = states_of(kSequenceClassifier, *this, tokens, inputs, types);
  auto x = pool_tokens(states, options.pooling(),
                       counted_tokens(tokens, inputs, options.padding_token()));
  if (transform) x = transform->forward(x);
  return detail::project(classifier, detail::drop_out(x, options.dropout(), is_training()));
}

TokenClassifierImpl::TokenClassifierImpl(const TokenClassifierOptions& options) : options(options) {
  reset();
}

void TokenClassifierImpl::reset() {
  check_classifier(kTokenClassifier, options);
  register_classifier(*this);
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void TokenClassifierImpl::reset_parameters() { reset_classifier(*this); }

void TokenClassifierImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kTokenClassifier)
      .show("num_labels", options.num_labels())
      .option("bias", options.bias(), true)
      .option("dropout", options.dropout(), 0.0);
}

at::Tensor TokenClassifierImpl::forward(const at::Tensor& tokens, const TransformerInputs& inputs,
                                        const std::optional<at::Tensor>& types) {
  auto x = states_of(kTokenClassifier, *this, tokens, inputs, types);
  if (transform) x = transform->forward(x);
  return detail::project(classifier, detail::drop_out(x, options.dropout(), is_training()));
}

MaskedLanguageModelImpl::MaskedLanguageModelImpl(const MaskedLanguageModelOptions& options)
    : options(options) {
  reset();
}

void MaskedLanguageModelImpl::reset() {
  const auto& own = options.encoder();
  check_transform(kMaskedLanguageModel, options.transform(), own.stack().block().emb_dim());
  encoder = register_module("encoder", TextEncoder(own));
  transform = register_module("transform", HeadTransform(options.transform()));
  if (options.bias()) {
    output_bias = register_parameter("output_bias", detail::empty_parameter({own.vocab_size()}));
  }
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void MaskedLanguageModelImpl::reset_parameters() {
  encoder->reset_parameters();
  transform->reset_parameters();
  if (output_bias.defined()) torch::nn::init::zeros_(output_bias);
}

void MaskedLanguageModelImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kMaskedLanguageModel)
      .show("vocab_size", options.encoder().vocab_size())
      .option("bias", options.bias(), true);
}

at::Tensor MaskedLanguageModelImpl::forward(const at::Tensor& tokens,
                                            const TransformerInputs& inputs,
                                            const std::optional<at::Tensor>& types) {
  const auto x = transform->forward(encoder->forward(tokens, inputs, types));
  const auto& embedding = encoder->token_embedding;
  if (detail::stand_in_of(*embedding) == nullptr) {
    return detail::linear(x, embedding->weight, output_bias);
  }
  const auto scores = detail::scores(embedding, x);
  return output_bias.defined() ? scores + output_bias : scores;
}

}  // namespace heed
