// SPDX-License-Identifier: BSD-3-Clause
// The code that docs/distributed.md and the headers of heed/distributed show. A test runs it:
//   torchrun --no-python --standalone --nproc-per-node 4 build/release/examples/guide_distributed
#include <fmt/core.h>
#include <heed/distributed.h>
#include <heed/heed.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "../support/run_main.h"

namespace {

using heed::distributed::ProcessGroup;

heed::DecoderOptions small_decoder() {
  auto attention = heed::GroupQueryAttentionOptions(/*emb_dim=*/32, /*head_num=*/4, /*group_num=*/2)
                       .rotary(heed::RotaryEmbeddingOptions(/*head_dim=*/8));
  return heed::DecoderOptions(/*vocab_size=*/100, heed::TransformerBlockOptions(attention),
                              /*num_layers=*/2);
}

/// Printed by one process, so that lines do not mix.
void print(const ProcessGroup& group, const std::string& line) {
  if (group->getRank() == 0) fmt::print("{}\n", line);
}

/// Whether all processes have the same number.
bool is_same(const ProcessGroup& group, const at::Tensor& number) {
  std::vector<at::Tensor> first = {number.detach().clone()};
  group->broadcast(first)->wait();
  return first[0].equal(number);
}

void data_parallel(const ProcessGroup& group, const heed::DecoderOptions& options) {
  torch::manual_seed(group->getRank());
  heed::Decoder model(options);
  heed::distributed::DataParallel parallel(model, group);
  heed::FusedAdamW optimizer(model->parameters(), 1e-3);
  auto tokens = torch::randint(100, {4, 11});  // this process's share of the batch
  auto loss = parallel.forward(
      [&] { return model->loss(tokens.narrow(1, 0, 10), tokens.narrow(1, 1, 10)); });
  loss.backward();  // averages the gradients over the processes
  optimizer.step();
  print(group, fmt::format("data parallel: the same parameters {}",
                           is_same(group, model->token_embedding->weight.sum())));
}

void accumulate(const ProcessGroup& group) {
  heed::Encoder model(heed::EncoderOptions(
      heed::TransformerBlockOptions(heed::GroupQueryAttentionOptions(32, 4, 2)), /*num_layers=*/1));
  heed::distributed::DataParallel parallel(model, group);
  auto x = torch::randn({2, 10, 32}), first = torch::randn({2, 10, 32}), second = x;
  auto mask = heed::causal_mask(10, 10);
  parallel.forward([&] { return model->forward(x, mask).square().mean(); }).backward();
  {
    auto no_sync = parallel.no_sync();
    parallel.forward(model, first).square().mean().backward();
  }
  parallel.forward(model, second).square().mean().backward();
}

void unequal_batches(const ProcessGroup& group) {
  heed::Encoder model(heed::EncoderOptions(
      heed::TransformerBlockOptions(heed::GroupQueryAttentionOptions(32, 4, 2)), /*num_layers=*/1));
  heed::distributed::DataParallel parallel(model, group);
  heed::FusedAdamW optimizer(model->parameters(), 1e-3);
  // One batch in the first process, two in the second, and so on.
  const std::vector<at::Tensor> batches(group->getRank() + 1, torch::randn({2, 10, 32}));
  auto step = [&] { optimizer.step(); };
  parallel.join(
      [&] {
        for (const auto& batch : batches) {
          optimizer.zero_grad();
          parallel.forward(model, batch).square().mean().backward();
          step();
        }
      },
      heed::distributed::JoinOptions().step(step));
  print(group, fmt::format("unequal batches: the same parameters {}",
                           is_same(group, model->parameters()[0].sum())));
}

void sharded_optimizer(const ProcessGroup& group) {
  heed::Encoder model(heed::EncoderOptions(
      heed::TransformerBlockOptions(heed::GroupQueryAttentionOptions(32, 4, 2)), /*num_layers=*/1));
  auto x = torch::randn({2, 10, 32});
  heed::distributed::DataParallel parallel(model, group);
  heed::distributed::ZeroRedundancyOptimizer optimizer(
      heed::FusedAdamW(model->parameters(), torch::optim::AdamWOptions(1e-3)), group);
  parallel.forward([&] { return model->forward(x).square().mean(); }).backward();
  heed::clip_grad_norm_(model->parameters(), 1.0);
  optimizer.step();
  print(group, fmt::format("sharded optimizer: the same parameters {}",
                           is_same(group, model->parameters()[0].sum())));
}

void parallel_linear(const ProcessGroup& group) {
  torch::manual_seed(3);
  auto x = torch::randn({2, 10, 64});
  heed::distributed::ColumnParallelLinearOptions wider(/*in_features=*/64, /*out_features=*/256);
  heed::distributed::RowParallelLinearOptions narrower(/*in_features=*/256, /*out_features=*/64);
  heed::distributed::ColumnParallelLinear up(wider, group);
  heed::distributed::RowParallelLinear down(narrower, group);
  auto y = down->forward(up->forward(x).relu());  // x and y [B, L, 64], equal in all processes
  print(group, fmt::format("parallel linear: the same output {}", is_same(group, y.sum())));
}

void tensor_parallel(const ProcessGroup& group, const heed::DecoderOptions& options) {
  auto tokens = torch::arange(20).view({2, 10}), targets = tokens + 1;
  torch::manual_seed(7);  // the same in all processes
  heed::Decoder model(options);
  heed::distributed::parallelize(*model, group);
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  model->loss(tokens, targets).backward();
  optimizer.step();
  auto scores = model->forward(tokens);  // [B, L, V / P]
  print(group, fmt::format("tensor parallel: {} of 100 scores", scores.size(2)));
}

void parts_of_parameters(const ProcessGroup& group, const heed::DecoderOptions& options) {
  torch::manual_seed(6);
  heed::Decoder model(options);
  heed::distributed::parallelize(*model, group);
  model->forward(torch::arange(20).view({2, 10})).sum().backward();
  heed::distributed::clip_grad_norm_(*model, /*max_norm=*/1.0, group);
  auto shards = heed::distributed::shards_of(*model);
  for (auto& parameter : model->named_parameters()) {
    auto shard = shards.find(parameter.key());
    if (shard == shards.end()) continue;  // whole in every process
    auto whole = heed::distributed::gather_shards(parameter.value(), shard->second, group);
  }
  print(group, fmt::format("{} parameters are split", shards.size()));
}

void scaled_gradients(const ProcessGroup& group, const heed::DecoderOptions& options) {
  torch::manual_seed(5);
  heed::Decoder model(options);
  heed::distributed::parallelize(*model, group);
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  auto loss = model->forward(torch::arange(20).view({2, 10})).square().mean();
  heed::distributed::ShardedGradScaler scaler(group);
  scaler.scale(loss).backward();
  scaler.unscale_(optimizer);
  heed::distributed::clip_grad_norm_(*model, /*max_norm=*/1.0, group);
  bool stepped = scaler.step(optimizer);
  scaler.update();
  print(group, fmt::format("scaled gradients: step {}", stepped));
}

void cross_entropy(const ProcessGroup& group, const heed::DecoderOptions& options) {
  auto tokens = torch::arange(20).view({2, 10}), targets = tokens + 1;
  torch::manual_seed(4);
  heed::Decoder model(options);
  heed::distributed::parallelize(*model, group);
  auto scores = model->forward(tokens);  // [B, L, V / P]
  auto loss = heed::distributed::vocab_parallel_cross_entropy(scores, targets, group);
  loss.backward();
}

void linear_cross_entropy(const ProcessGroup& group) {
  torch::manual_seed(4);
  auto x = torch::randn({6, 16}).requires_grad_();
  auto weight = torch::randn({100, 16}).requires_grad_();
  auto targets = torch::arange(6);
  auto own = weight.chunk(group->getSize())[group->getRank()];  // [V / P, E]
  auto loss = heed::distributed::vocab_parallel_linear_cross_entropy(x, own, targets, group);
  loss.backward();
  print(group, fmt::format("linear cross entropy: the same loss {}", is_same(group, loss)));
}

void sharded_weights(const ProcessGroup& group, const heed::DecoderOptions& options) {
  torch::manual_seed(8);
  heed::Decoder model(options);
  if (group->getRank() == 0) heed::save_weights(*model, "model.safetensors");
  group->barrier()->wait();
  heed::distributed::parallelize(*model, group);
  heed::distributed::load_weights(*model, "model.safetensors", group);
  heed::distributed::save_weights(*model, "model.safetensors", group);
}

void context_parallel(const ProcessGroup& group) {
  torch::manual_seed(2);
  const int64_t length = 16;
  auto x = torch::randn({1, 4, length, 8});
  auto query = heed::distributed::shard_sequence(x, 2, group), key = query, value = query;
  auto tokens = torch::arange(length).unsqueeze(0);
  auto own_tokens = heed::distributed::shard_sequence(tokens, /*dim=*/1, group);  // [B, L / P]
  auto own_positions = heed::distributed::shard_sequence(torch::arange(length), 0, group);
  auto options = heed::AttendOptions().causal(true);
  auto output = heed::distributed::ring_attend(query, key, value, group, options);
  auto whole = heed::distributed::unshard_sequence(output, 2, group);
  auto expected = heed::attend(x, x, x, options);
  print(group, fmt::format("own positions {}, ring_attend is attend {}",
                           own_tokens[0].equal(own_positions), whole.allclose(expected, 1e-4)));
}

void share_sequence(const ProcessGroup& group, const heed::DecoderOptions& options) {
  torch::manual_seed(5);
  heed::Decoder model(options);
  auto tokens = torch::arange(16).unsqueeze(0);
  heed::distributed::share_sequence(*model, group);
  auto scores = model->forward(heed::distributed::shard_sequence(tokens, 1, group));
  print(group, fmt::format("shared sequence: {} of 16 tokens", scores.size(1)));
}

void expert_parallel(const ProcessGroup& group, heed::DecoderOptions options) {
  auto expert = heed::FeedForwardOptions(/*emb_dim=*/32).hidden_dim(48);
  options.stack().block().feed_forward(
      heed::MixtureOfExpertsOptions(expert, /*expert_num=*/8, /*top_k=*/2));
  torch::manual_seed(7);  // the same in all processes
  heed::Decoder model(options);
  heed::distributed::parallelize_experts(*model, group);
  heed::distributed::DataParallel parallel(model, group);
  heed::FusedAdamW optimizer(model->parameters(), 1e-3);
  auto own_tokens = torch::randint(100, {2, 10}), own_targets = torch::randint(100, {2, 10});
  heed::RoutingRecord record;
  auto loss = parallel.forward([&] {
    const auto own_loss = model->loss(own_tokens, own_targets);
    return own_loss + 0.01 * heed::distributed::load_balancing_loss(record.routings(), group);
  });
  loss.backward();
  heed::distributed::clip_grad_norm_(*model, /*max_norm=*/1.0, group);
  optimizer.step();
  const auto router = model->named_parameters()["stack.blocks.0.feed_forward.router.weight"];
  print(group, fmt::format("expert parallel: the same router {}", is_same(group, router.sum())));
}

void mesh(const ProcessGroup& group, const heed::DecoderOptions& options) {
  torch::manual_seed(6);
  heed::Decoder model(options);
  heed::distributed::Mesh mesh(group, heed::distributed::MeshOptions().data(2).tensor(2));
  heed::distributed::parallelize(*model, mesh.tensor());
  heed::distributed::DataParallel parallel(model, mesh.replicas());
  print(group, fmt::format("mesh: {} replicas, {} parts of the weights", mesh.replicas()->getSize(),
                           mesh.tensor()->getSize()));
}

void all_together(const ProcessGroup& group, const heed::DecoderOptions& options) {
  heed::distributed::MeshOptions sizes;
  heed::distributed::Mesh mesh(group, sizes.data(1).context(2).tensor(2));
  torch::manual_seed(9);  // the same in all processes
  heed::Decoder model(options);
  heed::distributed::parallelize(*model, mesh.tensor());
  heed::distributed::share_sequence(*model, mesh.context());
  heed::distributed::DataParallel parallel(model, mesh.replicas());
  heed::FusedAdamW optimizer(model->parameters(), 1e-3);

  torch::manual_seed(10 + mesh.data_rank());  // another part of the data for each data_rank
  auto tokens = torch::randint(100, {4, 17});
  auto own = heed::distributed::shard_sequence(tokens.narrow(1, 0, 16), 1, mesh.context());
  auto targets = heed::distributed::shard_sequence(tokens.narrow(1, 1, 16), 1, mesh.context());
  parallel.forward([&] { return model->loss(own, targets); }).backward();
  optimizer.step();
  print(group, fmt::format("all together: {} of 16 tokens, {} of 100 scores", own.size(1),
                           model->token_embedding->weight.size(0)));
}

}  // namespace

int main() {
  return heed::examples::run_main("guide_distributed", [] {
    auto group = heed::distributed::init_process_group();
    fmt::print("process {} of {}\n", group->getRank(), group->getSize());
    const auto options = small_decoder();
    data_parallel(group, options);
    accumulate(group);
    unequal_batches(group);
    sharded_optimizer(group);
    parallel_linear(group);
    tensor_parallel(group, options);
    parts_of_parameters(group, options);
    scaled_gradients(group, options);
    cross_entropy(group, options);
    linear_cross_entropy(group);
    sharded_weights(group, options);
    context_parallel(group);
    share_sequence(group, options);
    expert_parallel(group, options);
    mesh(group, options);
    all_together(group, options);
    group->barrier()->wait();
    return 0;
  });
}
