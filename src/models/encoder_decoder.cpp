// SPDX-License-Identifier: BSD-3-Clause
#include <heed/encoder_decoder.h>

#include "core/checks.h"
#include "models/block_options.h"
#include "modules/layers/embedding.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kEncoderDecoder = "EncoderDecoder";

const EncoderOptions& stack_of(const SourceEncoderOptions& encoder) {
  return std::visit([](const auto& own) -> const EncoderOptions& { return own.stack(); }, encoder);
}

/// Throws if the inputs of the decoder have what comes from the source.
void check_target_inputs(const TransformerInputs& inputs) {
  HEED_CHECK(!inputs.memory() && inputs.projected_memory().empty() && !inputs.memory_mask(),
             "{}: target must have no memory, projected_memory and memory_mask: they come from the "
             "source",
             kEncoderDecoder);
}

/// Throws if a block of the decoder does not take what an encoder of this width returns.
void check_width_of_memory(const TransformerBlockOptions& block, int64_t width) {
  const bool has_own = block.cross_attention_layer().has_value();
  HEED_CHECK(!block.cross_attention() || detail::memory_width(block) == width,
             "{}: decoder {} ({}) must equal encoder emb_dim ({})", kEncoderDecoder,
             has_own ? "cross_attention key_emb_dim" : "emb_dim", detail::memory_width(block),
             width);
}

void check_source_and_target(const at::Tensor& source, const at::Tensor& target) {
  detail::check_defined(kEncoderDecoder, "source", source);
  detail::check_defined(kEncoderDecoder, "target", target);
  const bool have_batch = source.dim() > 0 && target.dim() > 0;
  if (have_batch) detail::check_same_dim(kEncoderDecoder, "target", target, "source", source, 0);
}

}  // namespace

EncoderDecoderImpl::EncoderDecoderImpl(const EncoderDecoderOptions& options) : options(options) {
  reset();
}

void EncoderDecoderImpl::check_options() const {
  const auto& stack = stack_of(options.encoder());
  const auto& decoder = options.decoder();
  const auto width = stack.block().emb_dim();
  check_width_of_memory(decoder.stack().block(), width);
  for (const auto& block : decoder.stack().blocks()) check_width_of_memory(block, width);
  HEED_CHECK(!stack.block().cross_attention(), "{}: encoder cross_attention must be false",
             kEncoderDecoder);
  HEED_CHECK(decoder.stack().block().cross_attention(), "{}: decoder cross_attention must be true",
             kEncoderDecoder);
  const auto* text = std::get_if<TextEncoderOptions>(&options.encoder());
  if (text == nullptr || text->token_embedding()) return;
  HEED_CHECK(text->vocab_size() == decoder.vocab_size(),
             "{}: encoder vocab_size ({}) must equal decoder vocab_size ({}) without "
             "token_embedding",
             kEncoderDecoder, text->vocab_size(), decoder.vocab_size());
  const auto embedding_dim = text->embedding_dim().value_or(width);
  const auto shared_dim = decoder.stack().block().emb_dim();
  HEED_CHECK(embedding_dim == shared_dim,
             "{}: encoder embedding_dim ({}) must equal emb_dim ({}) without token_embedding",
             kEncoderDecoder, embedding_dim, shared_dim);
}

void EncoderDecoderImpl::reset() {
  check_options();
  if (const auto* text = std::get_if<TextEncoderOptions>(&options.encoder())) {
    encoder = register_module("encoder", TextEncoder(*text));
  } else {
    frame_encoder = register_module("frame_encoder",
                                    FrameEncoder(std::get<FrameEncoderOptions>(options.encoder())));
  }
  decoder = register_module("decoder", Decoder(options.decoder()));
}

void EncoderDecoderImpl::reset_parameters() {
  if (encoder) encoder->reset_parameters();
  if (frame_encoder) frame_encoder->reset_parameters();
  decoder->reset_parameters();
}

void EncoderDecoderImpl::pretty_print(std::ostream& stream) const {
  const detail::ModulePrinter printer(stream, kEncoderDecoder);
}

void EncoderDecoderImpl::check_source_mask(const at::Tensor& source,
                                           const std::optional<at::Tensor>& source_mask) const {
  if (!source_mask) return;
  HEED_CHECK(encoder, "{}: source_mask must be absent: the source has frames", kEncoderDecoder);
  if (!source.defined() || source.dim() != 2) return;  // which the encoder refuses
  const auto batch = source.size(0), length = source.size(1);
  const auto& mask = *source_mask;
  HEED_CHECK(mask.defined() && mask.dim() == 4 && (mask.size(0) == batch || mask.size(0) == 1) &&
                 mask.size(1) == 1 && mask.size(2) == 1 && mask.size(3) == length,
             "{}: source_mask must be [{} or 1, 1, 1, {}], as padding_mask returns it; source_mask "
             "{}",
             kEncoderDecoder, batch, length, mask.defined() ? detail::shape(mask) : "undefined");
}

at::Tensor EncoderDecoderImpl::encode(const at::Tensor& source,
                                      const std::optional<at::Tensor>& source_mask) {
  check_source_mask(source, source_mask);
  if (frame_encoder) return frame_encoder->forward(source);
  if (encoder->token_embedding) return encoder->forward(source, source_mask);
  const auto& shared = decoder->token_embedding;
  detail::check_indices(kEncoderDecoder, "source", source, shared->weight, "vocab_size",
                        detail::vocabulary(shared));
  return encoder->forward(detail::embed(shared, source), source_mask);
}

TransformerInputs EncoderDecoderImpl::target_inputs(const at::Tensor& source,
                                                    const EncoderDecoderInputs& inputs) {
  check_target_inputs(inputs.target());
  detail::check_defined(kEncoderDecoder, "source", source);
  auto own = inputs.target();
  return own.memory(encode(source, inputs.source_mask())).memory_mask(inputs.source_mask());
}

at::Tensor EncoderDecoderImpl::forward(const at::Tensor& source, const at::Tensor& target,
                                       const EncoderDecoderInputs& inputs) {
  check_source_and_target(source, target);
  return decoder->forward(target, target_inputs(source, inputs));
}

at::Tensor EncoderDecoderImpl::loss(const at::Tensor& source, const at::Tensor& target,
                                    const at::Tensor& targets, const EncoderDecoderInputs& inputs,
                                    const LinearCrossEntropyOptions& loss_options) {
  check_source_and_target(source, target);
  return decoder->loss(target, targets, target_inputs(source, inputs), loss_options);
}

std::vector<ProjectedMemory> EncoderDecoderImpl::project_memory(const at::Tensor& memory) const {
  return decoder->project_memory(memory);
}

at::Tensor EncoderDecoderImpl::forward_cached(const at::Tensor& target,
                                              std::vector<KVCache>& caches, at::IntArrayRef counts,
                                              const TransformerInputs& inputs) const {
  return decoder->forward_cached(target, caches, counts, inputs);
}

at::Tensor EncoderDecoderImpl::forward_cached(const at::Tensor& target,
                                              std::vector<KVCache>& caches, at::IntArrayRef counts,
                                              bool last_only,
                                              const TransformerInputs& inputs) const {
  return decoder->forward_cached(target, caches, counts, last_only, inputs);
}

at::Tensor EncoderDecoderImpl::forward_cached(const at::Tensor& target, PagedStep& step,
                                              bool last_only,
                                              const TransformerInputs& inputs) const {
  return decoder->forward_cached(target, step, last_only, inputs);
}

PagedKVCache EncoderDecoderImpl::make_paged_cache(int64_t pages,
                                                  const PagedCacheOptions& cache_options) const {
  return decoder->make_paged_cache(pages, cache_options);
}

std::vector<KVCache> EncoderDecoderImpl::make_caches(int64_t batch, int64_t capacity,
                                                     const CacheOptions& cache_options) const {
  return decoder->make_caches(batch, capacity, cache_options);
}

}  // namespace heed
