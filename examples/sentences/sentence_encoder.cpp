#include "sentence_encoder.h"

#include <ATen/Functions.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <heed/weights.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "support/input_file.h"

namespace heed::examples {

namespace {

torch::nn::LayerNorm layer_norm(const SentenceEncoderOptions& options) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width}).eps(options.eps));
}

/// heed's attention for packed sentences x [T, E], each of which attends only to itself.
at::Tensor attend_packed(heed::MultiHeadAttentionImpl& attention, const at::Tensor& x,
                         const at::Tensor& offsets) {
  const auto split_heads = [&](const at::Tensor& projected) {
    return projected.unflatten(-1, {attention.options.head_nums(), -1});  // [T, H, D]
  };
  const auto dropout = attention.is_training() ? attention.options.dropout() : 0.0;
  const auto attended = heed::attend_varlen(
      split_heads(attention.fc_q(x)), split_heads(attention.fc_k(x)),
      split_heads(attention.fc_v(x)), offsets, offsets, AttendOptions().dropout(dropout));
  return attention.fc_out(attended.flatten(1));
}

/// Rows of length 1.
at::Tensor normalized(const at::Tensor& x) {
  return x / at::linalg_vector_norm(x, 2, -1, /*keepdim=*/true).clamp_min(1e-12);
}

}  // namespace

TokenEmbeddingsImpl::TokenEmbeddingsImpl(const SentenceEncoderOptions& options)
    : token(register_module("token", torch::nn::Embedding(options.vocabulary, options.width))),
      position(register_module("position", torch::nn::Embedding(options.positions, options.width))),
      type(register_module("type", torch::nn::Embedding(options.types, options.width))),
      norm(register_module("norm", layer_norm(options))),
      dropout(register_module("dropout", torch::nn::Dropout(options.dropout))) {}

at::Tensor TokenEmbeddingsImpl::forward(const at::Tensor& ids, const at::Tensor& positions) {
  const auto first_type = type->weight[0];  // sentences stand alone: none is a pair's second
  return dropout(norm(token(ids) + position(positions) + first_type));
}

EncoderBlockImpl::EncoderBlockImpl(const SentenceEncoderOptions& options)
    : attention(register_module(
          "attention", heed::MultiHeadAttention(options.width, options.heads, options.dropout))),
      attention_norm(register_module("attention_norm", layer_norm(options))),
      intermediate(
          register_module("intermediate", torch::nn::Linear(options.width, options.feed_forward))),
      output(register_module("output", torch::nn::Linear(options.feed_forward, options.width))),
      output_norm(register_module("output_norm", layer_norm(options))),
      dropout(register_module("dropout", torch::nn::Dropout(options.dropout))) {}

at::Tensor EncoderBlockImpl::forward(const at::Tensor& x, const at::Tensor& mask) {
  return after_attention(x, attention(x, mask));
}

at::Tensor EncoderBlockImpl::forward_packed(const at::Tensor& x, const at::Tensor& offsets) {
  return after_attention(x, attend_packed(*attention, x, offsets));
}

at::Tensor EncoderBlockImpl::after_attention(const at::Tensor& x, const at::Tensor& attended) {
  const auto middle = attention_norm(x + dropout(attended));
  return output_norm(middle + dropout(output(at::gelu(intermediate(middle)))));
}

SentenceEncoderImpl::SentenceEncoderImpl(const SentenceEncoderOptions& options)
    : options(options),
      embeddings(register_module("embeddings", TokenEmbeddings(options))),
      blocks(register_module("blocks", torch::nn::ModuleList())) {
  for (int64_t i = 0; i < options.blocks; ++i) blocks->push_back(EncoderBlock(options));
}

at::Tensor SentenceEncoderImpl::forward(const PaddedBatch& batch) {
  const auto length = batch.ids.size(1);
  const auto mask = heed::padding_mask(batch.lengths, length);  // [B, 1, 1, L]
  auto x = embeddings(batch.ids, at::arange(length, batch.ids.options()));
  for (const auto& block : *blocks) x = block->as<EncoderBlock>()->forward(x, mask);
  const auto real = mask.flatten(1).unsqueeze(-1);  // [B, L, 1]
  return normalized((x * real).sum(1) / batch.lengths.unsqueeze(-1));
}

at::Tensor SentenceEncoderImpl::forward(const PackedBatch& batch) {
  const auto count = batch.offsets.size(0) - 1;
  const auto lengths = batch.offsets.diff().to(batch.ids.device());
  const auto sentence = at::repeat_interleave(lengths);  // [T], of each token
  const auto starts = batch.offsets.narrow(0, 0, count).to(batch.ids.device());
  const auto positions =
      at::arange(batch.ids.size(0), batch.ids.options()) - starts.index_select(0, sentence);
  auto x = embeddings(batch.ids, positions);
  for (const auto& block : *blocks) {
    x = block->as<EncoderBlock>()->forward_packed(x, batch.offsets);
  }
  const auto sums = x.new_zeros({count, x.size(1)}).index_add(0, sentence, x);
  return normalized(sums / lengths.unsqueeze(-1));
}

namespace {

nlohmann::json read_json(const std::string& path) {
  auto file = open_input(path);
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception&) {
    throw std::runtime_error(path + " is not JSON");
  }
}

SentenceEncoderOptions read_options(const std::string& path) {
  const auto config = read_json(path);
  SentenceEncoderOptions options;
  try {
    const auto activation = config.at("hidden_act").get<std::string>();
    if (activation != "gelu") {
      throw std::runtime_error(path + ": hidden_act (" + activation + ") must be gelu");
    }
    options.vocabulary = config.at("vocab_size");
    options.positions = config.at("max_position_embeddings");
    options.types = config.at("type_vocab_size");
    options.width = config.at("hidden_size");
    options.heads = config.at("num_attention_heads");
    options.blocks = config.at("num_hidden_layers");
    options.feed_forward = config.at("intermediate_size");
    options.eps = config.at("layer_norm_eps");
  } catch (const nlohmann::json::exception& error) {
    const std::string reason = error.what();  // "[json.exception.out_of_range.403] key ..."
    throw std::runtime_error(
        path + " is no configuration of BERT: " + reason.substr(reason.find("] ") + 2));
  }
  return options;
}

/// The names of BERT's tensors in published files.
heed::NameMap published_names(int64_t blocks) {
  heed::NameMap map;
  map.rename("embeddings.word_embeddings", "embeddings.token")
      .rename("embeddings.position_embeddings", "embeddings.position")
      .rename("embeddings.token_type_embeddings", "embeddings.type")
      .rename("embeddings.LayerNorm", "embeddings.norm");
  const std::vector<std::pair<std::string, std::string>> in_block = {
      {"attention.self.query", "attention.fc_q"},
      {"attention.self.key", "attention.fc_k"},
      {"attention.self.value", "attention.fc_v"},
      {"attention.output.dense", "attention.fc_out"},
      {"attention.output.LayerNorm", "attention_norm"},
      {"intermediate.dense", "intermediate"},
      {"output.dense", "output"},
      {"output.LayerNorm", "output_norm"}};
  for (int64_t i = 0; i < blocks; ++i) {
    const auto their_block = "encoder.layer." + std::to_string(i) + ".";
    const auto our_block = "blocks." + std::to_string(i) + ".";
    for (const auto& [theirs, ours] : in_block) map.rename(their_block + theirs, our_block + ours);
  }
  // 0, 1, 2, ...; and a layer over the first token, which this model was not trained to use.
  return map.drop("embeddings.position_ids").drop("pooler");
}

}  // namespace

SentenceEncoder load_sentence_encoder(const std::string& folder) {
  SentenceEncoder encoder(read_options(folder + "/config.json"));
  heed::load_weights(*encoder, folder + "/model.safetensors",
                     heed::LoadOptions().name_map(published_names(encoder->options.blocks)));
  encoder->eval();
  return encoder;
}

}  // namespace heed::examples
