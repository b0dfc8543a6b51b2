#include <heed/decoder.h>

#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>

#include <utility>

#include "core/checks.h"
#include "modules/initialise.h"
#include "modules/linear.h"
#include "modules/module_checks.h"

namespace heed {

namespace {

constexpr auto kDecoder = "Decoder";

}  // namespace

DecoderImpl::DecoderImpl(const DecoderOptions& options) : options(options) { reset(); }

void DecoderImpl::reset() {
  const auto& attention = options.stack().block().attention();
  detail::check_positive(kDecoder, "vocab_size", options.vocab_size());
  detail::check_positive(kDecoder, "emb_dim", attention.emb_dim());
  detail::check_probability(kDecoder, "dropout", options.dropout());
  HEED_CHECK(attention.causal(), "{}: attention causal must be true", kDecoder);
  const auto width = attention.emb_dim();
  token_embedding =
      register_module("token_embedding", torch::nn::Embedding(options.vocab_size(), width));
  if (const auto& positions = options.positions()) {
    HEED_CHECK(positions->emb_dim() == width,
               "{}: positions emb_dim ({}) must equal attention emb_dim ({})", kDecoder,
               positions->emb_dim(), width);
    position_embedding = register_module("position_embedding", PositionEmbedding(*positions));
  }
  stack = register_module("stack", Encoder(options.stack()));
  if (!options.tied_head()) {
    head = register_module("head", detail::make_linear(width, options.vocab_size(), false));
  }
  reset_parameters();
}

void DecoderImpl::reset_parameters() {
  torch::nn::init::normal_(token_embedding->weight, 0.0, detail::kInitialDeviation);
  if (position_embedding) position_embedding->reset_parameters();
  stack->reset_parameters();
  if (head) detail::initialise_linears(*head);
}

void DecoderImpl::pretty_print(std::ostream& stream) const {
  stream << "heed::Decoder(vocab_size=" << options.vocab_size()
         << ", tied_head=" << (options.tied_head() ? "true" : "false") << ")";
}

at::Tensor DecoderImpl::forward(const at::Tensor& tokens, const std::optional<at::Tensor>& mask) {
  return std::as_const(*this).forward(tokens, TransformerInputs().mask(mask));
}

at::Tensor DecoderImpl::forward(const at::Tensor& tokens, const TransformerInputs& inputs,
                                std::vector<KVCache>* caches) const {
  const auto& weight = token_embedding->weight;
  detail::check_tokens(kDecoder, tokens, weight);
  const auto layers = static_cast<size_t>(options.stack().num_layers());
  HEED_CHECK(caches == nullptr || caches->size() == layers,
             "{}: caches size ({}) must equal num_layers ({})", kDecoder, caches->size(), layers);
  auto x = at::embedding(weight, tokens);
  if (position_embedding) {
    std::optional<at::Tensor> positions;
    if (caches != nullptr) positions = caches->front().next_positions(tokens.size(1));
    x = position_embedding.ptr()->forward(x, positions);
  }
  x = at::dropout(x, options.dropout(), is_training());
  x = std::as_const(*stack).forward(x, inputs, caches);
  return head ? detail::project(head, x) : at::linear(x, weight);
}

}  // namespace heed
