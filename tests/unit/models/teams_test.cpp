// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/decoder.h>
#include <heed/feed_forward.h>
#include <heed/fused_adamw.h>
#include <heed/mixture_of_experts.h>
#include <heed/pack_weights.h>
#include <torch/utils.h>

#include <functional>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "support/threads.h"
#include "support/transformers.h"

/// Teams of threads compute what one thread computes, and threads that share a model do what each
/// would do alone. scripts/sanitize.sh --threads runs these tests with ThreadSanitizer.

namespace heed::test::of_teams {
namespace {

constexpr int64_t V = 200, E = 64, H = 4, G = 2;
constexpr int kTeam = 4;

using Tensors = std::vector<at::Tensor>;

/// Runs work() with the same random numbers by one thread and by a team. Their sums may be added in
/// another order.
void expect_the_same_by_a_team(const std::string& name, at::ScalarType dtype,
                               const std::function<Tensors()>& work) {
  SCOPED_TRACE(name + " " + c10::toString(dtype));
  const auto by = [&](int threads) {
    const ThreadsGuard guard(threads);
    torch::manual_seed(moved(91));
    return work();
  };
  const auto expected = by(1);
  EXPECT_TRUE(are_alike(by(kTeam), expected, 32 * unit_roundoff(dtype)));
}

const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kBFloat16};

Tensors output_and_gradients(const Sizes& sizes, at::ScalarType dtype,
                             const AttendOptions& options) {
  const auto inputs = make_inputs(sizes, dtype);
  const auto leaves = leaves_of(inputs);
  const auto output = attend(inputs, options);
  output.backward(uniform(output.sizes(), dtype));
  return {output.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

TEST(Teams, Attend) {
  const Sizes square{1, 4, 2, 384, 384, 32, 32};
  for (const auto dtype : kDtypes) {
    expect_the_same_by_a_team("causal", dtype, [&] {
      return output_and_gradients(square, dtype, AttendOptions().causal(true));
    });
    expect_the_same_by_a_team("window, softcap, dropout", dtype, [&] {
      return output_and_gradients(
          square, dtype, AttendOptions().causal(true).window(100).softcap(5.0).dropout(0.1));
    });
    expect_the_same_by_a_team("mask", dtype, [&] {
      return output_and_gradients(square, dtype, AttendOptions().mask(random_mask({384, 384})));
    });
    expect_the_same_by_a_team("decode", dtype, [&] {
      const at::NoGradGuard no_grad;
      return Tensors{attend(make_inputs({2, 8, 2, 1, 3000, 64, 64}, dtype))};
    });
  }
}

FeedForwardOptions gated() {
  return FeedForwardOptions(E).activation(Activation::swiglu).bias(false).hidden_dim(2 * E);
}

TransformerBlockOptions block_of(const FeedForwardLayer& layer) {
  return llama_options(E, H, G).feed_forward(layer);
}

Decoder make_decoder(const TransformerBlockOptions& block, at::ScalarType dtype) {
  Decoder model(DecoderOptions(V, block, 2).tied_head(true));
  model->to(dtype);
  return model;
}

/// The loss and the gradients of the first of two steps of training.
Tensors train(const TransformerBlockOptions& block, at::ScalarType dtype) {
  auto model = make_decoder(block, dtype);
  FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const auto tokens = at::randint(V, {4, 101}, at::kLong);
  Tensors first;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const auto loss = model->loss(tokens.narrow(1, 0, 100), tokens.narrow(1, 1, 100));
    loss.backward();
    if (step == 0) {
      first.push_back(loss.detach());
      for (const auto& parameter : model->parameters()) first.push_back(parameter.grad().clone());
    }
    optimizer.step_clipped(1.0);
  }
  return first;
}

TEST(Teams, Train) {
  for (const auto dtype : kDtypes) {
    expect_the_same_by_a_team("llama", dtype, [&] { return train(block_of(gated()), dtype); });
  }
  // In bfloat16 another order of sums may choose another expert.
  expect_the_same_by_a_team("mixture", at::kFloat, [] {
    const MixtureOfExpertsOptions mixture(gated(), 4, 2);
    return train(block_of(mixture), at::kFloat);
  });
}

Decoder make_packed(const PackOptions& options, at::ScalarType dtype) {
  auto model = make_decoder(block_of(gated()), dtype);
  model->eval();
  pack_weights(*model, options);
  return model;
}

/// The scores of a prompt and of some single tokens after it.
Tensors scores_of(Decoder& model, const at::Tensor& tokens, int64_t prompt) {
  const at::NoGradGuard no_grad;
  auto caches = model->make_caches(tokens.size(0), tokens.size(1));
  Tensors scores{model->forward_cached(tokens.narrow(1, 0, prompt), caches)};
  for (int64_t at = prompt; at < tokens.size(1); ++at) {
    scores.push_back(model->forward_cached(tokens.narrow(1, at, 1), caches));
  }
  return scores;
}

struct Packing {
  std::string name;
  PackOptions options;
};

std::vector<Packing> packings() {
  return {{"as is", PackFormat::as_is},
          {"int8", PackFormat::int8},
          {"int4", PackFormat::int4},
          {"int8, quantized inputs", PackOptions(PackFormat::int8).quantize_activations(true)},
          {"int4, quantized inputs", PackOptions(PackFormat::int4).quantize_activations(true)}};
}

TEST(Teams, ReadPackedWeights) {
  for (const auto dtype : kDtypes) {
    for (const auto& [name, options] : packings()) {
      expect_the_same_by_a_team(name, dtype, [&, &options = options] {
        auto model = make_packed(options, dtype);
        return scores_of(model, at::randint(V, {3, 40}, at::kLong), 37);
      });
    }
  }
}

constexpr int kThreads = 4;

/// Packed weights of all modules share large blocks of memory.
TEST(Threads, PackModules) {
  torch::manual_seed(moved(93));
  Tensors outputs(kThreads), expected;
  std::vector<FeedForward> layers;
  const auto x = uniform({3, 512}, at::kFloat);
  const at::NoGradGuard no_grad;
  for (int n = 0; n < kThreads; ++n) {
    layers.emplace_back(FeedForwardOptions(512));
    expected.push_back(layers.back()(x));
  }
  on_threads(kThreads, [&](int n) {
    const at::NoGradGuard no_grad_here;
    auto& layer = layers[static_cast<size_t>(n)];
    pack_weights(*layer);
    outputs[static_cast<size_t>(n)] = layer(x);
  });
  EXPECT_TRUE(are_alike(outputs, expected, 1e-5));
}

/// Each thread has a cache of its own, as in a server.
TEST(Threads, ServeOneModel) {
  constexpr int64_t kPrompt = 20;
  const ThreadsGuard alone_in_a_team(1);
  for (const auto& [name, options] : packings()) {
    SCOPED_TRACE(name);
    torch::manual_seed(moved(92));
    auto model = make_packed(options, at::kFloat);
    Tensors tokens;
    std::vector<Tensors> expected, scores(kThreads);
    for (int n = 0; n < kThreads; ++n) {
      tokens.push_back(at::randint(V, {1, kPrompt + 5}, at::kLong));
      expected.push_back(scores_of(model, tokens.back(), kPrompt));
    }
    on_threads(kThreads, [&](int thread) {
      const auto n = static_cast<size_t>(thread);
      scores[n] = scores_of(model, tokens[n], kPrompt);
    });
    for (size_t n = 0; n < kThreads; ++n) {
      EXPECT_TRUE(at::cat(scores[n], 1).equal(at::cat(expected[n], 1))) << n;
    }
  }
}

}  // namespace
}  // namespace heed::test::of_teams
