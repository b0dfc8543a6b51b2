// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/attend_paged.h>
#include <heed/attention.h>
#include <heed/decoder.h>
#include <heed/differential_attention.h>
#include <heed/fused_adamw.h>
#include <heed/grad_scaler.h>
#include <heed/kv_cache.h>
#include <heed/latent_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/paged_kv_cache.h>
#include <heed/residual_attention.h>
#include <heed/self_attention.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/failing_memory.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "support/transformers.h"
#include "unit/models/all_or_nothing.h"

/// Calls that promise to change nothing when they throw, where every allocation in turn fails.
namespace heed::test::of_failing_memory {
namespace {

constexpr int64_t B = 2, E = 12, H = 2, G = 1, D = 6, V = 20;

/// The stored rows, with 0 behind a sequence's tokens: what stands there counts for nothing.
at::Tensor of_tokens(const KVCache& cache, at::Tensor stored) {
  if (!stored.defined()) return stored;
  if (stored.dim() == 3) stored = stored.unsqueeze(3);
  const auto place = at::arange(stored.size(2)).view({1, 1, -1, 1});
  return stored.masked_fill(place.ge(cache.key_lengths().view({-1, 1, 1, 1})), 0);
}

Told told_of(KVCache& cache) {
  Told told = {numbers(cache.lengths()), cache.key_lengths().clone(), cache.query_lengths(),
               cache.next_positions(2),
               numbers({cache.options().capacity(), cache.has_equal_lengths()})};
  for (const auto& stored :
       {cache.keys(), cache.values(), cache.key_scales(), cache.value_scales()}) {
    told.push_back(of_tokens(cache, stored));
  }
  return told;
}

/// Sequences of 6 and 4 tokens, of which 3 and 2 came with the last append.
KVCache filled_cache(const KVCacheOptions& options) {
  torch::manual_seed(moved(3));
  KVCache cache(options);
  const auto dtype = options.dtype() == at::kChar ? at::kFloat : options.dtype();
  for (const auto& counts : {std::vector<int64_t>{3, 2}, {3, 2}}) {
    cache.append(uniform({B, G, 3, D}, dtype), uniform({B, G, 3, D}, dtype), counts);
  }
  return cache;
}

TEST(FailingMemory, LeavesAKVCacheAsItWas) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(moved(1));
  const auto more = uniform({B, G, 2, D}, at::kFloat);
  const auto swapped = numbers({1, 0});
  using Act = std::function<void(KVCache&)>;
  const std::vector<std::pair<std::string, Act>> acts = {
      {"append", [&](KVCache& cache) { cache.append(more, more); }},
      {"append with counts",
       [&](KVCache& cache) {
         cache.append(more, more, {1, 2});
       }},
      {"reorder", [&](KVCache& cache) { cache.reorder(swapped); }},
      {"truncate", [](KVCache& cache) { cache.truncate(2); }},
      {"truncate one", [](KVCache& cache) { cache.truncate(1, 3); }},
      {"reset", [](KVCache& cache) { cache.reset(); }},
      {"grow", [](KVCache& cache) { cache.grow(40); }},
  };
  const KVCacheOptions plain(B, G, 9, D);
  auto int8 = plain, fixed = plain, windowed = plain;
  int8.dtype(at::kChar);
  fixed.fixed_shapes(true);
  windowed.window(8);
  for (const auto& [name, act] : acts) {
    for (const auto& options : {plain, int8, fixed, windowed}) {
      expect_all_or_nothing(
          name, [&options = options] { return filled_cache(options); }, act, told_of);
    }
  }
}

/// Where keys move to the front, the tokens are the same afterwards, and what the next one sees.
TEST(FailingMemory, LeavesTheWindowOfAKVCache) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(moved(1));
  const auto more = uniform({B, G, 2, D}, at::kFloat);
  for (const auto dtype : {at::kFloat, at::kChar}) {
    const auto options = KVCacheOptions(B, G, 6, D).window(5).dtype(dtype);
    expect_all_or_nothing(
        "append", [&] { return filled_cache(options); },
        [&](KVCache& cache) { cache.append(more, more); },
        [](KVCache& cache) {
          Told told = {numbers(cache.lengths())};
          const auto stored = cache.key_lengths();
          for (int64_t b = 0; b < B; ++b) {
            const auto seen = std::min<int64_t>(stored[b].item<int64_t>(), 4);
            const auto first = stored[b].item<int64_t>() - seen;
            told.push_back(cache.keys()[b].narrow(1, first, seen));
            told.push_back(cache.values()[b].narrow(1, first, seen));
            if (const auto scales = cache.value_scales(); scales.defined()) {
              told.push_back(scales[b].narrow(1, first, seen));
            }
          }
          return told;
        });
  }
}

struct Pages {
  PagedKVCache cache;
  std::vector<int64_t> names;
};

void write(PagedStep& step) {
  for (int64_t layer = 0; layer < step.options().layers(); ++layer) {
    const auto heads = uniform({step.tokens(), G, D}, at::kFloat);
    step.write(heads, heads.neg(), layer);
  }
}

/// Two sequences of 24 tokens that share their pages, and one of 5.
Pages filled_pages(const PagedKVCacheOptions& options) {
  torch::manual_seed(moved(3));
  Pages pages{PagedKVCache(options), {}};
  auto& cache = pages.cache;
  const auto first = cache.add();
  auto prompt = cache.append({first}, {20});
  write(prompt);
  const auto other = cache.add();
  auto both = cache.append({other, first}, {5, 4});
  write(both);
  pages.names = {first, cache.fork(first), other};
  return pages;
}

Told told_of_pages(Pages& pages) {
  auto& cache = pages.cache;
  Told told = {numbers({cache.pages_free()})};
  for (const auto name : pages.names) told.push_back(numbers({cache.length(name)}));
  torch::manual_seed(moved(4));
  auto step = cache.append(pages.names, std::vector<int64_t>(pages.names.size(), 1));
  write(step);
  for (int64_t layer = 0; layer < step.options().layers(); ++layer) {
    told.push_back(attend_paged(uniform({step.tokens(), H, D}, at::kFloat), step, layer,
                                AttendOptions().window(step.options().window())));
  }
  told.push_back(numbers({cache.add()}));
  return told;
}

TEST(FailingMemory, LeavesAPagedKVCacheAsItWas) {
  const at::NoGradGuard no_grad;
  using Act = std::function<void(Pages&)>;
  const std::vector<std::pair<std::string, Act>> acts = {
      {"append",
       [](Pages& pages) {
         pages.cache.append(pages.names, {1, 1, 30});
       }},
      {"append a tree",
       [](Pages& pages) {
         pages.cache.append({pages.names[1]}, {3}, {-1, 0, 0});
       }},
      {"keep",
       [](Pages& pages) {
         pages.cache.keep(pages.names[0], {21, 23});
       }},
      {"truncate", [](Pages& pages) { pages.cache.truncate(pages.names[0], 21); }},
      {"add", [](Pages& pages) { pages.cache.add(); }},
      {"fork", [](Pages& pages) { pages.cache.fork(pages.names[2]); }},
      {"remove",
       [](Pages& pages) {
         pages.cache.remove(pages.names.back());
         pages.names.pop_back();
       }},
  };
  const PagedKVCacheOptions plain = PagedKVCacheOptions(12, G, D).page_size(16).layers(2);
  auto windowed = plain, int8 = plain;
  windowed.window(4);
  int8.dtype(at::kChar);
  for (const auto& [name, act] : acts) {
    for (const auto& options : {plain, windowed, int8}) {
      expect_all_or_nothing(
          name, [&options = options] { return filled_pages(options); }, act, told_of_pages);
    }
  }
}

/// The next tokens after what a failing call leaves, and how many there are.
template <typename Module>
void expect_cached_all_or_nothing(const std::string& name, Module module) {
  torch::manual_seed(moved(5));
  module->eval();
  const auto x = uniform({B, 9, E}, at::kFloat);
  for (const bool fixed : {false, true}) {
    expect_all_or_nothing(
        name,
        [&] {
          auto cache = module->make_cache(B, 9, CacheOptions().fixed_shapes(fixed));
          module->forward_cached(x.narrow(1, 0, 5), cache, {5, 3});
          return cache;
        },
        [&](KVCache& cache) {
          module->forward_cached(x.narrow(1, 5, 2), cache, {2, 1});
        },
        [&](KVCache& cache) {
          auto told = told_of(cache);
          told.push_back(module->forward_cached(x.narrow(1, 7, 2), cache));
          return told;
        });
  }
}

TEST(FailingMemory, LeavesTheCacheOfEveryAttention) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(moved(2));
  expect_cached_all_or_nothing("Attention", Attention(E));
  expect_cached_all_or_nothing("AttentionV1", AttentionV1(E));
  expect_cached_all_or_nothing("MultiHeadAttention", MultiHeadAttention(E, H));
  expect_cached_all_or_nothing(
      "GroupQueryAttention",
      GroupQueryAttention(
          GroupQueryAttentionOptions(E, H, G).causal(true).rotary(RotaryEmbeddingOptions(D))));
  expect_cached_all_or_nothing("SelfAttention", SelfAttention(E, H));
  expect_cached_all_or_nothing("ResidualAttention",
                               ResidualAttention(MultiHeadAttentionOptions(E, H)));
  expect_cached_all_or_nothing(
      "LatentAttention",
      LatentAttention(
          LatentAttentionOptions(E, H, 8).plain_head_dim(4).rotary_head_dim(2).value_head_dim(5)));
  expect_cached_all_or_nothing(
      "DifferentialAttention",
      DifferentialAttention(DifferentialAttentionOptions(E, H).causal(true)));
  auto block = block_options(E, H, G);
  block.attention().causal(true);
  expect_cached_all_or_nothing("TransformerBlock", TransformerBlock(block));
}

/// Where keys have been evicted, what follows is the same.
TEST(FailingMemory, LeavesTheCachesOfADecoder) {
  const at::NoGradGuard no_grad;
  for (const bool windowed : {false, true}) {
    torch::manual_seed(moved(6));
    auto block = llama_options(E, H, G);
    block.attention().causal(true);
    if (windowed) block.attention().window(3);
    Decoder model(DecoderOptions(V, block, 2));
    model->eval();
    const auto tokens = at::arange(B * 9).view({B, 9});
    expect_all_or_nothing(
        "Decoder",
        [&] {
          auto caches = model->make_caches(B, windowed ? 5 : 9);
          model->forward_cached(tokens.narrow(1, 0, 4), caches, {4, 3});
          return caches;
        },
        [&](std::vector<KVCache>& caches) {
          model->forward_cached(tokens.narrow(1, 4, 2), caches);
        },
        [&](std::vector<KVCache>& caches) {
          Told told;
          for (const auto& cache : caches) told.push_back(numbers(cache.lengths()));
          told.push_back(model->forward_cached(tokens.narrow(1, 6, 2), caches));
          return told;
        });
  }
}

/// A step is there before its layers run, and each layer writes to the same places again.
TEST(FailingMemory, LetsAStepBeRepeated) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(moved(6));
  auto block = llama_options(E, H, G);
  block.attention().causal(true);
  Decoder model(DecoderOptions(V, block, 2));
  model->eval();
  const auto tokens = at::arange(12).view({1, 12});
  struct State {
    PagedKVCache cache;
    int64_t sequence;
    PagedStep step;
  };
  const auto make = [&] {
    auto cache = model->make_paged_cache(4, PagedCacheOptions().page_size(16));
    const auto sequence = cache.add();
    auto prompt = cache.append({sequence}, {6});
    model->forward_cached(tokens.narrow(1, 0, 6), prompt);
    auto step = cache.append({sequence}, {2});
    return State{std::move(cache), sequence, std::move(step)};
  };
  const auto run = [&](State& state) {
    return model->forward_cached(tokens.narrow(1, 6, 2), state.step);
  };
  expect_all_or_nothing("Decoder", make, run, [&](State& state) { return Told{run(state)}; });
}

/// Takes its steps without memory: it subtracts each gradient, of float32.
class Subtraction : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure /*closure*/) override {
    for (const auto& parameter : param_groups()[0].params()) {
      auto* numbers = static_cast<float*>(parameter.mutable_data_ptr());
      const auto* gradient = static_cast<const float*>(parameter.grad().const_data_ptr());
      for (int64_t i = 0; i < parameter.numel(); ++i) numbers[i] -= gradient[i];
    }
    return {};
  }
};

/// A training in the middle of a step.
struct Scaled {
  /// `scaled`: whether a loss has been scaled.
  explicit Scaled(bool scaled) {
    const at::NoGradGuard no_grad;
    torch::manual_seed(moved(9));
    for (const int64_t size : {5, 4, 6}) {
      parameters.push_back(uniform({size}, at::kFloat).requires_grad_());
      parameters.back().mutable_grad() = uniform({size}, at::kFloat).mul_(8);
    }
    optimizer = std::make_unique<Subtraction>(parameters, torch::optim::SGDOptions(0.1));
    if (scaled) scaler->scale(at::ones({}));
  }

  std::vector<at::Tensor> parameters;
  std::unique_ptr<GradScaler> scaler =
      std::make_unique<GradScaler>(GradScalerOptions().init_scale(6.0).growth_interval(1));
  std::unique_ptr<Subtraction> optimizer;
};

Told told_of_gradients(const Scaled& state) {
  Told told = {at::full({}, state.scaler->scale(), at::kDouble)};
  for (const auto& parameter : state.parameters) {
    told.push_back(parameter.grad().clone());
    told.push_back(parameter.detach().clone());
  }
  return told;
}

/// The gradients now, and what the rest of the step makes of them.
Told told_of_step(Scaled& state) {
  auto told = told_of_gradients(state);
  state.scaler->step(*state.optimizer);
  state.scaler->update();
  for (const auto& tensor : told_of_gradients(state)) told.push_back(tensor);
  return told;
}

TEST(FailingMemory, LeavesAGradScalerAsItWas) {
  expect_all_or_nothing(
      "scale", [] { return Scaled(false); },
      [](Scaled& state) { state.scaler->scale(at::ones({})); },
      [](Scaled& state) {
        state.scaler->scale(at::ones({}));
        return told_of_step(state);
      });
  expect_all_or_nothing(
      "unscale_", [] { return Scaled(true); },
      [](Scaled& state) { state.scaler->unscale_(*state.optimizer); }, told_of_step);
  expect_all_or_nothing(
      "update",
      [] {
        Scaled state(true);
        state.scaler->step(*state.optimizer);
        return state;
      },
      [](Scaled& state) { state.scaler->update(); }, told_of_gradients);
}

/// The gradients may be divided already: a second call goes on from there.
TEST(FailingMemory, LetsAStepOfAGradScalerBeRepeated) {
  Scaled done(true);
  const auto after = told_of_step(done);
  for (int64_t n = 0;; ++n) {
    Scaled state(true);
    const auto before = told_of_gradients(state);
    const bool failed = runs_out_of_memory(n, [&] { state.scaler->step(*state.optimizer); });
    if (failed) state.scaler->step(*state.optimizer);
    state.scaler->update();
    auto told = before;
    for (const auto& tensor : told_of_gradients(state)) told.push_back(tensor);
    ASSERT_TRUE(are_equal(told, after)) << n << " allocations";
    if (!failed) return;
  }
}

/// An archive of so many parameters that reading it takes more than a few kilobytes at once.
TEST(FailingMemory, IsNotTakenForAWrongArchive) {
  constexpr size_t kParameters = 300, kSmall = 8192;
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < kParameters; ++i) {
    parameters.push_back(at::ones({1}).requires_grad_());
    parameters.back().mutable_grad() = at::ones({1});
  }
  FusedAdamW saved(parameters, 0.1), loaded(parameters, 0.5);
  saved.step();
  std::stringstream file;
  torch::save(saved, file);
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  {
    const SmallMemory memory(kSmall);
    EXPECT_THROW(loaded.load(archive), std::bad_alloc);
  }
  EXPECT_TRUE(loaded.state().empty());
  EXPECT_EQ(loaded.param_groups()[0].options().get_lr(), 0.5);
  loaded.load(archive);
  EXPECT_EQ(loaded.state().size(), kParameters);
  EXPECT_EQ(loaded.param_groups()[0].options().get_lr(), 0.1);
}

}  // namespace
}  // namespace heed::test::of_failing_memory
