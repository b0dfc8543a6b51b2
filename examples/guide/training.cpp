// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

#include <cmath>

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

// Rises for 10 steps, then falls to a tenth by half a cosine.
double learning_rate(int64_t step, int64_t steps) {
  constexpr double highest = 3e-3;
  constexpr int64_t warm_up = 10;
  if (step < warm_up) return highest * static_cast<double>(step + 1) / warm_up;
  auto done = static_cast<double>(step - warm_up) / static_cast<double>(steps - warm_up);
  return highest * (0.1 + 0.45 * (1.0 + std::cos(M_PI * done)));
}

void train_steps(heed::Decoder& model, torch::optim::Optimizer& optimizer, int64_t first,
                 int64_t last) {
  for (int64_t step = first; step < last; ++step) {
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(learning_rate(step, /*steps=*/100));
    }
    auto text = batch(32, 24);
    optimizer.zero_grad();
    model->loss(text.slice(1, 0, -1), text.slice(1, 1)).backward();
    optimizer.step();
  }
}

void train(heed::Decoder& model) {
  heed::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  model->train();
  for (int step = 0; step < 150; ++step) {
    auto text = batch(/*size=*/32, /*length=*/24);  // [B, L + 1]
    auto loss = model->loss(text.slice(1, 0, -1), text.slice(1, 1));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step_clipped(/*max_norm=*/1.0);
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

double perplexity(const heed::Decoder& model, const at::Tensor& text) {
  torch::NoGradGuard no_grad;
  return std::exp(model->loss(text.slice(1, 0, -1), text.slice(1, 1)).item<double>());
}

void checkpoint(heed::Decoder& model, torch::optim::Optimizer& optimizer, int64_t steps_done) {
  heed::save_weights(*model, "model.safetensors");
  torch::save(optimizer, "optimizer.pt");
  torch::save(torch::tensor(steps_done), "steps_done.pt");
}

int64_t resume(heed::Decoder& model, torch::optim::Optimizer& optimizer) {
  heed::load_weights(*model, "model.safetensors");
  torch::load(optimizer, "optimizer.pt");
  torch::Tensor steps_done;
  torch::load(steps_done, "steps_done.pt");
  return steps_done.item<int64_t>();
}

/// Trains in one go, and in two with everything forgotten in between: equal weights, bit for bit.
void stop_and_resume() {
  auto options = heed::DecoderOptions(
      16, heed::TransformerBlockOptions(heed::GroupQueryAttentionOptions(32, 4, 2)), 1);
  auto run = [&](int64_t stop) {
    torch::manual_seed(1);
    heed::Decoder model(options);
    heed::FusedAdamW optimizer(model->parameters());
    torch::manual_seed(2);
    train_steps(model, optimizer, 0, stop);
    if (stop == 100) return model->token_embedding->weight;
    checkpoint(model, optimizer, stop);
    heed::Decoder resumed(options);
    heed::FusedAdamW fresh(resumed->parameters());
    auto steps_done = resume(resumed, fresh);
    torch::manual_seed(2);  // the same data, from where it stopped
    for (int64_t step = 0; step < steps_done; ++step) batch(32, 24);
    train_steps(resumed, fresh, steps_done, 100);
    return resumed->token_embedding->weight;
  };
  std::cout << "resumed: " << run(40).equal(run(100)) << '\n';
}

heed::Decoder make_mixture() {
  auto expert = heed::FeedForwardOptions(/*emb_dim=*/32).hidden_dim(48);
  expert.activation(heed::Activation::swiglu);
  heed::TransformerBlockOptions block(heed::GroupQueryAttentionOptions(32, 4, 2));
  block.feed_forward(heed::MixtureOfExpertsOptions(expert, /*expert_num=*/8, /*top_k=*/2));
  return heed::Decoder(heed::DecoderOptions(/*vocab_size=*/16, block, /*num_layers=*/2));
}

at::Tensor balanced_loss(heed::Decoder& model, const at::Tensor& text) {
  heed::RoutingRecord record;
  auto loss = model->loss(text.slice(1, 0, -1), text.slice(1, 1));
  loss = loss + 0.01 * heed::load_balancing_loss(record.routings());
  return loss + 0.001 * heed::router_z_loss(record.routings());
}

void train_mixture() {
  auto model = make_mixture();
  heed::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    balanced_loss(model, batch(32, 24)).backward();
    optimizer.step();
  }
  heed::RoutingRecord record;
  model->forward(batch(8, 24));
  auto share = heed::load_balancing_loss(record.routings()).item<double>();
  std::cout << "balanced: " << (share < 2.5) << '\n';  // 2 if all experts get as many tokens
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

at::Tensor loss_in_float16(heed::Decoder& model, const at::Tensor& text) {
  heed::Autocast autocast(torch::kCPU, torch::kHalf);
  return model->loss(text.slice(1, 0, -1), text.slice(1, 1));
}

void scaled_gradients() {
  auto model = make_model();
  heed::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  heed::GradScaler scaler;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    scaler.scale(loss_in_float16(model, batch(32, 24))).backward();
    scaler.unscale_(optimizer);  // before gradients are clipped
    heed::clip_grad_norm_(model->parameters(), 1.0);
    scaler.step(optimizer);
    scaler.update();
  }
  torch::save(scaler, "scaler.pt");
  heed::GradScaler loaded;
  torch::load(loaded, "scaler.pt");
  std::cout << "saved scale: " << (loaded.scale() == scaler.scale()) << '\n';
}

}  // namespace

void training() {
  torch::manual_seed(0);
  auto model = make_model();
  train(model);
  evaluate(model);
  std::cout << "perplexity below 2: " << (perplexity(model, batch(8, 24)) < 2) << '\n';
  run(stop_and_resume, train_mixture, less_memory, any_function, lower_precision, scaled_gradients);
}

}  // namespace guide
