// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/autocast.h>
#include <heed/decoder.h>
#include <heed/distributed/parallel_linear.h>
#include <heed/distributed/vocab_parallel.h>
#include <heed/masks.h>
#include <heed/residual_attention.h>
#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "distributed/processes.h"
#include "distributed/whole_and_parts.h"
#include "support/expect.h"
#include "support/seeds.h"

/// Tensor parallelism gives the numbers of one process.

namespace heed::test::of_tensor_parallel {
namespace {

using distributed::ColumnParallelLinear;
using distributed::ColumnParallelLinearOptions;
using distributed::gather_scores;
using distributed::RowParallelLinear;
using distributed::RowParallelLinearOptions;
using distributed::vocab_parallel_cross_entropy;

/// Checks a module that takes and returns whole x.
template <typename Module>
void expect_same(const ProcessGroup& group, const std::function<Module()>& make,
                 const std::optional<at::Tensor>& mask = {}) {
  WholeAndParts<Module> pair(make, group);
  const auto x = random_input({2, 6, 16}).requires_grad_();
  const auto y = random_input({2, 6, 16}).requires_grad_();
  pair.expect_same_training([&] { return weighed(pair.whole->forward(x, mask)); },
                            [&] { return weighed(pair.parts->forward(y, mask)); });
  expect_close(y.grad(), x.grad(), "gradient of x");
}

std::vector<MultiHeadAttentionOptions> multi_head_attentions() {
  const MultiHeadAttentionOptions plain = MultiHeadAttentionOptions(16, 4).dropout(0.0);
  auto by = [&](const auto& change) {
    auto options = plain;
    change(options);
    return options;
  };
  return {plain,
          by([](auto& o) { o.causal(true).alibi(true); }),
          by([](auto& o) { o.sinks(true).softcap(3.0).window(3); }),
          by([](auto& o) { o.head_dim(6).value_head_dim(2).input_bias(false).scale(0.3); }),
          by([](auto& o) { o.qk_norm(QkNormOptions()).output_bias(false); }),
          by([](auto& o) {
            o.rotary(RotaryEmbeddingOptions(4))
                .qk_norm(QkNormOptions().kind(NormKind::layer_norm).after_rotary(true));
          })};
}

TEST(TensorParallel, SplitsMultiHeadAttention) {
  for (const int64_t processes : {2, 4}) {
    in_processes(processes, [](const ProcessGroup& group) {
      for (const auto& options : multi_head_attentions()) {
        expect_same<MultiHeadAttention>(group, [&] { return MultiHeadAttention(options); });
      }
      // A mask of every head is given whole.
      const auto mask = random_input({2, 4, 6, 6}) > -1.0;
      expect_same<MultiHeadAttention>(
          group, [] { return MultiHeadAttention(16, 4, /*dropout=*/0.0); }, mask);
    });
  }
}

/// With more processes than key/value heads, these are repeated, and their gradients summed.
TEST(TensorParallel, SplitsGroupQueryAttention) {
  for (const int64_t processes : {2, 4}) {
    in_processes(processes, [](const ProcessGroup& group) {
      for (const int64_t groups : {1, 2, 4, 8}) {
        SCOPED_TRACE(groups);
        const auto options = GroupQueryAttentionOptions(16, 8, groups)
                                 .causal(true)
                                 .sinks(true)
                                 .qk_norm(QkNormOptions());
        expect_same<GroupQueryAttention>(group, [&] { return GroupQueryAttention(options); });
      }
    });
  }
}

/// Every process routes all tokens, and has a part of each expert's hidden layer.
TEST(TensorParallel, SplitsTheExpertsOfAMixture) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto expert = FeedForwardOptions(16).hidden_dim(8).activation(Activation::swiglu);
    const auto options = MixtureOfExpertsOptions(expert, /*expert_num=*/5, /*top_k=*/2)
                             .shared(expert)
                             .shared_gate(true);
    WholeAndParts<MixtureOfExperts> pair([&] { return MixtureOfExperts(options); }, group);
    const auto x = random_input({2, 6, 16}).requires_grad_();
    const auto y = random_input({2, 6, 16}).requires_grad_();
    pair.expect_same_training([&] { return weighed(pair.whole->forward(x)); },
                              [&] { return weighed(pair.parts->forward(y)); });
    expect_close(y.grad(), x.grad(), "gradient of x");
  });
}

TEST(TensorParallel, SplitsCrossAttentionWithBias) {
  in_processes(2, [](const ProcessGroup& group) {
    WholeAndParts<MultiHeadAttention> pair(
        [] {
          return MultiHeadAttention(
              MultiHeadAttentionOptions(16, 4).dropout(0.0).key_emb_dim(12).value_emb_dim(8));
        },
        group);
    // Whole and parts: query, key, value, a bias of every head and one of all heads.
    std::vector<at::Tensor> inputs[2];
    for (auto& of_one : inputs) {
      of_one = {random_input({2, 5, 16}), random_input({2, 7, 12}), random_input({2, 7, 8}),
                random_input({1, 4, 5, 7}), random_input({5, 7})};
      for (auto& input : of_one) input.requires_grad_();
    }
    const auto loss = [](MultiHeadAttention& module, const std::vector<at::Tensor>& of_one) {
      const auto& [query, key, value, bias, shared] =
          std::tie(of_one[0], of_one[1], of_one[2], of_one[3], of_one[4]);
      const auto memory = module->project_memory(key, value);
      return weighed(module->forward(query, key, value, {}, bias)) +
             weighed(module->forward(query, memory, {}, shared));
    };
    pair.expect_same_training([&] { return loss(pair.whole, inputs[0]); },
                              [&] { return loss(pair.parts, inputs[1]); });
    for (size_t i = 0; i < inputs[0].size(); ++i) {
      expect_close(inputs[1][i].grad(), inputs[0][i].grad(), "gradient of an input");
    }
  });
}

/// A cache holds no gradients of keys, but those of queries may train. Each process has some heads.
TEST(TensorParallel, SumsTheGradientOfANormOfCachedQueries) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto options =
        MultiHeadAttentionOptions(16, 4).dropout(0.0).causal(true).qk_norm(QkNormOptions());
    WholeAndParts<MultiHeadAttention> pair([&] { return MultiHeadAttention(options); }, group);
    const auto x = random_input({2, 5, 16});
    for (auto* module : {&pair.whole, &pair.parts}) {
      for (const auto& parameter : (*module)->parameters()) parameter.set_requires_grad(false);
      (*module)->q_norm->weight.set_requires_grad(true);
      auto cache = (*module)->make_cache(2, 5);
      weighed((*module)->forward_cached(x, cache)).backward();
    }
    expect_close(pair.parts->q_norm->weight.grad(), pair.whole->q_norm->weight.grad(),
                 "gradient of q_norm");
  });
}

TEST(TensorParallel, SplitsNestedSequences) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto options = MultiHeadAttentionOptions(16, 4).dropout(0.0).qk_norm(QkNormOptions());
    WholeAndParts<MultiHeadAttention> pair([&] { return MultiHeadAttention(options); }, group);
    const auto nested =
        at::_nested_tensor_from_tensor_list({random_input({3, 16}), random_input({5, 16}, 4)});
    const auto loss = [&](MultiHeadAttention& module) {
      const auto outputs = module->forward(nested).unbind();
      return weighed(outputs[0]) + weighed(outputs[1]);
    };
    pair.expect_same_training([&] { return loss(pair.whole); }, [&] { return loss(pair.parts); });
  });
}

TEST(TensorParallel, SplitsFeedForward) {
  for (const int64_t processes : {2, 4}) {
    in_processes(processes, [](const ProcessGroup& group) {
      for (const auto activation : {Activation::gelu, Activation::swiglu}) {
        for (const bool bias : {true, false}) {
          WholeAndParts<FeedForward> pair(
              [&] {
                return FeedForward(
                    FeedForwardOptions(16).hidden_dim(24).activation(activation).bias(bias));
              },
              group);
          const auto x = random_input({2, 6, 16});
          pair.expect_same_training([&] { return weighed(pair.whole->forward(x)); },
                                    [&] { return weighed(pair.parts->forward(x)); });
        }
      }
    });
  }
}

GroupQueryAttentionOptions attention_options() {
  return GroupQueryAttentionOptions(16, 4, 2)
      .rotary(RotaryEmbeddingOptions(4))
      .qk_norm(QkNormOptions());
}

std::vector<TransformerBlockOptions> block_options() {
  const TransformerBlockOptions pre(attention_options());
  auto post = pre;
  post.norm_placement(NormPlacement::post).norm(NormKind::rms_norm).norm_eps(1e-3);
  post.feed_forward().activation(Activation::geglu);
  auto scaled = pre;
  scaled.layer_scale(0.3).skip_scale(1.3);
  return {pre, post, scaled};
}

TEST(TensorParallel, SplitsBlocksAndEncoders) {
  in_processes(2, [](const ProcessGroup& group) {
    for (const auto& options : block_options()) {
      const auto mask = padding_mask(torch::tensor({6, 4}), 6);
      expect_same<TransformerBlock>(
          group, [&] { return TransformerBlock(options); }, mask);
      expect_same<Encoder>(
          group, [&] { return Encoder(EncoderOptions(options, 2)); }, mask);
      expect_same<Encoder>(
          group, [&] { return Encoder(EncoderOptions(options, 2).checkpointing(true)); }, mask);
    }
    const auto own = TransformerBlockOptions(attention_options()).norm([] {
      return torch::nn::AnyModule(Norm(NormOptions(16)));
    });
    expect_same<Encoder>(group, [&] { return Encoder(EncoderOptions(own, 2)); });
    expect_same<ResidualAttention>(group, [] {
      return ResidualAttention(
          ResidualAttentionOptions(MultiHeadAttentionOptions(16, 4).dropout(0.0)).dropout(0.0));
    });
  });
}

/// Scores and losses of a decoder, whole and in parts, and training; with a memory if the blocks
/// have cross-attention.
void expect_same_decoder(const ProcessGroup& group, const DecoderOptions& options,
                         const ParallelizeOptions& parallel = {}) {
  WholeAndParts<Decoder> pair([&] { return Decoder(options); }, group, parallel);
  const auto tokens =
      torch::randint(options.vocab_size(), {2, 8},
                     at::make_generator<at::CPUGeneratorImpl>(moved(5)), torch::kLong);
  auto targets = tokens.roll(-1, 1).contiguous();
  targets[0][7] = -100;
  at::Tensor memories[2];
  TransformerInputs inputs[2];
  at::Tensor relative_biases[2];
  for (size_t i = 0; i < 2; ++i) {
    relative_biases[i] = random_input({4, 7}).requires_grad_();
    inputs[i]
        .relative_bias(relative_biases[i])
        .documents(torch::arange(8).floor_divide(5))
        .positions(torch::arange(8).remainder(5));
    if (!options.stack().block().cross_attention()) continue;
    memories[i] = random_input({2, 5, 16}).requires_grad_();
    auto mask = random_input({2, 1, 8, 5}) > -1.0;
    inputs[i].memory(memories[i]).memory_mask(mask);
  }
  const auto whole_loss = [&] {
    return torch::nn::functional::cross_entropy(
        pair.whole->forward(tokens, inputs[0]).flatten(0, 1), targets.flatten());
  };
  const auto parts_loss = [&] {
    return vocab_parallel_cross_entropy(pair.parts->forward(tokens, inputs[1]), targets, group);
  };
  pair.expect_same_training(whole_loss, parts_loss);
  const auto smooth = LinearCrossEntropyOptions().label_smoothing(0.1);
  pair.expect_same_training([&] { return pair.whole->loss(tokens, targets, inputs[0], smooth); },
                            [&] { return pair.parts->loss(tokens, targets, inputs[1], smooth); });
  expect_close(relative_biases[1].grad(), relative_biases[0].grad(), "gradient of relative_bias");
  if (memories[0].defined()) {
    expect_close(memories[1].grad(), memories[0].grad(), "gradient of the memory");
  }
  const auto scores = pair.parts->forward(tokens, inputs[1]);
  EXPECT_EQ(scores.size(2), options.vocab_size() / group->getSize());
  expect_close(gather_scores(scores, group), pair.whole->forward(tokens, inputs[0]), "scores");
}

std::vector<DecoderOptions> decoder_options() {
  std::vector<DecoderOptions> all;
  for (const bool tied : {true, false}) {
    const TransformerBlockOptions block(attention_options());
    all.push_back(DecoderOptions(12, block, 2).tied_head(tied));
  }
  auto attention =
      GroupQueryAttentionOptions(16, 4, 1).alibi(true).sinks(true).window(3).softcap(5);
  TransformerBlockOptions block(attention);
  block.cross_attention(true).feed_forward().activation(Activation::swiglu).hidden_dim(12);
  all.push_back(DecoderOptions(12, block, 2));
  all.back().positions(PositionEmbeddingOptions(16).kind(PositionKind::learned).max_length(10));
  all.back().stack().checkpointing(true);
  auto both = TransformerBlockOptions(attention_options())
                  .layer_scale(0.4)
                  .cross_attention(GroupQueryAttentionOptions(16, 4, 4).head_dim(3));
  both.attention().causal(true);
  const auto alone = TransformerBlockOptions(both).self_attention(false);
  all.emplace_back(12, EncoderOptions({alone, both}));
  return all;
}

TEST(TensorParallel, SplitsDecoders) {
  for (const int64_t processes : {2, 4}) {
    in_processes(processes, [](const ProcessGroup& group) {
      for (const auto& options : decoder_options()) expect_same_decoder(group, options);
    });
  }
}

TEST(TensorParallel, SplitsSequencesOfDecoders) {
  for (const int64_t processes : {2, 4}) {
    in_processes(processes, [](const ProcessGroup& group) {
      for (auto options : decoder_options()) {
        if (group->getSize() == 4) options.stack().block().norm_placement(NormPlacement::post);
        expect_same_decoder(group, options, ParallelizeOptions().sequence_parallel(true));
      }
    });
  }
}

TEST(TensorParallel, SumsTheGradientOfRotaryAngles) {
  in_processes(2, [](const ProcessGroup& group) {
    WholeAndParts<GroupQueryAttention> pair([] { return GroupQueryAttention(attention_options()); },
                                            group);
    const auto x = random_input({2, 5, 16});
    RotaryAngles angles[2];
    for (auto& own : angles) {
      own = {random_input({1, 1, 5, 2}).requires_grad_(),
             random_input({1, 1, 5, 2}, 4).requires_grad_()};
    }
    const auto loss = [&](GroupQueryAttention& module, const RotaryAngles& own) {
      return weighed(module->forward(x, AttentionInputs().rotary_angles(own)));
    };
    pair.expect_same_training([&] { return loss(pair.whole, angles[0]); },
                              [&] { return loss(pair.parts, angles[1]); });
    expect_close(angles[1].cos.grad(), angles[0].cos.grad(), "gradient of cos");
    expect_close(angles[1].sin.grad(), angles[0].sin.grad(), "gradient of sin");
  });
}

/// Outside of an Encoder, each process gives and gets its part of the sequence.
TEST(TensorParallel, SplitsSequencesOfBlocks) {
  in_processes(2, [](const ProcessGroup& group) {
    for (const auto& options : block_options()) {
      WholeAndParts<TransformerBlock> pair([&] { return TransformerBlock(options); }, group,
                                           ParallelizeOptions().sequence_parallel(true));
      const auto whole = random_input({2, 6, 16}).requires_grad_();
      const auto part_of = [&](const at::Tensor& x) { return x.chunk(2, 1)[group->getRank()]; };
      const auto part = part_of(whole.detach()).clone().requires_grad_();
      const auto mask = causal_mask(6, 6);
      const auto expected = pair.whole->forward(whole, mask);
      const auto actual = pair.parts->forward(part, mask);
      expect_close(actual, part_of(expected), "output");
      expected.square().sum().backward();
      actual.square().sum().backward();
      expect_close(part.grad(), part_of(whole.grad()), "gradient of x");
      pair.expect_same_gradients();
    }
  });
}

TEST(TensorParallel, DecodesWithCaches) {
  in_processes(2, [](const ProcessGroup& group) {
    for (const auto& options : decoder_options()) {
      if (options.stack().block().cross_attention()) continue;
      for (const bool sequence_parallel : {false, true}) {
        const torch::NoGradGuard no_grad;
        WholeAndParts<Decoder> pair([&] { return Decoder(options); }, group,
                                    ParallelizeOptions().sequence_parallel(sequence_parallel));
        const auto tokens = torch::tensor({{3, 1, 4, 1, 5}, {9, 2, 6, 5, 3}});
        const auto expected = pair.whole->forward(tokens);
        auto caches = pair.parts->make_caches(2, 8);
        EXPECT_EQ(caches[0].keys().size(1), 1);  // of two groups
        std::vector<at::Tensor> scores;
        for (const auto& some : tokens.split_with_sizes({3, 1, 1}, 1)) {
          scores.push_back(gather_scores(pair.parts->forward_cached(some, caches), group));
        }
        expect_close(at::cat(scores, 1), expected, "scores");
        // A length that the processes cannot split.
        const WholeSequence whole;
        expect_close(gather_scores(pair.parts->forward(tokens), group), expected, "scores");
      }
    }
  });
}

TEST(TensorParallel, ReturnsTheWeightsOfOwnHeads) {
  in_processes(2, [](const ProcessGroup& group) {
    WholeAndParts<Decoder> pair([] { return Decoder(decoder_options()[0]); }, group);
    const auto tokens = torch::tensor({{3, 1, 4, 1, 5}});
    const auto weights = std::get<1>(pair.parts->forward_with_weights(tokens))[1].self;
    const auto expected = std::get<1>(pair.whole->forward_with_weights(tokens))[1].self;
    expect_close(weights, expected.chunk(2, 1)[group->getRank()], "weights");
  });
}

TEST(TensorParallel, HasSecondDerivatives) {
  in_processes(2, [](const ProcessGroup& group) {
    WholeAndParts<FeedForward> pair([] { return FeedForward(FeedForwardOptions(16)); }, group);
    const auto penalty = [](FeedForward& layer) {
      const auto x = random_input({1, 3, 16}).requires_grad_();
      const auto gradient = torch::autograd::grad({weighed(layer->forward(x))}, {x}, {}, {},
                                                  /*create_graph=*/true)[0];
      return gradient.square().sum();
    };
    pair.expect_same_training([&] { return penalty(pair.whole); },
                              [&] { return penalty(pair.parts); });
  });
}

/// bfloat16 has 8 bits: the sum of rounded parts is off by 2^-8 of scores around 1, in a few
/// layers.
TEST(TensorParallel, TakesBfloat16AndAutocast) {
  in_processes(2, [](const ProcessGroup& group) {
    for (const bool sequence_parallel : {false, true}) {
      WholeAndParts<Decoder> pair([] { return Decoder(decoder_options()[0]); }, group,
                                  ParallelizeOptions().sequence_parallel(sequence_parallel));
      const auto tokens = torch::tensor({{3, 1, 4, 1, 5, 9}});
      const auto expected = pair.whole->forward(tokens);
      const auto expect_near = [&](const at::Tensor& scores) {
        EXPECT_EQ(scores.scalar_type(), at::kBFloat16);
        expect_close(gather_scores(scores, group).to(at::kDouble), expected, "scores", 0.05);
        vocab_parallel_cross_entropy(scores, tokens, group).backward();
      };
      pair.parts->to(torch::kFloat);
      {
        const Autocast autocast(at::kCPU, at::kBFloat16);
        expect_near(pair.parts->forward(tokens));
      }
      pair.parts->to(torch::kBFloat16);
      expect_near(pair.parts->forward(tokens));
    }
  });
}

TEST(TensorParallel, KeepsSlopesWhenConverted) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(7));
    // The slopes of 16 heads are no powers of 2: bfloat16 rounds them.
    MultiHeadAttention attention(MultiHeadAttentionOptions(16, 16).alibi(true));
    const auto whole = attention->alibi_slopes.clone();
    parallelize(*attention, group);
    attention->to(torch::kBFloat16);
    attention->to(torch::kDouble);
    EXPECT_EQ(attention->alibi_slopes.scalar_type(), at::kFloat);
    EXPECT_TRUE(attention->alibi_slopes.equal(whole.chunk(2)[group->getRank()]));
  });
}

TEST(TensorParallel, ReinitializesAsOneProcess) {
  in_processes(4, [](const ProcessGroup& group) {
    for (const auto& options : decoder_options()) {
      WholeAndParts<Decoder> pair([&] { return Decoder(options); }, group);
      torch::manual_seed(moved(11));
      pair.whole->reset_parameters();
      const auto state = at::globalContext().defaultGenerator(at::kCPU).get_state();
      torch::manual_seed(moved(11));
      pair.parts->reset_parameters();
      EXPECT_TRUE(at::globalContext().defaultGenerator(at::kCPU).get_state().equal(state));
      const auto own = pair.parts->named_parameters();
      for (const auto& parameter : pair.whole->named_parameters()) {
        const auto& name = parameter.key();
        EXPECT_TRUE(own[name].equal(part_of(parameter.value(), name, pair.shards))) << name;
      }
    }
  });
}

TEST(ParallelLinear, EqualsLinear) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(3));
    torch::nn::Linear up(8, 12), down(12, 6);
    torch::manual_seed(moved(3));
    ColumnParallelLinear own_up(ColumnParallelLinearOptions(8, 12), group);
    RowParallelLinear own_down(RowParallelLinearOptions(12, 6), group);
    torch::manual_seed(moved(3));
    ColumnParallelLinear gathered(ColumnParallelLinearOptions(8, 12).gather_output(true), group);
    RowParallelLinear whole_input(RowParallelLinearOptions(12, 6).input_is_parallel(false), group);
    const auto rank = group->getRank();
    EXPECT_TRUE(own_up->weight.equal(up->weight.chunk(2)[rank]));
    EXPECT_TRUE(own_up->bias.equal(up->bias.chunk(2)[rank]));
    EXPECT_TRUE(own_down->weight.equal(down->weight.chunk(2, 1)[rank]));
    EXPECT_TRUE(own_down->bias.equal(down->bias));
    const auto x = random_input({3, 8}).to(torch::kFloat);
    const auto expected = down->forward(up->forward(x).relu());
    weighed(expected).backward();
    // Sums of twelve float32 numbers around 1.
    constexpr double kFloatRounding = 1e-5;
    const auto expect = [&](const at::Tensor& actual, const torch::nn::LinearImpl& first) {
      expect_close(actual, expected, "output", kFloatRounding);
      weighed(actual).backward();
      expect_close(first.weight.grad(), up->weight.grad().chunk(2)[rank], "gradient",
                   kFloatRounding);
    };
    expect(own_down->forward(own_up->forward(x).relu()), *own_up);
    expect(whole_input->forward(gathered->forward(x).relu()), *gathered);
    EXPECT_EQ(c10::str(own_up),
              "heed::distributed::ColumnParallelLinear(in_features=8, out_features=6 of 12, "
              "bias=true)");
    EXPECT_EQ(c10::str(own_down),
              "heed::distributed::RowParallelLinear(in_features=6 of 12, out_features=6, "
              "bias=true)");
  });
}

/// The sizes are as far out as numbers go.
TEST(ParallelLinear, RefusesSizesThatNoMemoryHolds) {
  in_processes(1, [](const ProcessGroup& group) {
    constexpr auto kMost = std::numeric_limits<int64_t>::max();
    constexpr auto kLeast = std::numeric_limits<int64_t>::min();
    for (const int64_t in : {kLeast, int64_t{-1}, int64_t{2}, int64_t{1} << 32, int64_t{1} << 47,
                             int64_t{1} << 62, kMost}) {
      for (const int64_t out :
           {kLeast, int64_t{0}, int64_t{2}, int64_t{1} << 32, int64_t{1} << 62, kMost}) {
        const auto numbers = static_cast<double>(in) * static_cast<double>(out);
        if (in >= 1 && out >= 1 && numbers <= 0x1p45) continue;  // a machine could have that
        const auto rule = in < 1 ? "in_features (" + std::to_string(in) + ") must be at least 1"
                          : out < 1
                              ? "out_features (" + std::to_string(out) + ") must be at least 1"
                              : "weight [" + std::to_string(out) + ", " + std::to_string(in) +
                                    "] must take at most 2^47 bytes";
        EXPECT_ERROR("ColumnParallelLinear: " + rule,
                     ColumnParallelLinear(ColumnParallelLinearOptions(in, out), group));
        EXPECT_ERROR("RowParallelLinear: " + rule,
                     RowParallelLinear(RowParallelLinearOptions(in, out), group));
      }
    }
  });
}

}  // namespace
}  // namespace heed::test::of_tensor_parallel
