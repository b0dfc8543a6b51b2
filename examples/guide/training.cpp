#include <heed/heed.h>
#include <torch/torch.h>

#include <iostream>

#include "guide.h"

namespace guide {

namespace {

/// Sequences [B, L + 1] that count upwards from anywhere, modulo 16.
at::Tensor batch(int64_t size, int64_t length) {
  return (torch::randint(16, {size, 1}) + torch::arange(length + 1)).remainder(16);
}

heed::Decoder make_model() {
  auto attention = heed::GroupQueryAttentionOptions(/*emb_dim=*/32, /*head_num=*/4, /*group_num=*/2)
                       .rotary(heed::RotaryEmbeddingOptions(/*head_dim=*/8))
                       .dropout(0.1);
  auto block = heed::TransformerBlockOptions(attention).dropout(0.1);
  return heed::Decoder(heed::DecoderOptions(/*vocab_size=*/16, block, /*num_layers=*/2));
}

void train(heed::Decoder& model) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  model->train();
  for (int step = 0; step < 150; ++step) {
    auto tokens = batch(/*size=*/32, /*length=*/24);  // [B, L + 1]
    auto scores = model->forward(tokens.slice(1, 0, -1));
    auto loss =
        torch::nn::functional::cross_entropy(scores.flatten(0, 1), tokens.slice(1, 1).flatten());
    optimizer.zero_grad();
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
  }
}

void evaluate(heed::Decoder& model) {
  model->eval();
  torch::NoGradGuard no_grad;
  auto tokens = batch(8, 24);
  auto guessed = model->forward(tokens.slice(1, 0, -1)).argmax(-1);
  auto accuracy = guessed.eq(tokens.slice(1, 1)).to(torch::kFloat).mean().item<double>();
  std::cout << "accuracy above 0.95: " << (accuracy > 0.95) << '\n';
}

void checkpoint(heed::Decoder& model, torch::optim::Optimizer& optimizer) {
  heed::save_weights(*model, "model.safetensors");
  torch::save(optimizer, "optimizer.pt");

  heed::load_weights(*model, "model.safetensors");
  torch::load(optimizer, "optimizer.pt");
}

void less_memory() {
  auto block = heed::TransformerBlockOptions(heed::GroupQueryAttentionOptions(32, 4, 2));
  heed::Encoder encoder(heed::EncoderOptions(block, /*num_layers=*/2).checkpointing(true));
  encoder->train();
  encoder->forward(torch::randn({4, 24, 32})).sum().backward();
  std::cout << "checkpointed: " << encoder->parameters().front().grad().defined() << '\n';
}

void any_function() {
  heed::FeedForward layer(32);
  auto x = torch::randn({4, 24, 32});
  auto y = heed::checkpoint([&](const auto& in) { return layer->forward(in[0]).sin(); }, {x});
  y.sum().backward();
  std::cout << "by hand: " << layer->parameters().front().grad().defined() << '\n';
}

void lower_precision() {
  auto block = heed::TransformerBlockOptions(heed::GroupQueryAttentionOptions(32, 4, 2));
  heed::Encoder encoder(heed::EncoderOptions(block, /*num_layers=*/2));
  heed::Autocast autocast(torch::kCPU, torch::kBFloat16);
  encoder->forward(torch::randn({4, 24, 32})).square().mean().backward();
  std::cout << "gradients: " << encoder->parameters().front().grad().dtype() << '\n';
}

}  // namespace

void training() {
  torch::manual_seed(0);
  auto model = make_model();
  train(model);
  evaluate(model);
  torch::optim::AdamW optimizer(model->parameters());
  checkpoint(model, optimizer);
  less_memory();
  any_function();
  lower_precision();
}

}  // namespace guide
