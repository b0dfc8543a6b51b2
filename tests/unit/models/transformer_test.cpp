// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/masks.h>
#include <heed/transformer.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <optional>
#include <set>
#include <vector>

#include "cpu/capability.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/memory.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, G = 2, D = 8, L = 11, V = 50;

TEST(TransformerBlock, ComposesItsLayers) {
  torch::manual_seed(moved(1));
  const auto x = uniform({B, L, E}, at::kFloat), memory = uniform({B, 7, E}, at::kFloat);
  const auto mask = at::ones({L, L}, at::kBool).tril();
  for (const auto placement : {NormPlacement::pre, NormPlacement::post}) {
    TransformerBlock block(block_options(E, H, G).norm_placement(placement).cross_attention(true));
    block->eval();
    const auto layers = [&](const at::Tensor& input, Norm& norm, const auto& layer) {
      return placement == NormPlacement::pre ? input + layer(norm(input))
                                             : norm(input + layer(input));
    };
    auto expected = layers(x, block->attention_norm,
                           [&](const at::Tensor& t) { return block->attention(t, mask); });
    expected = layers(expected, block->cross_attention_norm, [&](const at::Tensor& t) {
      return block->cross_attention(t, memory, memory);
    });
    expected = layers(expected, block->feed_forward_norm,
                      [&](const at::Tensor& t) { return block->feed_forward(t); });
    EXPECT_TRUE(
        is_close(block->forward(x, TransformerInputs().mask(mask).memory(memory)), expected, 0.0));
  }
}

/// T5's: one bias, learned, for all layers; and with their inner tensors computed again.
TEST(Encoder, AddsABiasInEveryLayer) {
  torch::manual_seed(moved(9));
  const auto x = uniform({B, L, E}, at::kFloat);
  const auto mask = at::ones({L, L}, at::kBool).tril();
  Encoder encoder(EncoderOptions(block_options(E, H, G).cross_attention(true), 2));
  const auto learned = uniform({1, H, L, L}, at::kFloat).requires_grad_();
  const auto memory = uniform({B, 7, E}, at::kFloat);
  const auto inputs = [&] {
    return TransformerInputs().mask(mask).bias(learned * 2.0).memory(memory);
  };
  auto expected = x;
  for (size_t i = 0; i < 2; ++i) {
    const auto block = encoder->blocks->ptr<TransformerBlockImpl>(i);
    const auto normed = block->attention_norm(expected);
    auto own = expected + block->attention(normed, normed, normed, mask, learned * 2.0);
    own = own + block->cross_attention(block->cross_attention_norm(own), memory, memory);
    expected = own + block->feed_forward(block->feed_forward_norm(own));
  }
  expected = encoder->final_norm(expected);
  EXPECT_TRUE(is_close(encoder->forward(x, inputs()), expected, 1e-6));
  const auto weight = uniform(expected.sizes(), at::kFloat);
  const auto wanted = torch::autograd::grad({(expected * weight).sum()}, {learned})[0];
  EXPECT_GT(wanted.abs().max().item<double>(), 1e-3);
  for (const bool checkpointing : {false, true}) {
    encoder->options.checkpointing(checkpointing);
    const auto output = encoder->forward(x, inputs());
    const auto gradient = torch::autograd::grad({(output * weight).sum()}, {learned})[0];
    EXPECT_TRUE(is_close(gradient, wanted, 1e-5)) << checkpointing;
  }
}

TEST(Encoder, HasTheNormsThatItsOptionsAskFor) {
  using Placement = NormPlacement;
  const auto norms = [](Placement placement, std::optional<bool> final_norm) {
    const auto block = block_options(E, H, G).norm_placement(placement).norm_bias(false);
    const Encoder encoder(EncoderOptions(block, 1).final_norm(final_norm));
    EXPECT_FALSE(encoder->named_parameters().contains("blocks.0.attention_norm.bias"));
    EXPECT_FALSE(encoder->named_parameters().contains("final_norm.bias"));
    return encoder->named_parameters().contains("final_norm.weight");
  };
  EXPECT_TRUE(norms(Placement::pre, std::nullopt));
  EXPECT_FALSE(norms(Placement::pre, false));
  EXPECT_FALSE(norms(Placement::post, std::nullopt));
  EXPECT_TRUE(norms(Placement::post, true));
  const auto block = block_options(E, H, G).norm_bias(false);
  EXPECT_EQ(printed(Encoder(EncoderOptions(block, 1).final_norm(false))),
            "heed::Encoder(num_layers=1, final_norm=false)");
  EXPECT_EQ(
      printed(TransformerBlock(block)),
      "heed::TransformerBlock(norm=layer_norm, norm_placement=pre, norm_bias=false, dropout=0)");
}

TEST(TransformerBlock, RefusesWhatDoesNotFit) {
  TransformerBlock block(block_options(E, H, G));
  const auto x = at::ones({B, L, E});
  EXPECT_ERROR("TransformerBlock: memory must be absent: there is no cross-attention",
               block->forward(x, TransformerInputs().memory(x)));
  EXPECT_ERROR("TransformerBlock: memory_mask must be absent where there is no memory",
               block->forward(x, TransformerInputs().memory_mask(x)));
  KVCache cache(KVCacheOptions(B, G, L, D));
  EXPECT_ERROR("TransformerBlock: attention causal must be true with a cache",
               block->forward_cached(x, cache));
  auto causal_options = block_options(E, H, G);
  causal_options.attention().causal(true);
  TransformerBlock causal(causal_options);
  const auto cached_error = [&](const TransformerInputs& inputs) {
    return value_error([&] { causal->forward_cached(x, cache, {}, inputs); });
  };
  EXPECT_EQ(cached_error(at::ones({L, L}, at::kBool)),
            "TransformerBlock: mask must be absent with a cache");
  EXPECT_EQ(cached_error(TransformerInputs().bias(at::ones({L, L}))),
            "TransformerBlock: bias must be absent with a cache");
  Encoder encoder(EncoderOptions(block_options(E, H, G), 1));
  auto caches = encoder->make_caches(B, L);
  EXPECT_ERROR("TransformerBlock: attention causal must be true with a cache",
               encoder->forward_cached(x, caches));
  TransformerBlock cross(block_options(E, H, G).cross_attention(true));
  EXPECT_ERROR("TransformerBlock: memory must be given: there is cross-attention",
               cross->forward(x));
  const auto projected = cross->project_memory(at::ones({B, 7, E}));
  const auto projected_error = [&](const TransformerInputs& inputs) {
    return value_error([&] { cross->forward(x, inputs); });
  };
  EXPECT_EQ(projected_error(TransformerInputs().projected_memory({projected}).memory(x)),
            "TransformerBlock: memory must be absent beside projected_memory");
  EXPECT_EQ(projected_error(TransformerInputs().projected_memory({projected, projected})),
            "TransformerBlock: projected_memory size (2) must equal 1, the number of blocks");
  EXPECT_EQ(projected_error(TransformerInputs()
                                .projected_memory({projected})
                                .memory_mask(at::ones({B, 1, 1, 6}, at::kBool))),
            "TransformerBlock: memory_mask dim 3 (6) must equal S (7); memory_mask [2, 1, 1, 6], "
            "query [2, 11, 32], key [2, 2, 7, 8]");
  EXPECT_ERROR("TransformerBlock: memory must be absent: there is no cross-attention",
               block->project_memory(x));
  EXPECT_ERROR("Encoder: projected_memory size (2) must equal num_layers (1)",
               encoder->forward(x, TransformerInputs().projected_memory({projected, projected})));
  const auto memory_mask_error = [&](const at::Tensor& mask) {
    const auto inputs = TransformerInputs().memory(at::ones({B, 7, E})).memory_mask(mask);
    return value_error([&] { cross->forward(x, inputs); });
  };
  EXPECT_EQ(memory_mask_error(at::ones({B, 1, 1, 6}, at::kBool)),
            "TransformerBlock: memory_mask dim 3 (6) must equal S (7); memory_mask [2, 1, 1, 6], "
            "query [2, 11, 32], key [2, 7, 32]");
  EXPECT_EQ(
      memory_mask_error(at::ones({B, 7}, at::kBool)),
      "TransformerBlock: memory_mask dim 0 (2) must equal L (11); memory_mask [2, 7], "
      "query [2, 11, 32], key [2, 7, 32]; if it is [B, S], pass key_padding_mask(memory_mask) or, "
      "where nonzero hides, key_padding_mask(from_hidden(memory_mask))");
  EXPECT_EQ(
      memory_mask_error(at::ones({B, 1, 7})),
      "TransformerBlock: memory_mask dtype (Float) must be Bool or an integer; it holds 0 and "
      "1: pass memory_mask != 0, or from_hidden(memory_mask) if 1 hides");
  const auto memory_error = [&](const at::Tensor& memory) {
    return value_error([&] { cross->forward(x, TransformerInputs().memory(memory)); });
  };
  EXPECT_EQ(memory_error(at::ones({B, 7, 8})),
            "TransformerBlock: memory dim 2 (8) must equal emb_dim (32); memory [2, 7, 8]");
  EXPECT_EQ(memory_error(at::ones({3, 7, E})),
            "TransformerBlock: memory dim 0 (3) must equal x dim 0 (2); x [2, 11, 32], memory [3, "
            "7, 32]");
  EXPECT_ERROR("TransformerBlock: memory dim 2 (8) must equal emb_dim (32); memory [2, 7, 8]",
               cross->project_memory(at::ones({B, 7, 8})));
  EXPECT_ERROR("TransformerBlock: feed_forward emb_dim (8) must equal attention emb_dim (32)",
               TransformerBlock(block_options(E, H, G).feed_forward(FeedForwardOptions(8))));
}

TEST(Encoder, StandsInASequentialAndClones) {
  torch::manual_seed(moved(2));
  Encoder encoder(EncoderOptions(block_options(E, H, G), 3));
  torch::nn::Sequential layers(encoder, RMSNorm(E));
  layers->eval();
  const auto x = uniform({B, L, E}, at::kFloat);
  const auto expected = layers->forward(x);
  EXPECT_EQ(expected.sizes(), x.sizes());
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(layers->clone());
  EXPECT_TRUE(copy->forward(x).equal(expected));
  const auto mask = causal_mask(L, L);
  const auto masked = layers->ptr<NormImpl>(1)->forward(encoder(x, mask));
  EXPECT_FALSE(masked.equal(expected));
  EXPECT_TRUE(layers->forward(x, mask).equal(masked));
  EXPECT_TRUE(layers->forward(x, std::optional<at::Tensor>(mask)).equal(masked));
  EXPECT_TRUE(layers->forward(x, TransformerInputs(mask)).equal(masked));
  EXPECT_TRUE(layers->forward(x, std::nullopt).equal(expected));
  EXPECT_ERROR("Encoder: num_layers (0) must be at least 1",
               Encoder(EncoderOptions(block_options(E, H, G), 0)));
}

/// How many tables of cosines the layers of an encoder have between them.
size_t count_tables(const EncoderImpl& encoder) {
  std::set<const void*> tables;
  std::vector<RotaryAngles> all;  // kept, so that no table takes another's place
  for (size_t i = 0; i < encoder.blocks->size(); ++i) {
    const auto& attention = encoder.blocks.ptr()->ptr<TransformerBlockImpl>(i)->attention;
    all.push_back(attention->rotary->angles(0, L, at::kFloat));
    tables.insert(all.back().cos.const_data_ptr());
  }
  return tables.size();
}

TEST(Encoder, ComputesRotaryAnglesOnceAStep) {
  const EncoderOptions options(llama_options(E, H, G), 3);
  const Encoder encoder(options);
  EXPECT_EQ(count_tables(*encoder), 1);
  const auto copy = std::dynamic_pointer_cast<EncoderImpl>(encoder->clone());
  EXPECT_EQ(count_tables(*copy), 1);
  EXPECT_EQ(count_tables(*std::dynamic_pointer_cast<EncoderImpl>(copy->clone())), 1);
  const Decoder decoder(DecoderOptions(V, llama_options(E, H, G), 3));
  EXPECT_EQ(count_tables(*std::dynamic_pointer_cast<DecoderImpl>(decoder->clone())->stack), 1);
  // Copies of layers that share nothing share nothing either.
  const auto last = encoder->blocks.ptr()->ptr<TransformerBlockImpl>(2);
  last->attention->rotary = RotaryEmbedding(RotaryEmbeddingOptions(E / H));
  EXPECT_EQ(count_tables(*std::dynamic_pointer_cast<EncoderImpl>(encoder->clone())), 2);
}

TEST(Encoder, PrintsWhatIsNotItsDefault) {
  const EncoderOptions plain(block_options(E, H, G), 1);
  EXPECT_EQ(printed(TransformerBlock(plain.block())),
            "heed::TransformerBlock(norm=layer_norm, norm_placement=pre, dropout=0)");
  EXPECT_EQ(printed(Encoder(plain)), "heed::Encoder(num_layers=1)");
  EXPECT_EQ(printed(Decoder(DecoderOptions(V, plain.block(), 1))),
            "heed::Decoder(vocab_size=50, tied_head=true)");
  const EncoderOptions changed = EncoderOptions(block_options(E, H, G)
                                                    .norm(NormKind::rms_norm)
                                                    .norm_placement(NormPlacement::post)
                                                    .norm_eps(1e-3)
                                                    .dropout(0.5)
                                                    .cross_attention(true),
                                                1)
                                     .checkpointing(true);
  EXPECT_EQ(printed(TransformerBlock(changed.block())),
            "heed::TransformerBlock(norm=rms_norm, norm_placement=post, norm_eps=0.001, "
            "dropout=0.5, cross_attention=true)");
  EXPECT_EQ(printed(Encoder(changed)), "heed::Encoder(num_layers=1, checkpointing=true)");
  EXPECT_EQ(printed(Decoder(DecoderOptions(V, plain.block(), 1).tied_head(false).dropout(0.5))),
            "heed::Decoder(vocab_size=50, tied_head=false, dropout=0.5)");
}

/// GPT-2's: a deviation of 0.02, and of 0.02 / sqrt(2 layers) where a residual connection ends.
TEST(Encoder, InitializesByDepth) {
  torch::manual_seed(moved(3));
  Encoder encoder(
      EncoderOptions(TransformerBlockOptions(GroupQueryAttentionOptions(256, 4, 4)), 8));
  const auto block = encoder->blocks->ptr<TransformerBlockImpl>(7);
  // 65,536 draws: their deviation is known to 0.3 %, three of those are 1 %.
  const auto deviation = [](const at::Tensor& weight) { return weight.std().item<double>(); };
  EXPECT_NEAR(deviation(block->attention->fc_q->weight), 0.02, 0.0002);
  EXPECT_NEAR(deviation(block->attention->fc_o->weight), 0.005, 0.00005);
  EXPECT_NEAR(deviation(block->feed_forward->fc_out->weight), 0.005, 0.00005);
  EXPECT_EQ(block->attention->fc_q->bias.abs().max().item<double>(), 0.0);
}

/// Output and gradients are those without it, dropout's draws included, from less memory.
TEST(Encoder, CheckpointingChangesNothingButMemory) {
  const auto run = [](bool checkpointing, at::Tensor memory, bool autocast) {
    torch::manual_seed(moved(4));
    auto block = block_options(E, H, G).dropout(0.2).cross_attention(true);
    block.attention().dropout(0.1);
    Encoder encoder(EncoderOptions(block, 4).checkpointing(checkpointing));
    const auto x = uniform({B, 64, E}, at::kFloat);  // no gradient: parameters alone have one
    std::vector<at::Tensor> result;
    const AllocationCounter counter;
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    const auto output = encoder->forward(x, TransformerInputs().memory(memory));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    output.sum().backward();
    const auto peak = counter.peak();
    result.push_back(output.detach());
    for (const auto& parameter : encoder->parameters()) result.push_back(parameter.grad());
    return std::make_pair(result, peak);
  };
  for (const bool autocast : {false, true}) {
    auto memory = uniform({B, 9, E}, at::kFloat).requires_grad_();
    auto [expected, peak] = run(false, memory, autocast);
    const auto memory_gradient = memory.grad().clone();
    memory.mutable_grad().reset();
    auto [actual, less] = run(true, memory, autocast);
    // Summed layer by layer instead of use by use: 8 uses, gradients up to 1.
    EXPECT_TRUE(is_close(memory.grad(), memory_gradient, 1e-5));
    EXPECT_TRUE(are_equal(actual, expected)) << ", autocast " << autocast;
    EXPECT_LT(static_cast<double>(less), 0.6 * static_cast<double>(peak));
  }
}

/// As Python's torch.autocast: what is kept of weights is forgotten at the end.
at::Tensor run_with_autocast(Encoder& encoder, const at::Tensor& x) {
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto output = encoder(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  return output;
}

TEST(Encoder, CheckpointingWithAutocastSeesWhatTheOptimizerDid) {
  const auto train = [](bool checkpointing) {
    torch::manual_seed(moved(4));
    Encoder encoder(EncoderOptions(block_options(E, H, G), 2).checkpointing(checkpointing));
    torch::optim::SGD optimizer(encoder->parameters(), /*defaults=*/0.1);
    const auto x = uniform({B, 8, E}, at::kFloat);
    std::vector<at::Tensor> outputs;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      outputs.push_back(run_with_autocast(encoder, x));
      outputs.back().square().mean().backward();
      optimizer.step();
    }
    return outputs;
  };
  // On some, inference takes another path than training.
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    const auto expected = train(false);
    const auto actual = train(true);
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_TRUE(actual[step].equal(expected[step])) << set->name << ", step " << step;
      EXPECT_FALSE(step > 0 && actual[step].equal(actual[step - 1]))
          << set->name << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace heed::test
