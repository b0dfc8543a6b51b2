// SPDX-License-Identifier: BSD-3-Clause
#include <heed/decoder.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/checks.h"
#include "core/plain.h"
#include "core/to_device.h"
#include "models/embedded_positions.h"
#include "models/embedding_scale.h"
#include "models/norm_options.h"
#include "modules/caches/caches.h"
#include "modules/layers/drop_out.h"
#include "modules/layers/embedding.h"
#include "modules/layers/linear.h"
#include "modules/layers/linear_cross_entropy.h"
#include "modules/layers/parameters.h"
#include "modules/layers/tied_weight.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kDecoder = "Decoder";

/// The input of the head for x [B, L, E]. It is scaled in place of the scores, which have more
/// elements; the head has no bias.
at::Tensor head_input(const at::Tensor& x, const DecoderOptions& options) {
  return options.scores_scale() == 1.0 ? x : x * options.scores_scale();
}

/// The positions of the tokens that are appended next: [L] or [B, L]. Padding behind the `counts`
/// of a sequence gets the position of its last token, so that none is beyond the longest sequence.
at::Tensor positions_of(const KVCache& cache, const at::Tensor& tokens, at::IntArrayRef counts) {
  auto positions = cache.next_positions(tokens.size(1));
  const auto batch = cache.options().batch();
  // Counts are not given, or their number is wrong, which the cache refuses.
  if (static_cast<int64_t>(counts.size()) != batch) return positions;
  const auto first = cache.next_positions(1).view({-1, 1});
  const auto own = detail::to_device(counts.vec(), positions.device()).unsqueeze(1);
  return at::minimum(positions, (first + own - 1).clamp_min(0));
}

/// The rows of each sequence's last counted token: x [B, L, E] -> [B, 1, E]. Those of sequences
/// without one are 0. Without counts, all tokens count.
at::Tensor last_counted(const at::Tensor& x, at::IntArrayRef counts) {
  const auto length = x.size(1);
  if (length == 0) return x.new_zeros({x.size(0), 1, x.size(2)});
  if (counts.empty()) return x.narrow(1, length - 1, 1);
  const auto count = detail::to_device(counts.vec(), x.device()).view({-1, 1, 1});
  const auto last = (count - 1).clamp_min(0).expand({-1, 1, x.size(2)});
  return x.gather(1, last).masked_fill(count.eq(0), 0.0);
}

void check_causal(const EncoderOptions& stack) {
  const auto is_causal = [](const TransformerBlockOptions& block) { return block.causal(); };
  HEED_CHECK(is_causal(stack.block()) &&
                 std::all_of(stack.blocks().begin(), stack.blocks().end(), is_causal),
             "{}: attention causal must be true", kDecoder);
}

void check_tokens(const at::Tensor& tokens, const torch::nn::Embedding& embedding) {
  detail::check_indices(kDecoder, "tokens", tokens, embedding->weight, "vocab_size",
                        detail::vocabulary(embedding));
}

/// Checks targets [B, L] of tokens [B, L], of which all are contiguous and on the CPU.
void check_targets(const at::Tensor& tokens, const at::Tensor& targets, int64_t ignore_index,
                   int64_t vocabulary) {
  const auto *x = tokens.const_data_ptr<int64_t>(), *y = targets.const_data_ptr<int64_t>();
  const auto length = tokens.size(1);
  // Whether all targets are the tokens at their places, and some of these differ from the next.
  bool equal = true, differ = false;
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    if (y[i] == ignore_index) continue;
    HEED_CHECK(y[i] >= 0 && y[i] < vocabulary,
               "{}: targets[{}][{}] ({}) must be ignore_index ({}), or at least 0 and below "
               "vocab_size ({})",
               kDecoder, i / length, i % length, y[i], ignore_index, vocabulary);
    equal = equal && y[i] == x[i];
    differ = differ || ((i + 1) % length != 0 && x[i + 1] != x[i]);
  }
  HEED_CHECK(!(equal && differ),
             "{}: targets must be the tokens that follow tokens, and these are the tokens "
             "themselves: pass text.slice(1, 0, -1) as tokens and text.slice(1, 1) as targets",
             kDecoder);
}

void check_loss(const at::Tensor& tokens, const at::Tensor& targets,
                const LinearCrossEntropyOptions& options, int64_t vocabulary) {
  detail::check_defined(kDecoder, "targets", targets);
  HEED_CHECK(targets.scalar_type() == at::kLong, "{}: targets dtype ({}) must be Long", kDecoder,
             c10::toString(targets.scalar_type()));
  HEED_CHECK(targets.sizes() == tokens.sizes(),
             "{}: targets {} must have the shape of tokens; tokens {}", kDecoder,
             detail::shape(targets), detail::shape(tokens));
  detail::check_same_device(kDecoder, "targets", targets, "tokens", tokens);
  HEED_CHECK(!options.bias(), "{}: bias must not be given: the scores are the head's", kDecoder);
  HEED_CHECK(!options.softcap(), "{}: softcap must not be given: it is an option of the decoder",
             kDecoder);
  if (!detail::is_plain(tokens) || !detail::is_plain(targets)) return;
  check_targets(tokens.contiguous(), targets.contiguous(), options.ignore_index(), vocabulary);
}

}  // namespace

DecoderImpl::DecoderImpl(const DecoderOptions& options) : options(options) { reset(); }

void DecoderImpl::reset() {
  const auto width = options.stack().block().emb_dim();
  detail::check_positive(kDecoder, "vocab_size", options.vocab_size());
  detail::check_positive(kDecoder, "emb_dim", width);
  detail::check_probability(kDecoder, "dropout", options.dropout());
  check_causal(options.stack());
  detail::check_factor(kDecoder, "embedding_scale", options.embedding_scale());
  detail::check_factor(kDecoder, "scores_scale", options.scores_scale());
  const auto softcap = options.softcap();
  HEED_CHECK(options.scores_scale() == 1.0 || options.head(),
             "{}: scores_scale ({}) must not be given without a head", kDecoder,
             options.scores_scale());
  HEED_CHECK(!options.score_bias() || options.head(), "{}: score_bias must be false without a head",
             kDecoder);
  HEED_CHECK(!softcap || options.head(), "{}: softcap ({}) must not be given without a head",
             kDecoder, softcap.value_or(0.0));
  HEED_CHECK(!softcap || (std::isfinite(*softcap) && *softcap > 0.0),
             "{}: softcap ({}) must be finite and above 0", kDecoder, softcap.value_or(0.0));
  token_embedding =
      register_module("token_embedding", detail::make_embedding(options.vocab_size(), width));
  if (const auto& positions = options.positions()) {
    HEED_CHECK(positions->emb_dim() == width,
               "{}: positions emb_dim ({}) must equal attention emb_dim ({})", kDecoder,
               positions->emb_dim(), width);
    position_embedding = register_module("position_embedding", PositionEmbedding(*positions));
  }
  if (options.embedding_norm()) {
    const auto norm = detail::embedding_norm_options(kDecoder, options.stack().block());
    embedding_norm = register_module("embedding_norm", Norm(norm));
  }
  stack = register_module("stack", Encoder(options.stack()));
  if (options.head() && !options.tied_head()) {
    head = register_module("head", detail::make_linear(width, options.vocab_size(), false));
  }
  if (options.score_bias()) {
    score_bias = register_buffer("score_bias", detail::empty_parameter({1, options.vocab_size()}));
  }
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void DecoderImpl::reset_parameters() {
  detail::initialize_embedding(*token_embedding);
  if (position_embedding) position_embedding->reset_parameters();
  if (embedding_norm) embedding_norm->reset_parameters();
  stack->reset_parameters();
  if (head) detail::initialize_linears(*head);
  if (score_bias.defined()) torch::nn::init::zeros_(score_bias);
}

void DecoderImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter printer(stream, kDecoder);
  printer.show("vocab_size", options.vocab_size());
  if (options.head()) {
    printer.show("tied_head", options.tied_head());
  } else {
    printer.show("head", false);
  }
  printer.option("score_bias", options.score_bias(), false)
      .option("embedding_norm", options.embedding_norm(), false)
      .option("embedding_scale", options.embedding_scale(), 1.0)
      .option("scores_scale", options.scores_scale(), 1.0)
      .option("softcap", options.softcap())
      .option("dropout", options.dropout(), 0.0);
}

at::Tensor DecoderImpl::embed(const at::Tensor& tokens, const std::optional<at::Tensor>& positions,
                              const detail::TiedWeight& weight) const {
  auto x = detail::scaled_embeddings(weight.embed(tokens), options.embedding_scale());
  if (position_embedding) x = position_embedding.ptr()->forward(x, positions);
  if (embedding_norm) x = embedding_norm.ptr()->forward(x);
  return detail::drop_out(x, options.dropout(), is_training());
}

detail::TiedWeight DecoderImpl::tied_weight() const {
  return {token_embedding, /*is_tied=*/options.head() && options.tied_head()};
}

at::Tensor DecoderImpl::plain_scores(const at::Tensor& x, const detail::TiedWeight& weight) const {
  if (head) return detail::project(head, detail::sharing(*head).enter(x));
  return weight.scores(x);
}

/// A bias is not shared among processes.
void DecoderImpl::check_whole_vocabulary() const {
  const bool has_part = detail::sharing(*token_embedding).part().has_value() ||
                        (head && detail::sharing(*head).part().has_value());
  HEED_CHECK(!has_part, "{}: score_bias must be false where processes share the vocabulary",
             kDecoder);
}

at::Tensor DecoderImpl::scores(const at::Tensor& x, const detail::TiedWeight& weight) const {
  if (!options.head()) return x;
  auto plain = plain_scores(head_input(x, options), weight);
  if (score_bias.defined()) {
    check_whole_vocabulary();
    plain = plain + score_bias;
  }
  const auto& cap = options.softcap();
  return cap ? *cap * at::tanh(plain / *cap) : plain;
}

at::Tensor DecoderImpl::forward(const at::Tensor& tokens, const TransformerInputs& inputs) {
  check_tokens(tokens, token_embedding);
  const auto positions = detail::embedded_positions(tokens, inputs, stack);
  const auto weight = tied_weight();
  return scores(stack->forward(embed(tokens, positions, weight), inputs), weight);
}

at::Tensor DecoderImpl::loss(const at::Tensor& tokens, const at::Tensor& targets,
                             const TransformerInputs& inputs,
                             const LinearCrossEntropyOptions& loss_options) const {
  HEED_CHECK(options.head(), "{}: loss needs a head: DecoderOptions::head is false", kDecoder);
  check_tokens(tokens, token_embedding);
  check_loss(tokens, targets, loss_options, detail::vocabulary(token_embedding));
  auto own_options = loss_options;
  own_options.softcap(options.softcap());
  if (score_bias.defined()) {
    check_whole_vocabulary();
    own_options.bias(score_bias.flatten());
  }
  const auto positions = detail::embedded_positions(tokens, inputs, stack);
  const auto weight = tied_weight();
  const auto x =
      head_input(stack.ptr()->forward(embed(tokens, positions, weight), inputs), options);
  const auto loss = head ? detail::loss_of_head(head, x, targets, own_options)
                         : weight.loss(x, targets, own_options);
  return loss_options.reduction() == LossReduction::none ? loss.view_as(targets) : loss;
}

at::Tensor DecoderImpl::forward_cached(const at::Tensor& tokens, std::vector<KVCache>& caches,
                                       at::IntArrayRef counts,
                                       const TransformerInputs& inputs) const {
  return forward_cached(tokens, caches, counts, /*last_only=*/false, inputs);
}

at::Tensor DecoderImpl::forward_cached(const at::Tensor& tokens, std::vector<KVCache>& caches,
                                       at::IntArrayRef counts, bool last_only,
                                       const TransformerInputs& inputs) const {
  check_tokens(tokens, token_embedding);
  const auto layers = stack->blocks->size();
  HEED_CHECK(caches.size() == layers, "{}: caches size ({}) must equal num_layers ({})", kDecoder,
             caches.size(), layers);
  detail::check_no_dropout(kDecoder, "dropout", options.dropout(), is_training());
  const detail::UndoOnError undo(caches);
  std::optional<at::Tensor> positions;
  if (position_embedding) positions = positions_of(caches.front(), tokens, counts);
  const auto weight = tied_weight();
  const auto x = stack->forward_cached(embed(tokens, positions, weight), caches, counts, inputs);
  return scores(last_only ? last_counted(x, counts) : x, weight);
}

at::Tensor DecoderImpl::forward_cached(const at::Tensor& tokens, PagedStep& step, bool last_only,
                                       const TransformerInputs& inputs) const {
  check_tokens(tokens, token_embedding);
  detail::check_step_tokens(kDecoder, "tokens", tokens, step);
  detail::check_no_dropout(kDecoder, "dropout", options.dropout(), is_training());
  const auto weight = tied_weight();
  const auto x = stack->forward_cached(embed(tokens, step.positions(), weight), step,
                                       /*first_layer=*/0, inputs);
  return scores(last_only ? x.index_select(1, step.last_tokens()) : x, weight);
}

PagedKVCache DecoderImpl::make_paged_cache(int64_t pages,
                                           const PagedCacheOptions& cache_options) const {
  return stack->make_paged_cache(pages, cache_options);
}

std::tuple<at::Tensor, std::vector<AttentionWeights>> DecoderImpl::forward_with_weights(
    const at::Tensor& tokens, const TransformerInputs& inputs) const {
  check_tokens(tokens, token_embedding);
  const auto positions = detail::embedded_positions(tokens, inputs, stack);
  const auto weight = tied_weight();
  auto [x, weights] = stack->forward_with_weights(embed(tokens, positions, weight), inputs);
  return {scores(x, weight), std::move(weights)};
}

std::vector<KVCache> DecoderImpl::make_caches(int64_t batch, int64_t capacity,
                                              const CacheOptions& cache_options) const {
  return stack->make_caches(batch, capacity, cache_options);
}

std::vector<ProjectedMemory> DecoderImpl::project_memory(const at::Tensor& memory) const {
  return stack->project_memory(memory);
}

}  // namespace heed
