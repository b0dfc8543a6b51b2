// The code that docs/distributed.md and the headers of heed/distributed show. A test runs it in two
// processes:
//   torchrun --no-python --standalone --nproc-per-node 2 guide_distributed
#include <fmt/core.h>
#include <heed/distributed.h>
#include <heed/heed.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "../support/run_main.h"

namespace {

using heed::distributed::ProcessGroup;

heed::DecoderOptions decoder_options() {
  auto attention = heed::GroupQueryAttentionOptions(/*emb_dim=*/32, /*head_num=*/4, /*group_num=*/2)
                       .rotary(heed::RotaryEmbeddingOptions(/*head_dim=*/8));
  return heed::DecoderOptions(/*vocab_size=*/100, heed::TransformerBlockOptions(attention),
                              /*num_layers=*/2);
}

/// Printed by one process.
void print(const ProcessGroup& group, const std::string& line) {
  if (group->getRank() == 0) fmt::print("{}\n", line);
}

/// [B, L + 1]: each sequence counts on from its first token.
at::Tensor batch(int64_t size, int64_t length) {
  return (torch::randint(100, {size, 1}) + torch::arange(length + 1)).remainder(100);
}

void data_parallel(const ProcessGroup& group) {
  auto options = decoder_options();
  const int64_t steps = 3;
  torch::manual_seed(1);
  heed::Decoder model(options);
  heed::distributed::DataParallel parallel(model, group);
  heed::distributed::ZeroRedundancyOptimizer optimizer(
      torch::optim::AdamW(model->parameters(), torch::optim::AdamWOptions(1e-3)), group);
  for (int64_t step = 0; step < steps; ++step) {
    auto tokens = batch(8, 10).chunk(group->getSize())[group->getRank()];  // this process's share
    auto loss = parallel.forward([&] {
      auto scores = model->forward(tokens.narrow(1, 0, 10));
      return torch::cross_entropy_loss(scores.flatten(0, 1), tokens.narrow(1, 1, 10).flatten());
    });
    optimizer.zero_grad();
    loss.backward();  // averages the gradients over the processes
    optimizer.step();
  }
  std::vector<at::Tensor> sum = {model->head ? model->head->weight.sum()
                                             : model->token_embedding->weight.sum()};
  const auto own = sum[0].item<float>();
  group->broadcast(sum)->wait();
  print(group, fmt::format("the same parameters: {}", own == sum[0].item<float>()));
}

void context_parallel(const ProcessGroup& group) {
  torch::manual_seed(2);
  const int64_t length = 16;
  auto x = torch::randn({1, 4, length, 8});
  auto query = heed::distributed::shard_sequence(x, 2, group), key = query, value = query;
  auto tokens = torch::arange(length).unsqueeze(0);
  {
    auto own_tokens = heed::distributed::shard_sequence(tokens, /*dim=*/1, group);  // [B, L / P]
    auto own_positions = heed::distributed::shard_sequence(torch::arange(length), 0, group);
    print(group, fmt::format("own tokens are own positions: {}",
                             own_tokens.squeeze(0).equal(own_positions)));
  }
  auto output = heed::distributed::ring_attend(query, key, value, group,
                                               heed::AttendOptions().causal(true));
  auto whole = heed::distributed::unshard_sequence(output, 2, group);
  auto expected = heed::attend(x, x, x, heed::AttendOptions().causal(true));
  print(group, fmt::format("ring_attend is attend: {}", whole.allclose(expected, 1e-5, 1e-6)));
}

}  // namespace

int main() {
  return heed::examples::run_main("guide_distributed", [] {
    auto group = heed::distributed::init_process_group();
    print(group, fmt::format("{} processes", group->getSize()));
    data_parallel(group);
    context_parallel(group);
    group->barrier()->wait();
    return 0;
  });
}
