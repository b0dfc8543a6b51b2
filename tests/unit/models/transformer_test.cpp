#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/masks.h>
#include <heed/transformer.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
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

at::Tensor random_tokens(at::IntArrayRef shape) { return at::randint(V, shape, at::kLong); }

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

/// A model whose last block has been cut off, which its options do not say.
TEST(Decoder, HasAsManyLayersAsBlocks) {
  torch::manual_seed(moved(31));
  const at::NoGradGuard no_grad;
  Decoder decoder(DecoderOptions(V, llama_options(E, H, G), 3));
  torch::nn::ModuleList fewer;
  for (size_t i = 0; i < 2; ++i) fewer->push_back(decoder->stack->blocks[i]);
  decoder->stack->replace_module("blocks", fewer.ptr());
  decoder->stack->blocks = fewer;
  const auto tokens = random_tokens({B, L});
  const auto expected = decoder(tokens);
  auto caches = decoder->make_caches(B, L);
  EXPECT_EQ(caches.size(), 2);
  EXPECT_TRUE(is_close(decoder->forward_cached(tokens, caches), expected, 1e-5));
  auto paged = decoder->make_paged_cache(/*pages=*/2);
  EXPECT_EQ(paged.options().layers(), 2);
  caches.push_back(std::move(decoder->make_caches(B, L).front()));
  EXPECT_EQ(value_error([&] { decoder->forward_cached(tokens, caches); }),
            "Decoder: caches size (3) must equal num_layers (2)");
  const auto copy = std::dynamic_pointer_cast<DecoderImpl>(decoder->clone());
  EXPECT_TRUE(copy->forward(tokens).equal(expected));
  // As many residual connections.
  decoder->reset_parameters();
  EXPECT_NEAR(decoder->stack->blocks->ptr<TransformerBlockImpl>(0)
                  ->attention->fc_o->weight.std()
                  .item<double>(),
              0.02 / std::sqrt(4.0), 0.001);
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

/// Of a decoder with checkpointing too, whose gradients pass through what was projected.
TEST(Decoder, AttendsToAMemoryThatWasProjectedOnce) {
  torch::manual_seed(moved(10));
  Decoder decoder(DecoderOptions(V, block_options(E, H, G).cross_attention(true), 3)
                      .positions(PositionEmbeddingOptions(E)));
  const auto tokens = random_tokens({B, L});
  const auto memory = uniform({B, 7, E}, at::kFloat).requires_grad_();
  const auto memory_mask = at::ones({B, 1, 1, 7}, at::kBool).tril(4);
  const auto inputs = TransformerInputs().memory(memory).memory_mask(memory_mask);
  const auto projected = [&] {
    return TransformerInputs()
        .projected_memory(decoder->project_memory(memory))
        .memory_mask(memory_mask);
  };
  const auto expected = decoder->forward(tokens, inputs);
  const auto weight = uniform(expected.sizes(), at::kFloat);
  auto sources = decoder->parameters();
  sources.push_back(memory);
  const auto wanted = torch::autograd::grad({(expected * weight).sum()}, sources);
  for (const bool checkpointing : {false, true}) {
    decoder->stack->options.checkpointing(checkpointing);
    const auto output = decoder->forward(tokens, projected());
    EXPECT_TRUE(output.equal(expected));
    const auto gradients = torch::autograd::grad({(output * weight).sum()}, sources);
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_TRUE(is_close(gradients[i], wanted[i], 1e-5)) << i;
    }
  }
  const at::NoGradGuard no_grad;
  const auto once = projected();
  auto caches = decoder->make_caches(B, L);
  std::vector<at::Tensor> steps;
  for (const auto& token : tokens.split(1, 1)) {
    steps.push_back(decoder->forward_cached(token, caches, {}, once));
  }
  EXPECT_TRUE(is_close(at::cat(steps, 1), expected, 1e-5));
}

/// What forward computes, and of each attention what forward_with_weights of its module gives.
TEST(Decoder, GivesTheWeightsOfEveryAttention) {
  torch::manual_seed(moved(11));
  Decoder decoder(DecoderOptions(V, block_options(E, H, G).cross_attention(true), 2));
  const auto tokens = random_tokens({B, L});
  const auto memory = uniform({B, 7, E}, at::kFloat);
  const auto inputs = TransformerInputs().memory(memory);
  const auto [scores, weights] = decoder->forward_with_weights(tokens, inputs);
  EXPECT_TRUE(is_close(scores, decoder->forward(tokens, inputs), 1e-5));
  ASSERT_EQ(weights.size(), 2U);
  auto x = decoder->token_embedding(tokens);
  for (size_t i = 0; i < 2; ++i) {
    const auto block = decoder->stack->blocks->ptr<TransformerBlockImpl>(i);
    const auto normed = block->attention_norm(x);
    const auto [attended, self] = block->attention->forward_with_weights(normed);
    EXPECT_TRUE(is_close(weights[i].self, self, 1e-6)) << i;
    const auto query = block->cross_attention_norm(x + attended);
    const auto cross =
        std::get<1>(block->cross_attention->forward_with_weights(query, memory, memory));
    EXPECT_TRUE(is_close(weights[i].cross, cross, 1e-6)) << i;
    x = block->forward(x, inputs);
  }
  const auto projected = TransformerInputs().projected_memory(decoder->project_memory(memory));
  const auto again = std::get<1>(decoder->forward_with_weights(tokens, projected));
  EXPECT_TRUE(again[1].cross.equal(weights[1].cross));
  Encoder encoder(EncoderOptions(block_options(E, H, G), 1));
  EXPECT_FALSE(std::get<1>(encoder->forward_with_weights(x))[0].cross.defined());
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
  EXPECT_EQ(value_error([&] { block->forward(x, TransformerInputs().memory(x)); }),
            "TransformerBlock: memory must be absent: there is no cross-attention");
  EXPECT_EQ(value_error([&] { block->forward(x, TransformerInputs().memory_mask(x)); }),
            "TransformerBlock: memory_mask must be absent where there is no memory");
  KVCache cache(KVCacheOptions(B, G, L, D));
  EXPECT_EQ(value_error([&] { block->forward_cached(x, cache); }),
            "TransformerBlock: attention causal must be true with a cache");
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
  EXPECT_EQ(value_error([&] { encoder->forward_cached(x, caches); }),
            "TransformerBlock: attention causal must be true with a cache");
  TransformerBlock cross(block_options(E, H, G).cross_attention(true));
  EXPECT_EQ(value_error([&] { cross->forward(x); }),
            "TransformerBlock: memory must be given: there is cross-attention");
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
  EXPECT_EQ(value_error([&] { block->project_memory(x); }),
            "TransformerBlock: memory must be absent: there is no cross-attention");
  EXPECT_EQ(value_error([&] {
              encoder->forward(x, TransformerInputs().projected_memory({projected, projected}));
            }),
            "Encoder: projected_memory size (2) must equal num_layers (1)");
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
  EXPECT_EQ(value_error([&] {
              cross->project_memory(at::ones({B, 7, 8}));
            }),
            "TransformerBlock: memory dim 2 (8) must equal emb_dim (32); memory [2, 7, 8]");
  EXPECT_EQ(value_error([] {
              TransformerBlock(block_options(E, H, G).feed_forward(FeedForwardOptions(8)));
            }),
            "TransformerBlock: feed_forward emb_dim (8) must equal attention emb_dim (32)");
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
  EXPECT_EQ(value_error([] { Encoder(EncoderOptions(block_options(E, H, G), 0)); }),
            "Encoder: num_layers (0) must be at least 1");
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

/// The same output and gradients as without, dropout's draws included, from less memory.
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
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(actual[i].equal(expected[i])) << i << ", autocast " << autocast;
    }
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

TEST(Decoder, CachedEqualsUncached) {
  torch::manual_seed(moved(5));
  const at::NoGradGuard no_grad;
  const auto learned = PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(L);
  const std::vector<DecoderOptions> models = {
      DecoderOptions(V, llama_options(E, H, G), 3).tied_head(false),
      DecoderOptions(V, block_options(E, H, G), 2).positions(learned),
      DecoderOptions(V, block_options(E, H, G), 2).positions(PositionEmbeddingOptions(E)),
      DecoderOptions(
          V, block_options(E, H, G).cross_attention(true).norm_placement(NormPlacement::post), 2)};
  const auto tokens = random_tokens({B, L});
  for (const auto& options : models) {
    Decoder model(options);
    model->eval();
    TransformerInputs inputs;
    if (options.stack().block().cross_attention()) inputs.memory(uniform({B, 4, E}, at::kFloat));
    const auto whole = model->forward(tokens, inputs);
    ASSERT_EQ(whole.sizes(), at::IntArrayRef({B, L, V}));
    for (const int64_t chunk : {1, 4, 11}) {
      auto caches = model->make_caches(B, L);
      std::vector<at::Tensor> scores;
      for (const auto& part : tokens.split(chunk, 1)) {
        scores.push_back(model->forward_cached(part, caches, {}, inputs));
      }
      EXPECT_TRUE(is_close(at::cat(scores, 1), whole, 1e-5)) << "chunk " << chunk;
    }
    // Prompts of different lengths, padded.
    auto caches = model->make_caches(B, L);
    model->forward_cached(tokens.narrow(1, 0, 7), caches, {7, 3}, inputs);
    const auto next = at::cat({tokens[0].narrow(0, 7, 1), tokens[1].narrow(0, 3, 1)}).view({B, 1});
    const auto scores = model->forward_cached(next, caches, {}, inputs);
    EXPECT_TRUE(is_close(scores[0][0], whole[0][7], 1e-5));
    EXPECT_TRUE(is_close(scores[1][0], whole[1][3], 1e-5));
  }
}

TEST(Decoder, ScoresByItsEmbeddingWhereTheHeadIsTied) {
  torch::manual_seed(moved(9));
  const auto tokens = random_tokens({B, L});
  for (const bool tied : {true, false}) {
    Decoder model(DecoderOptions(V, block_options(E, H, G), 1).tied_head(tied));
    EXPECT_EQ(model->named_parameters().contains("head.weight"), !tied);
    const auto& weight = tied ? model->token_embedding->weight : model->head->weight;
    const auto hidden = model->stack(model->token_embedding(tokens));
    EXPECT_TRUE(is_close(model(tokens), hidden.matmul(weight.t()), 1e-5));
  }
}

TEST(Decoder, LeaksNoLaterToken) {
  torch::manual_seed(moved(6));
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  model->eval();
  const auto tokens = random_tokens({1, L});
  const auto before = model(tokens);
  auto changed = tokens.clone();
  changed[0][6] = (tokens[0][6] + 1) % V;
  const auto after = model(changed);
  EXPECT_TRUE(after.narrow(1, 0, 6).equal(before.narrow(1, 0, 6)));
  EXPECT_FALSE(after.narrow(1, 6, 1).equal(before.narrow(1, 6, 1)));
}

/// Learns to repeat a sequence, in float32 and under autocast to bfloat16.
TEST(Decoder, Learns) {
  for (const bool autocast : {false, true}) {
    torch::manual_seed(moved(7));
    Decoder model(DecoderOptions(V, llama_options(E, H, G), 2).dropout(0.1));
    torch::optim::AdamW optimizer(model->parameters(), 3e-3);
    const auto tokens = random_tokens({1, 33});
    double loss_value = 0.0;
    for (int step = 0; step < 60; ++step) {
      optimizer.zero_grad();
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, autocast);
      const auto scores = model(tokens.narrow(1, 0, 32));
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      EXPECT_EQ(scores.scalar_type(), autocast ? at::kBFloat16 : at::kFloat);
      const auto loss =
          at::cross_entropy_loss(scores.flatten(0, 1).to(at::kFloat), tokens.narrow(1, 1, 32)[0]);
      loss.backward();
      optimizer.step();
      loss_value = loss.item<double>();
    }
    // At first log(50) = 3.9; the largest of 20 seeds was 0.52.
    EXPECT_LT(loss_value, 1.0) << "autocast " << autocast;
  }
}

/// Padding needs no position of its own: a prompt may be as long as there are positions.
TEST(Decoder, TakesPaddedPromptsUpToTheLastPosition) {
  torch::manual_seed(moved(6));
  const at::NoGradGuard no_grad;
  const auto learned = PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(L);
  Decoder model(DecoderOptions(V, block_options(E, H, G), 2).positions(learned));
  model->eval();
  const auto tokens = random_tokens({2, L});
  const auto whole = model->forward(tokens);
  auto caches = model->make_caches(2, L);
  model->forward_cached(tokens.narrow(1, 0, L - 2), caches, {L - 2, 3});
  // Two tokens of the first, four of the second, which stand far apart.
  auto next = at::zeros({2, 4}, at::kLong);
  next[0].narrow(0, 0, 2).copy_(tokens[0].narrow(0, L - 2, 2));
  next[1].copy_(tokens[1].narrow(0, 3, 4));
  const auto scores = model->forward_cached(next, caches, {2, 4});
  EXPECT_TRUE(is_close(scores[0].narrow(0, 0, 2), whole[0].narrow(0, L - 2, 2), 1e-5));
  EXPECT_TRUE(is_close(scores[1], whole[1].narrow(0, 3, 4), 1e-5));
}

/// A call that throws leaves the caches as they were, and the same tokens then give the same.
void expect_repeatable(const Decoder& model, std::vector<KVCache>& caches, const at::Tensor& tokens,
                       const TransformerInputs& wrong, const std::function<void()>& mend,
                       const TransformerInputs& right = {}) {
  const auto before = caches[0].lengths();
  EXPECT_THROW(model->forward_cached(tokens, caches, {}, wrong), c10::ValueError);
  for (const auto& cache : caches) EXPECT_EQ(cache.lengths(), before);
  mend();
  auto untouched = model->make_caches(B, L);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(is_close(model->forward_cached(tokens, caches, {}, right),
                       model->forward_cached(tokens, untouched, {}, right), 0.0));
}

TEST(Decoder, LeavesAllCachesAsTheyWereWhereOneRefuses) {
  torch::manual_seed(moved(7));
  const auto tokens = random_tokens({B, 5});
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  model->eval();
  auto caches = model->make_caches(B, L);
  {
    const at::NoGradGuard no_grad;
    caches[1] = std::move(model->make_caches(B, 4)[1]);
    expect_repeatable(model, caches, tokens, {}, [&] { caches[1].grow(L); });
  }
  // The keys of the first block require no grad; those of the second do.
  for (auto& parameter : model->stack->blocks[0]->parameters()) parameter.requires_grad_(false);
  model->token_embedding->weight.requires_grad_(false);
  for (auto& cache : caches) cache.reset();
  expect_repeatable(model, caches, tokens, {}, [] {});
  // Cross-attention comes after self-attention.
  Decoder crossed(DecoderOptions(V, block_options(E, H, G).cross_attention(true), 2));
  crossed->eval();
  auto others = crossed->make_caches(B, L);
  const at::NoGradGuard no_grad;
  const auto memory = [](int64_t width) {
    return TransformerInputs().memory(uniform({B, 3, width}, at::kFloat));
  };
  expect_repeatable(
      crossed, others, tokens, memory(E + 1), [] {}, memory(E));
}

TEST(Decoder, RefusesACacheInTrainingModeWithDropout) {
  const at::NoGradGuard no_grad;
  const auto tokens = random_tokens({B, 5});
  const auto plain = llama_options(E, H, G);
  const auto error = [&](const DecoderOptions& options) {
    Decoder model(options);
    auto caches = model->make_caches(B, L);
    auto pages = model->make_paged_cache(2);
    auto step = pages.append({pages.add()}, {5});
    const auto text = value_error([&] { model->forward_cached(tokens, caches); });
    EXPECT_EQ(value_error([&] { model->forward_cached(tokens.narrow(0, 0, 1), step); }), text);
    EXPECT_EQ(caches[0].lengths(), std::vector<int64_t>({0, 0}));
    model->eval();
    model->forward_cached(tokens, caches);
    return text;
  };
  EXPECT_EQ(error(DecoderOptions(V, plain, 2).dropout(0.2)),
            "Decoder: dropout (0.2) must be 0 in training mode with a cache: call eval()");
  auto dropped = plain;
  EXPECT_EQ(error(DecoderOptions(V, dropped.dropout(0.3), 2)),
            "TransformerBlock: dropout (0.3) must be 0 in training mode with a cache: call eval()");
  dropped = plain;
  EXPECT_EQ(error(DecoderOptions(V, dropped.feed_forward_dropout(0.3), 2)),
            "TransformerBlock: feed_forward_dropout (0.3) must be 0 in training mode with a cache: "
            "call eval()");
  dropped = plain;
  dropped.feed_forward().dropout(0.4);
  EXPECT_EQ(error(DecoderOptions(V, dropped, 2)),
            "TransformerBlock: feed_forward dropout (0.4) must be 0 in training mode with a cache: "
            "call eval()");
  dropped = plain;
  dropped.attention().dropout(0.5);
  EXPECT_EQ(error(DecoderOptions(V, dropped, 2)),
            "GroupQueryAttention: dropout (0.5) must be 0 in training mode with a cache: call "
            "eval()");
  // Only the cross-attention drops out.
  Decoder crossed(
      DecoderOptions(V, TransformerBlockOptions(dropped.attention()).cross_attention(true), 1));
  crossed->eval();
  crossed->stack->blocks->ptr<TransformerBlockImpl>(0)->cross_attention->train();
  auto caches = crossed->make_caches(B, L);
  EXPECT_EQ(value_error([&] {
              crossed->forward_cached(tokens, caches, {},
                                      TransformerInputs().memory(at::ones({B, 3, E})));
            }),
            "TransformerBlock: cross_attention dropout (0.5) must be 0 in training mode with a "
            "cache: call eval()");
}

TEST(Decoder, RefusesWhatDoesNotFit) {
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  EXPECT_EQ(value_error([&] {
              model(at::ones({1, 4}));
            }),
            "Decoder: tokens dtype (Float) must be Long");
  EXPECT_EQ(value_error([&] { model(at::ones({4}, at::kLong)); }),
            "Decoder: tokens rank (1) must equal 2; tokens [4]");
  EXPECT_EQ(value_error([&] {
              model(at::tensor({int64_t{3}, V}).view({1, 2}));
            }),
            "Decoder: tokens (3 to 50) must be at least 0 and below vocab_size (50)");
  std::vector<KVCache> caches;
  EXPECT_EQ(value_error([&] {
              model->forward_cached(at::ones({1, 4}, at::kLong), caches);
            }),
            "Decoder: caches size (0) must equal num_layers (2)");
  auto options = DecoderOptions(V, llama_options(E, H, G), 2);
  options.stack().block().attention().causal(false);
  EXPECT_EQ(value_error([&] { Decoder{options}; }), "Decoder: attention causal must be true");
  EXPECT_EQ(value_error([] { Decoder(DecoderOptions(0, llama_options(E, H, G), 2)); }),
            "Decoder: vocab_size (0) must be at least 1");
}

}  // namespace
}  // namespace heed::test
