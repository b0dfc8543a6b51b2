// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/masks.h>
#include <torch/utils.h>

#include <map>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::of_paged_memory {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t V = 11, E = 16, H = 4, G = 2, S = 9, M = 3, kMost = 40;

Decoder make_decoder() {
  GroupQueryAttentionOptions attention(E, H, G);
  attention.rotary(RotaryEmbeddingOptions(E / H));
  Decoder model(DecoderOptions(V, TransformerBlockOptions(attention).cross_attention(true), 2));
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() > 1) parameter.mul_(10.0);
  }
  model->eval();
  return model;
}

/// Sequences in pages, each with a row of a memory, beside their whole texts.
class Sequences {
 public:
  explicit Sequences(at::Device device)
      : model_(make_decoder()),
        memory_(uniform({M, S, E}, at::device(device)) * 3),
        mask_(padding_mask(at::tensor({S, int64_t{4}, int64_t{6}}, at::kLong), S).to(device)) {
    model_->to(device);
    cache_.emplace(model_->make_paged_cache(16, PagedCacheOptions().page_size(16)));
    exact_ = copy_of(model_, device, at::kDouble);
  }

  int64_t add(int64_t row) {
    const auto name = cache_->add();
    rows_[name] = row;
    texts_[name] = at::zeros({1, 0}, at::device(memory_.device()).dtype(at::kLong));
    return name;
  }

  int64_t fork(int64_t from) {
    const auto name = cache_->fork(from);
    rows_[name] = rows_[from];
    texts_[name] = texts_[from];
    return name;
  }

  /// Appends random tokens, and compares the scores with those of each text alone.
  void append(const Numbers& names, const Numbers& counts, bool is_projected) {
    auto step = cache_->append(names, counts);
    const auto tokens =
        at::randint(V, {1, step.tokens()}, at::device(memory_.device()).dtype(at::kLong));
    Numbers rows;
    std::vector<at::Tensor> expected, last;
    int64_t first = 0;
    for (size_t n = 0; n < names.size(); ++n) {
      rows.push_back(rows_[names[n]]);
      auto& text = texts_[names[n]];
      text = at::cat({text, tokens.narrow(1, first, counts[n])}, 1);
      first += counts[n];
      if (counts[n] == 0) continue;
      const auto inputs = TransformerInputs()
                              .memory(memory_.narrow(0, rows.back(), 1).to(at::kDouble))
                              .memory_mask(mask_.narrow(0, rows.back(), 1));
      const auto scores = exact_->forward(text, inputs);
      expected.push_back(scores.narrow(1, text.size(1) - counts[n], counts[n]));
      last.push_back(scores.narrow(1, text.size(1) - 1, 1));
    }
    step.memory_rows(rows);
    auto inputs = TransformerInputs().memory_mask(mask_);
    if (is_projected) {
      inputs.projected_memory(model_->project_memory(memory_));
    } else {
      inputs.memory(memory_);
    }
    // Scores up to 10, after two layers in float32.
    EXPECT_TRUE(
        is_close(model_->forward_cached(tokens, step, false, inputs), at::cat(expected, 1), 1e-4));
    EXPECT_TRUE(
        is_close(model_->forward_cached(tokens, step, true, inputs), at::cat(last, 1), 1e-4));
  }

 private:
  Decoder model_, exact_{nullptr};
  at::Tensor memory_, mask_;
  std::optional<PagedKVCache> cache_;
  std::map<int64_t, int64_t> rows_;
  std::map<int64_t, at::Tensor> texts_;
};

TEST(PagedMemory, GivesTheScoresOfEachTextAlone) {
  torch::manual_seed(moved(0));
  const at::NoGradGuard no_grad;
  for (const auto device : devices()) {
    for (const bool is_projected : {false, true}) {
      Sequences sequences(device);
      const auto a = sequences.add(1), b = sequences.add(0), c = sequences.add(1);
      sequences.append({a, b, c}, {3, 1, 19}, is_projected);
      sequences.append({a, b, c}, {1, 1, 1}, is_projected);
      const auto d = sequences.fork(a), e = sequences.fork(c), f = sequences.add(2);
      sequences.append({f, d, a, c, e}, {2, 1, 1, 1, 1}, is_projected);
      sequences.append({b, f}, {0, 1}, is_projected);
      sequences.append({e, d, b}, {4, 1, 1}, is_projected);
    }
  }
}

TEST(PagedMemory, GivesTheScoresOfAKVCache) {
  torch::manual_seed(moved(1));
  const at::NoGradGuard no_grad;
  auto model = make_decoder();
  const auto memory = uniform({M, S, E}, at::kFloat);
  const auto inputs = TransformerInputs().projected_memory(model->project_memory(memory));
  auto caches = model->make_caches(M, kMost);
  auto pages = model->make_paged_cache(8);
  const Numbers names = {pages.add(), pages.add(), pages.add()};
  for (const int64_t count : {5, 1, 1, 2}) {
    const auto tokens = at::randint(V, {M, count}, at::kLong);
    auto step = pages.append(names, {count, count, count});  // sequence n has row n
    const auto paged = model->forward_cached(tokens.view({1, -1}), step, false, inputs);
    EXPECT_TRUE(is_close(paged.view({M, count, V}),
                         model->forward_cached(tokens, caches, {}, inputs), 1e-5));
  }
}

TEST(PagedMemory, IsChecked) {
  const at::NoGradGuard no_grad;
  auto model = make_decoder();
  auto pages = model->make_paged_cache(8);
  auto step = pages.append({pages.add(), pages.add()}, {2, 1});
  const auto tokens = at::randint(V, {1, 3}, at::kLong);
  const auto error = [&](const TransformerInputs& inputs) {
    return value_error([&] { model->forward_cached(tokens, step, false, inputs); });
  };
  const auto memory = uniform({3, S, E}, at::kFloat);
  EXPECT_EQ(error({}), "TransformerBlock: memory must be given: there is cross-attention");
  EXPECT_EQ(error(TransformerInputs().memory(memory)),
            "GroupQueryAttention: memory dim 0 (3) must equal the step's sequences (2), or the "
            "step must have memory_rows");
  step.memory_rows({2, 2});
  const auto projected = model->project_memory(memory);
  EXPECT_EQ(error(TransformerInputs().projected_memory({projected[0]})),
            "Encoder: projected_memory size (1) must equal num_layers (2)");
  EXPECT_EQ(error(TransformerInputs().memory(uniform({3, S, E + 1}, at::kFloat))),
            "TransformerBlock: memory dim 2 (17) must equal emb_dim (16); memory [3, 9, 17]");
  EXPECT_EQ(error(TransformerInputs().projected_memory(projected).memory_mask(
                at::ones({1, 3, S}, at::kBool))),
            "TransformerBlock: memory_mask dim 1 (3) must equal L (1) or 1; memory_mask [1, 3, 9], "
            "query [1, 3, 16], key [3, 2, 9, 4]");
  // The step is as before.
  const auto inputs = TransformerInputs().projected_memory(projected);
  EXPECT_EQ(model->forward_cached(tokens, step, true, inputs).sizes(), at::IntArrayRef({1, 2, V}));
}

}  // namespace
}  // namespace heed::test::of_paged_memory
