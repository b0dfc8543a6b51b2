// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/heed.h>
#include <torch/torch.h>

#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/every_module.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/simulated_cuda/simulated_cuda.h"
#include "support/transformers.h"

/// The host never waits for the device: forward, backward, and decoding from a cache.

namespace heed::test::of_waits {
namespace {

using every_module::B, every_module::D, every_module::E, every_module::G, every_module::H,
    every_module::L, every_module::V;

const at::Device kDevice(at::kCUDA, 0);

std::string printed_waits(const DeviceWork& work) {
  std::string text;
  for (const auto& [name, count] : work.waits) text += name + " x" + std::to_string(count) + "; ";
  return text;
}

/// After two runs: the first may copy what stays on the device, and a route is checked at its first
/// use, which may be in the second, with keys of the first in a cache.
template <typename Run>
void expect_no_wait(const std::string& name, const Run& run) {
  run();
  run();
  const WorkOfDevice device;
  run();
  const auto work = device.work();
  // A mixture of experts reads how many rows each expert has.
  const bool is_mixture = name.rfind("MixtureOfExperts", 0) == 0;
  EXPECT_EQ(work.synchronizations(), is_mixture ? 1 : 0) << name << ": " << printed_waits(work);
  EXPECT_GT(work.launches(), 0) << name;
}

template <typename Module, typename Call>
void expect_trains_without_waiting(const std::string& name, Module module, const at::Tensor& x,
                                   const Call& call) {
  for (const bool training : {false, true}) {
    module->train(training);
    const auto mode = name + (training ? ", training" : ", not training");
    expect_no_wait(mode, [&] {
      const at::NoGradGuard no_grad;
      call(module, x);
    });
    expect_no_wait(mode + ", with gradients", [&] {
      const auto input = x.is_floating_point() ? x.detach().requires_grad_() : x;
      call(module, input).sum().backward();
    });
  }
}

TEST(Waits, NoModuleWaits) {
  every_module::visit_modules(
      [](const std::string& name, const auto& module, const at::Tensor& x, const auto& call) {
        for (const auto dtype : {at::kFloat, at::kHalf}) {
          const auto input = x.to(kDevice);
          expect_trains_without_waiting(name + " in " + c10::toString(dtype),
                                        copy_of(module, kDevice, dtype),
                                        x.is_floating_point() ? input.to(dtype) : input, call);
        }
      });
}

TEST(Waits, NoAttentionWaitsWithDropout) {
  const auto x = uniform({B, L, E}, kDevice);
  const auto expect = [&](const std::string& name, auto module) {
    module->to(kDevice);
    expect_trains_without_waiting(name, module, x, every_module::kSelf);
    expect_trains_without_waiting(name + ", padded", module, x, every_module::kPadded);
  };
  expect("MultiHeadAttention", MultiHeadAttention(MultiHeadAttentionOptions(E, H).dropout(0.1)));
  expect(
      "GroupQueryAttention",
      GroupQueryAttention(GroupQueryAttentionOptions(E, H, G).dropout(0.1).causal(true).window(4)));
  const auto block = TransformerBlockOptions(GroupQueryAttentionOptions(E, H, G).dropout(0.1));
  auto dropped = block;
  expect("Encoder", Encoder(EncoderOptions(dropped.dropout(0.1), 2).checkpointing(true)));
}

TEST(Waits, NoRotaryEmbeddingWaits) {
  const auto x = uniform({B, H, L, D}, kDevice);
  const auto positions = at::arange(L, at::device(kDevice).dtype(at::kLong));
  const std::vector<std::pair<const char*, std::optional<RotaryScaling>>> scalings = {
      {"plain", {}},
      {"linear", LinearScaling(4.0)},
      {"ntk", NtkScaling(4.0)},
      {"dynamic ntk", NtkScaling(4.0).original_length(5)},
      {"yarn", YarnScaling(4.0, 16)},
      {"llama3", Llama3Scaling(4.0, 16)},
  };
  for (const auto& [name, scaling] : scalings) {
    RotaryEmbedding rotary(RotaryEmbeddingOptions(D).scaling(scaling));
    expect_no_wait(name, [&] { rotary(x); });
    int64_t first = 0;  // nothing that is remembered
    expect_no_wait(name + std::string(", further on"),
                   [&] { rotary->rotate(x, rotary->angles(++first, L, x.options())); });
    expect_no_wait(name + std::string(", positions"), [&] { rotary(x, positions); });
    expect_no_wait(name + std::string(", positions of each sequence"), [&] {
      rotary(x, positions.expand({B, L}) + 3);
    });
  }
}

TEST(Waits, NoLayerWaitsForPositionsOrTokens) {
  const auto x = uniform({B, L, E}, kDevice);
  const auto positions = at::arange(L, at::device(kDevice).dtype(at::kLong)).expand({B, L});
  for (const auto kind : {PositionKind::sinusoidal, PositionKind::learned}) {
    PositionEmbedding embedding(PositionEmbeddingOptions(E).kind(kind).max_length(L));
    embedding->to(kDevice);
    expect_no_wait("PositionEmbedding", [&] { embedding(x, positions); });
  }
}

TEST(Waits, NoMemoryIsWaitedFor) {
  auto options = block_options(E, H, G);
  TransformerBlock block(options.cross_attention(true));
  block->to(kDevice);
  const auto x = uniform({B, L, E}, kDevice), memory = uniform({B, 5, E}, kDevice);
  expect_no_wait("projected memory", [&] {
    block->forward(x, TransformerInputs().projected_memory({block->project_memory(memory)}));
  });
  expect_no_wait("weights",
                 [&] { block->forward_with_weights(x, TransformerInputs().memory(memory)); });
  ScaledDotProductAttention attention(2.0);
  const auto heads = uniform({B, H, L, D}, kDevice);
  expect_no_wait("ScaledDotProductAttention", [&] { attention(heads, heads, heads); });
}

TEST(Waits, NoMaskIsWaitedFor) {
  const auto lengths = at::full({B}, 5, at::device(kDevice).dtype(at::kLong));
  expect_no_wait("masks", [&] {
    causal_mask(4, 7, kDevice);
    window_mask(4, 7, 3, true, kDevice);
    const auto padding = padding_mask(lengths, L);
    document_mask(lengths.expand({L, B}).t());
    from_hidden(padding);
    combine_masks({padding, causal_mask(L, L, kDevice)});
  });
}

TEST(Waits, NoNestedTensorIsWaitedFor) {
  const auto x = uniform({7, E}, kDevice), y = uniform({3, E}, kDevice);
  GroupQueryAttention module(
      GroupQueryAttentionOptions(E, H, G).causal(true).rotary(RotaryEmbeddingOptions(D)));
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    module->to(kDevice, dtype);
    expect_no_wait("nested", [&] {
      const auto input =
          at::_nested_tensor_from_tensor_list({x.to(dtype), y.to(dtype)}).requires_grad_();
      module(input).unbind()[0].sum().backward();
      const auto other = at::_nested_tensor_from_tensor_list({y.to(dtype), x.to(dtype)});
      module(input, other, other);
    });
  }
}

/// Prompts, then tokens: of equal lengths, and of different ones.
template <typename MakeCache, typename Step>
void expect_decodes_without_waiting(const std::string& name, const MakeCache& make_cache,
                                    const Step& step) {
  const at::NoGradGuard no_grad;
  auto cache = make_cache();
  expect_no_wait(name + ", equal lengths", [&] {
    step(cache, 5, {});
    step(cache, 1, {});
  });
  auto ragged = make_cache();
  expect_no_wait(name + ", different lengths", [&] {
    step(ragged, 5, {5, 2});
    step(ragged, 1, {});
    step(ragged, 1, {0, 1});
  });
}

template <typename Module, typename = void>
struct HasCache : std::false_type {};
template <typename Module>
struct HasCache<Module, std::void_t<decltype(std::declval<Module>()->make_cache(1, 1))>>
    : std::true_type {};

TEST(Waits, NoCachedStepWaits) {
  every_module::visit_attentions(
      [](const std::string& name, const auto& module, const at::Tensor& x, const auto& /*call*/) {
        if constexpr (HasCache<std::decay_t<decltype(module)>>::value) {
          auto here = copy_of(module, kDevice, at::kFloat);
          here->eval();
          const auto input = x.to(kDevice);
          for (const bool fixed : {false, true}) {
            expect_decodes_without_waiting(
                name + (fixed ? ", fixed shapes" : ""),
                [&] { return here->make_cache(B, 30, CacheOptions().fixed_shapes(fixed)); },
                [&](KVCache& cache, int64_t count, const std::vector<int64_t>& counts) {
                  here->forward_cached(input.narrow(1, 0, count), cache, counts);
                });
          }
        } else {
          ADD_FAILURE() << name << " has no cache";
        }
      });
}

TEST(Waits, NoModelWaitsInACachedStep) {
  const auto learned = PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(30);
  const auto dynamic = GroupQueryAttentionOptions(E, H, G).rotary(
      RotaryEmbeddingOptions(D).scaling(NtkScaling(2.0).original_length(4)));
  const std::vector<std::pair<const char*, DecoderOptions>> models = {
      {"rotary", DecoderOptions(V, llama_options(E, H, G), 2)},
      {"dynamic ntk", DecoderOptions(V, TransformerBlockOptions(dynamic), 2)},
      {"learned positions", DecoderOptions(V, block_options(E, H, G), 2).positions(learned)},
      {"sinusoidal positions",
       DecoderOptions(V, block_options(E, H, G), 2).positions(PositionEmbeddingOptions(E))},
  };
  const auto tokens = at::randint(V, {B, 5}, at::kLong).to(kDevice);
  for (const auto& [name, options] : models) {
    Decoder model(options);
    model->to(kDevice);
    model->eval();
    expect_decodes_without_waiting(
        name, [&] { return model->make_caches(B, 30); },
        [&](std::vector<KVCache>& caches, int64_t count, const std::vector<int64_t>& counts) {
          model->forward_cached(tokens.narrow(1, 0, count), caches, counts);
        });
  }
}

TEST(Waits, NoCacheWaits) {
  const auto keys = uniform({B, G, 3, D}, kDevice);
  const auto swapped = at::arange(1, -1, -1, at::device(kDevice).dtype(at::kLong));
  KVCache equal(KVCacheOptions(B, G, 64, D).device(kDevice));
  expect_no_wait("KVCache", [&] {
    equal.append(keys, keys);
    equal.next_positions(2);
    equal.distances();
    equal.reorder(swapped);
    equal.truncate(2);
    equal.clone();
  });
  KVCache fixed(KVCacheOptions(B, G, 64, D).device(kDevice).fixed_shapes(true));
  expect_no_wait("KVCache with fixed shapes", [&] {
    fixed.append(keys, keys);
    fixed.append(keys, keys, {3, 1});
    fixed.next_positions(2);
    fixed.mask(3);
    fixed.distances();
    fixed.reorder(swapped);
    fixed.truncate(2);
    fixed.clone();
    fixed.reset();
  });
  EXPECT_THROW(fixed.append(uniform({B, G, 65, D}, kDevice), uniform({B, G, 65, D}, kDevice)),
               c10::ValueError);
  fixed.append(keys.narrow(2, 0, 1).expand({-1, -1, 64, -1}),
               keys.narrow(2, 0, 1).expand({-1, -1, 64, -1}));
  EXPECT_THROW(fixed.append(keys, keys), c10::Error) << "the device's own error";
  KVCache window(KVCacheOptions(B, G, 5, D).window(3).device(kDevice));
  expect_no_wait("KVCache with a window", [&] {
    for (const auto& counts : {std::vector<int64_t>{3, 1}, {2, 2}}) {
      window.append(keys, keys, counts);
      window.next_positions(2);
      window.mask();
      window.distances();
    }
  });
}

TEST(Waits, NoSampledTokenIsWaitedFor) {
  const auto scores = uniform({3, 50}, kDevice);
  const std::vector<SamplingOptions> options = {SamplingOptions().temperature(0),
                                                SamplingOptions().top_k(5).min_p(0.1),
                                                SamplingOptions().top_p(0.9)};
  const std::vector<at::Generator> generators(3, at::make_generator<at::CPUGeneratorImpl>(1));
  expect_no_wait("most likely", [&] { sample(scores, options[0]); });
  expect_no_wait("by the device's generator", [&] { sample(scores); });
  expect_no_wait("by generators of the CPU", [&] { sample(scores, options, generators); });
  const std::vector<int64_t> tokens = {1, 7, 1, 7};
  const std::vector<TokenHistory> histories(3, {tokens, 2});
  const auto penalized = SamplingOptions()
                             .repetition_penalty(1.5)
                             .presence_penalty(0.5)
                             .frequency_penalty(0.5)
                             .no_repeat_ngram_size(2)
                             .logit_bias({{3, 1.0}});
  expect_no_wait("with penalties", [&] { sample(scores, penalized, generators, histories); });
}

TEST(Waits, NoAttentionWaitsUnderAutocast) {
  const auto x = uniform({B, H, L, D}, kDevice).requires_grad_();
  const auto bias = uniform({L, L}, kDevice).requires_grad_();
  expect_no_wait("attend under autocast", [&] {
    const auto output = [&] {
      const Autocast autocast(at::kCUDA, at::kHalf);
      return attend(x, x, x, AttendOptions().bias(bias));
    }();
    output.sum().backward();
  });
}

/// For whether a gradient overflowed, which decides whether the optimizer makes a step.
TEST(Waits, AScaledStepWaitsOnce) {
  auto weight = uniform({4}, kDevice).requires_grad_(), other = uniform({4}, kDevice);
  other = other.to(at::kDouble).requires_grad_();
  torch::optim::SGD optimizer({weight, other}, 0.1);
  GradScaler scaler;
  const auto unscale = [&] {
    optimizer.zero_grad();
    scaler.scale(weight.sum() + other.sum()).backward();
    scaler.unscale_(optimizer);
  };
  for (int iteration = 0; iteration < 2; ++iteration) {
    const WorkOfDevice device;
    unscale();
    EXPECT_EQ(device.work().synchronizations(), 0) << printed_waits(device.work());
    EXPECT_TRUE(scaler.step(optimizer));
    EXPECT_EQ(device.work().synchronizations(), 1) << printed_waits(device.work());
    scaler.update();
    EXPECT_EQ(device.work().synchronizations(), 1) << printed_waits(device.work());
  }
}

/// For the norm that it returns, and for whether a gradient overflowed.
TEST(Waits, AFusedStepWaitsOnceAtMost) {
  const auto weight = uniform({4}, kDevice).requires_grad_();
  const auto half = uniform({4}, kDevice).to(at::kHalf).requires_grad_();
  FusedAdamW optimizer({weight, half}, 0.1);
  GradScaler scaler;
  const auto expect_waits = [&](int64_t count, const auto& step) {
    for (int iteration = 0; iteration < 2; ++iteration) {
      optimizer.zero_grad();
      scaler.scale(weight.sum() + half.to(at::kFloat).sum() * 1e-4).backward();
      const WorkOfDevice device;
      step();
      EXPECT_EQ(device.work().synchronizations(), count) << printed_waits(device.work());
    }
  };
  expect_waits(0, [&] { optimizer.step(); });
  expect_waits(1, [&] { optimizer.step_clipped(0.1); });
  expect_waits(1, [&] { clip_grad_norm_({weight, half}, 0.1); });
  expect_waits(1, [&] {
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
  });
}

}  // namespace
}  // namespace heed::test::of_waits
