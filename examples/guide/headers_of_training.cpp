// SPDX-License-Identifier: BSD-3-Clause
#include <fstream>
#include <iterator>
#include <sstream>

#include "guide.h"

namespace guide {

/// One function for each header, with the examples in its comments.
namespace header {

namespace {

void autocast() {
  heed::FeedForward model(64);
  auto x = torch::randn({2, 10, 64});
  heed::Autocast autocast(torch::kCPU, torch::kBFloat16);
  auto loss = model->forward(x).square().mean();
}

void checkpoint() {
  heed::FeedForward block(64);
  auto x = torch::randn({2, 10, 64});
  auto y = heed::checkpoint([&](const auto& in) { return block->forward(in[0]); }, {x});
  y.sum().backward();
}

void routing_record() {
  heed::TransformerBlockOptions block(heed::GroupQueryAttentionOptions(64, 4, 2));
  block.feed_forward(heed::MixtureOfExpertsOptions(64, 8, 2));
  heed::Decoder model(heed::DecoderOptions(/*vocab_size=*/100, block, /*num_layers=*/2));
  auto text = torch::randint(100, {2, 11});
  heed::RoutingRecord record;
  auto loss = model->loss(text.slice(1, 0, -1), text.slice(1, 1));
  loss = loss + 0.01 * heed::load_balancing_loss(record.routings());
  loss.backward();
}

at::Tensor loss_of(heed::FeedForward& model, const at::Tensor& x) {
  heed::Autocast autocast(torch::kCPU, torch::kHalf);
  return model->forward(x).to(torch::kFloat).square().mean();
}

void clip_grad_norm() {
  heed::FeedForward model(64);
  model->forward(torch::randn({2, 10, 64})).sum().backward();
  heed::clip_grad_norm_(model->parameters(), /*max_norm=*/1.0);
}

void fused_adamw() {
  heed::FeedForward model(64);
  auto x = torch::randn({2, 10, 64});
  heed::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    loss_of(model, x).backward();
    optimizer.step_clipped(/*max_norm=*/1.0);  // or step()
  }
}

void grad_scaler() {
  heed::FeedForward model(64);
  auto x = torch::randn({2, 10, 64});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  heed::GradScaler scaler;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    scaler.scale(loss_of(model, x)).backward();
    scaler.unscale_(optimizer);  // only if gradients are clipped or looked at
    heed::clip_grad_norm_(model->parameters(), 1.0);
    scaler.step(optimizer);
    scaler.update();
  }
}

void add_adapter() {
  heed::FeedForward layer(heed::FeedForwardOptions(/*emb_dim=*/64));
  heed::add_adapter(*layer, heed::LoraOptions(/*rank=*/4).alpha(8.0));
  heed::FusedAdamW optimizer(heed::adapter_parameters(*layer), torch::optim::AdamWOptions(1e-3));
}

void pack_weights() {
  heed::MultiHeadAttention attention(64, 4);
  attention->eval();
  heed::pack_weights(*attention, heed::PackFormat::int8);
  auto y = attention->forward(torch::randn({2, 10, 64}));
}

void linear() {
  torch::nn::Linear fc(64, 128);
  auto y = heed::linear(fc, torch::randn({2, 10, 64}));  // [2, 10, 128]
}

void linear_cross_entropy() {
  auto x = torch::randn({6, 16}).requires_grad_();
  auto weight = torch::randn({100, 16}).requires_grad_();
  auto targets = torch::tensor({3, 1, 4, 1, -100, 9});  // the fifth row is ignored
  auto loss = heed::linear_cross_entropy(x, weight, targets);
  loss.backward();
}

void model_cost() {
  heed::Decoder model(heed::DecoderOptions(100, heed::GroupQueryAttentionOptions(64, 4, 2), 2));
  std::cout << heed::model_cost(*model, /*batch=*/1, /*length=*/1024);
}

/// Reads the file that the guide of weights has written.
void name_maps() {
  // Three matrices in the file, one in the module; the module has no output projection.
  auto names = heed::NameMap().pack({"query", "key", "value"}, "qkv").drop("dense");
  heed::AttentionV1 attention(/*emb_dim=*/64);
  auto options = heed::LoadOptions().name_map(names);
  heed::load_weights(*attention, "other.safetensors", options);
}

void save_weights() {
  heed::MultiHeadAttention attention(64, 4);
  heed::save_weights(*attention, "attention.safetensors");
  heed::load_weights(*attention, "attention.safetensors");
}

void save_tensors() {
  heed::MultiHeadAttention attention(64, 4);
  auto x = torch::randn({2, 10, 64});  // [B, L, E]
  auto [output, weights] = attention->forward_with_weights(x);
  heed::save_weights({{"output", output}, {"weights", weights}}, "maps.safetensors");
}

void load_weights_of_a_stream() {
  heed::MultiHeadAttention attention(64, 4);
  std::ifstream file("attention.safetensors", std::ios::binary);
  std::string bytes_of_a_file(std::istreambuf_iterator<char>(file), {});
  std::istringstream stream(bytes_of_a_file);
  heed::load_weights(*attention, stream);
}

void named_tensors() {
  heed::NamedTensors tensors = heed::read_weights("attention.safetensors");
  std::cout << tensors.at("fc_q.weight").sizes() << '\n';
}

void load_weights() {
  heed::MultiHeadAttention attention(/*emb_dim=*/64, /*head_nums=*/4);
  auto options = heed::LoadOptions().strict(false);
  auto report = heed::load_weights(*attention, "attention.safetensors", options);
  std::cout << report.loaded.size() << " loaded, " << report.missing.size() << " missing\n";
}

void run_training() {
  run(autocast, checkpoint, routing_record, clip_grad_norm, fused_adamw, grad_scaler, add_adapter,
      pack_weights, linear, linear_cross_entropy, model_cost, name_maps, save_weights, save_tensors,
      load_weights_of_a_stream, named_tensors, load_weights);
}

}  // namespace

}  // namespace header

void headers_of_training() { header::run_training(); }

}  // namespace guide
