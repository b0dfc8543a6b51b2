// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/heed.h>
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/simulated_cuda/graph.h"
#include "support/simulated_cuda/simulated_cuda.h"
#include "support/transformers.h"

/// One step of decoding in a CUDA graph.

namespace heed::test::of_decoding_graphs {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, G = 2, D = 8, V = 50, kCapacity = 24, kPrompt = 6;

const at::Device kDevice(at::kCUDA, 0);

/// The most likely token after each sequence's token at `last`: [B, 1].
at::Tensor greedy(const at::Tensor& scores, const std::vector<int64_t>& counts) {
  std::vector<at::Tensor> tokens;
  for (int64_t b = 0; b < B; ++b) tokens.push_back(scores[b][counts[b] - 1].argmax(0, true));
  return at::stack(tokens);
}

/// The tokens that a prompt is continued with, step by step on the CPU: [B, n].
at::Tensor expected_tokens(Decoder model, const at::Tensor& prompt,
                           const std::vector<int64_t>& counts, int64_t n) {
  auto caches = model->make_caches(B, kCapacity);
  auto token = greedy(model->forward_cached(prompt, caches, counts), counts);
  std::vector<at::Tensor> tokens;
  for (int64_t i = 0; i < n; ++i) {
    token = greedy(model->forward_cached(token, caches), {1, 1});
    tokens.push_back(token);
  }
  return at::cat(tokens, 1);
}

/// The same, with every step a replay of one graph.
at::Tensor tokens_of_graph(Decoder model, const at::Tensor& prompt,
                           const std::vector<int64_t>& counts, int64_t n) {
  auto caches = model->make_caches(B, kCapacity, CacheOptions().fixed_shapes(true));
  const auto token = greedy(model->forward_cached(prompt, caches, counts), counts);
  const auto step = [&] { token.copy_(greedy(model->forward_cached(token, caches), {1, 1})); };
  const auto first = token.clone();
  step();  // what is found out once
  for (auto& cache : caches) cache.reset();
  model->forward_cached(prompt, caches, counts);
  token.copy_(first);

  CapturedGraph graph;
  {
    const Capture capture(graph);
    step();
  }
  EXPECT_EQ(caches[0].lengths(), counts);
  std::vector<at::Tensor> tokens;
  for (int64_t i = 0; i < n; ++i) {
    graph.replay();
    tokens.push_back(token.cpu());
  }
  EXPECT_EQ(caches[0].lengths(), std::vector<int64_t>({counts[0] + n, counts[1] + n}));
  return at::cat(tokens, 1);
}

std::vector<std::pair<std::string, DecoderOptions>> models() {
  const auto positions = PositionEmbeddingOptions(E);
  const auto with = [](const GroupQueryAttentionOptions& attention) {
    return DecoderOptions(V, TransformerBlockOptions(attention), 2);
  };
  const GroupQueryAttentionOptions plain(E, H, G);
  auto dynamic = plain, alibi = plain, window = plain;
  return {
      {"llama", DecoderOptions(V, llama_options(E, H, G), 2)},
      {"sinusoidal", DecoderOptions(V, block_options(E, H, G), 2).positions(positions)},
      {"learned",
       DecoderOptions(V, block_options(E, H, G), 2)
           .positions(
               PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(kCapacity))},
      {"dynamic ntk",
       with(dynamic.rotary(RotaryEmbeddingOptions(D).scaling(NtkScaling(2.0).original_length(4))))},
      {"alibi, sinks, softcap", with(alibi.alibi(true).sinks(true).softcap(2.0))},
      {"window", with(window.window(3).rotary(RotaryEmbeddingOptions(D)))},
  };
}

TEST(DecodingGraphs, GiveTheTokensOfTheCpu) {
  torch::manual_seed(moved(4));
  const at::NoGradGuard no_grad;
  const auto prompt = at::randint(V, {B, kPrompt}, at::kLong);
  for (const auto& [name, options] : models()) {
    Decoder model(options);
    model->eval();
    for (const auto& parameter : model->parameters())
      parameter.add_(0.3 * at::randn_like(parameter));
    for (const auto dtype : {at::kFloat, at::kHalf}) {
      for (const auto& counts : {std::vector<int64_t>{6, 6}, {6, 2}}) {
        // Rounded as on the device.
        auto rounded = copy_of(model, at::kCPU, dtype);
        const auto expected =
            expected_tokens(copy_of(rounded, at::kCPU, at::kDouble), prompt, counts, 12);
        const auto found =
            tokens_of_graph(copy_of(rounded, kDevice, dtype), prompt.to(kDevice), counts, 12);
        EXPECT_TRUE(found.equal(expected)) << name << " in " << dtype << "\n"
                                           << found << "\n"
                                           << expected;
      }
    }
  }
}

TEST(DecodingGraphs, NeedFixedShapes) {
  const at::NoGradGuard no_grad;
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  model->to(kDevice);
  model->eval();
  auto caches = model->make_caches(B, kCapacity);
  const auto token = at::zeros({B, 1}, at::device(kDevice).dtype(at::kLong));
  const std::vector<int64_t> counts = {1, 0};
  model->forward_cached(token, caches, counts);
  CapturedGraph graph;
  const Capture capture(graph);
  EXPECT_THROW(model->forward_cached(token, caches), c10::Error);
}

/// A graph computes the angles that it needs: a rotary embedding keeps others after it was
/// captured.
TEST(DecodingGraphs, NeedNoAnglesOfOthers) {
  const at::NoGradGuard no_grad;
  GroupQueryAttention module(
      GroupQueryAttentionOptions(E, H, G).causal(true).rotary(RotaryEmbeddingOptions(D)));
  module->to(kDevice);
  const auto x = uniform({B, kPrompt, E}, kDevice);
  const auto expected = module(x).clone();
  CapturedGraph graph;
  at::Tensor output;
  {
    const Capture capture(graph);
    output = module(x);
  }
  EXPECT_TRUE(is_close(module(x), expected, 0.0)) << "with the angles of the capture";
  module(x.narrow(1, 0, 3));
  graph.replay();
  EXPECT_TRUE(is_close(output, expected, 0.0));
}

}  // namespace
}  // namespace heed::test::of_decoding_graphs
