// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

#include <vector>

namespace guide {

namespace {

heed::Encoder make_encoder() {
  auto attention = heed::GroupQueryAttentionOptions(/*d_model*/ 64, /*nhead*/ 4, /*groups*/ 4);
  auto feed_forward = heed::FeedForwardOptions(64)
                          .hidden_dim(128)  // dim_feedforward
                          .activation(heed::Activation::relu);
  auto layer = heed::TransformerBlockOptions(attention)
                   .feed_forward(feed_forward)
                   .norm_placement(heed::NormPlacement::post);
  return heed::Encoder(heed::EncoderOptions(layer, /*num_layers*/ 2));
}

heed::Encoder make_decoder() {
  auto attention = heed::GroupQueryAttentionOptions(64, 4, 4).causal(true);  // tgt_mask
  auto feed_forward =
      heed::FeedForwardOptions(64).hidden_dim(128).activation(heed::Activation::relu);
  auto layer = heed::TransformerBlockOptions(attention)
                   .feed_forward(feed_forward)
                   .cross_attention(true)
                   .norm_placement(heed::NormPlacement::pre);  // norm_first
  return heed::Encoder(heed::EncoderOptions(layer, 2).final_norm(true));
}

heed::Decoder make_gpt() {
  auto attention = heed::GroupQueryAttentionOptions(/*n_embd*/ 64, /*n_head*/ 4, /*groups*/ 4)
                       .input_bias(false)  // bias
                       .output_bias(false);
  auto block = heed::TransformerBlockOptions(attention)
                   .feed_forward(heed::FeedForwardOptions(64).bias(false))
                   .norm_bias(false);
  auto positions = heed::PositionEmbeddingOptions(64)
                       .kind(heed::PositionKind::learned)
                       .max_length(32);  // block_size
  return heed::Decoder(
      heed::DecoderOptions(/*vocab_size*/ 50, block, /*n_layer*/ 2).positions(positions));
}

void encoder() {
  auto model = make_encoder();
  heed::load_weights(*model, "encoder.pt",
                     heed::LoadOptions().name_map(heed::name_maps::transformer_encoder()));
  model->eval();

  auto expected = heed::read_weights("encoder_output.safetensors");
  auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);
  auto y = model(expected.at("x"), padding);
  std::cout << "encoder: " << torch::allclose(y[1].slice(0, 0, 7), expected.at("y"), 1e-5, 1e-5)
            << '\n';
}

void decoder() {
  auto model = make_decoder();
  heed::load_weights(*model, "decoder.pt",
                     heed::LoadOptions().name_map(heed::name_maps::transformer_decoder()));
  model->eval();

  auto expected = heed::read_weights("decoder_output.safetensors");
  auto y = model(expected.at("x"), heed::TransformerInputs().memory(expected.at("memory")));
  std::cout << "decoder: " << torch::allclose(y, expected.at("y"), 1e-5, 1e-5) << '\n';

  torch::NoGradGuard no_grad;
  auto inputs =
      heed::TransformerInputs().projected_memory(model->project_memory(expected.at("memory")));
  auto caches = model->make_caches(/*batch=*/expected.at("x").size(0), /*capacity=*/64);
  std::vector<torch::Tensor> steps;
  for (const auto& token : expected.at("x").split(1, /*dim=*/1)) {  // [B, 1, E]
    steps.push_back(model->forward_cached(token, caches, {}, inputs));
  }
  std::cout << "step by step: " << torch::allclose(torch::cat(steps, 1), y, 1e-5, 1e-5) << '\n';
}

void gpt() {
  auto model = make_gpt();
  heed::load_weights(*model, "gpt.pt",
                     heed::LoadOptions().key("model").name_map(heed::name_maps::nanogpt()));
  model->eval();

  auto expected = heed::read_weights("gpt_output.safetensors");
  auto y = model(expected.at("tokens"));
  std::cout << "gpt: " << torch::allclose(y, expected.at("y"), 1e-5, 1e-5) << '\n';
}

}  // namespace

void porting() { run(encoder, decoder, gpt); }

}  // namespace guide
