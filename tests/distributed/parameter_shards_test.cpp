// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/distributed/parallelize.h>
#include <heed/distributed/parameter_shards.h>
#include <heed/multi_head_attention.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "distributed/whole_and_parts.h"
#include "support/expect.h"
#include "support/seeds.h"

namespace heed::test::of_parameter_shards {
namespace {

/// Fewer key/value heads than processes: some are held twice.
Decoder make_model() {
  const auto attention = GroupQueryAttentionOptions(16, 4, 2).causal(true).sinks(true);
  return Decoder(DecoderOptions(/*vocab_size=*/12, TransformerBlockOptions(attention),
                                /*num_layers=*/2));
}

void run_backward(DecoderImpl& model) {
  const auto tokens = torch::arange(12).view({2, 6});
  const auto scores = model.forward(tokens);  // a part of the vocabulary, or all
  (scores * torch::linspace(0.5, 1.5, 6, torch::kDouble).view({1, 6, 1})).square().sum().backward();
}

TEST(ParameterShards, GatherToTheWhole) {
  in_processes(4, [](const ProcessGroup& group) {
    WholeAndParts<Decoder> models(make_model, group);
    const auto whole = models.whole->named_parameters();
    size_t gathered = 0;
    for (const auto& parameter : models.parts->named_parameters()) {
      const auto shard = models.shards.find(parameter.key());
      if (shard == models.shards.end()) continue;
      ++gathered;
      EXPECT_TRUE(distributed::gather_shards(parameter.value(), shard->second, group)
                      .equal(whole[parameter.key()]))
          << parameter.key();
    }
    EXPECT_EQ(gathered, models.shards.size());
    EXPECT_ERROR("gather_shards: part [3, 2] must have size 2 in dim 0",
                 distributed::gather_shards(torch::zeros({3, 2}), TensorShard{0, 0, 2, 8}, group));
    constexpr auto kMost = std::numeric_limits<int64_t>::max();
    for (const auto& [first, whole] : {std::pair<int64_t, int64_t>{-1, 8},
                                       {7, 8},
                                       {kMost, kMost},
                                       {kMost - 2, kMost - 1},
                                       {0, 1},
                                       {0, -kMost - 1}}) {
      EXPECT_EQ(value_error([&, first = first, whole = whole] {
                  distributed::gather_shards(torch::zeros({2, 2}), TensorShard{0, first, 2, whole},
                                             group);
                }),
                "gather_shards: first (" + std::to_string(first) +
                    ") must be from 0 to whole - size (" + std::to_string(whole) + " - 2)");
    }
    EXPECT_ERROR(
        "gather_shards: whole [9223372036854775807, 2] must take at most 2^47 bytes",
        distributed::gather_shards(torch::zeros({2, 2}), TensorShard{0, 0, 2, kMost}, group));
  });
}

TEST(ParameterShards, ClipByTheNormOfTheWhole) {
  in_processes(4, [](const ProcessGroup& group) {
    WholeAndParts<Decoder> models(make_model, group);
    run_backward(*models.whole);
    run_backward(*models.parts);
    const auto expected = torch::nn::utils::clip_grad_norm_(models.whole->parameters(), 0.5);
    ASSERT_GT(expected, 0.5);
    EXPECT_NEAR(distributed::clip_grad_norm_(*models.parts, 0.5, group), expected,
                1e-10 * expected);
    const auto whole = models.whole->named_parameters();
    for (const auto& parameter : models.parts->named_parameters()) {
      expect_close(parameter.value().grad(),
                   part_of(whole[parameter.key()].grad(), parameter.key(), models.shards),
                   parameter.key());
    }
    // A norm below the largest changes nothing.
    const auto before = models.parts->parameters()[0].grad().clone();
    distributed::clip_grad_norm_(*models.parts, 10.0, group);
    EXPECT_TRUE(models.parts->parameters()[0].grad().equal(before));
    EXPECT_ERROR("clip_grad_norm_: max_norm (0) must be above 0",
                 distributed::clip_grad_norm_(*models.parts, 0.0, group));
    EXPECT_TRUE(models.parts->parameters()[0].grad().equal(before));
    // A gradient that is NaN in one process makes all NaN in all processes.
    if (group->getRank() == 1) models.parts->parameters()[0].mutable_grad()[0] = NAN;
    EXPECT_TRUE(std::isnan(distributed::clip_grad_norm_(*models.parts, 0.5, group)));
    for (const auto& parameter : models.parts->parameters()) {
      EXPECT_TRUE(parameter.grad().isnan().all().item<bool>());
    }
  });
}

/// The group can still be used.
TEST(ParameterShards, RefuseAGradientOfOneProcessInAll) {
  in_processes(2, [](const ProcessGroup& group) {
    MultiHeadAttention attention(8, 2);
    for (auto& parameter : attention->parameters()) {
      parameter.mutable_grad() = torch::ones_like(parameter).detach();
    }
    auto& weight = attention->fc_k->weight;
    const bool is_wrong = group->getRank() == 1;
    if (is_wrong) weight.mutable_grad() = torch::ones({8, 8}, torch::kLong);
    const std::string error =
        "clip_grad_norm_: gradient dtype (Long) of parameter fc_k.weight must be Float, Double, "
        "BFloat16 or Half";
    EXPECT_ERROR(is_wrong ? error : error + " (in process 1 of 2)",
                 distributed::clip_grad_norm_(*attention, 1.0, group));
    EXPECT_TRUE(attention->fc_q->weight.grad().eq(1.0).all().item<bool>());
    weight.mutable_grad() = torch::ones({8, 8});
    EXPECT_GT(distributed::clip_grad_norm_(*attention, 1.0, group), 1.0);
  });
}

/// Only its user calls it.
struct DoubledLinear : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return 2 * LinearImpl::forward(x); }
};

TEST(ParameterShards, AreNoneOfALayerThatHeedDoesNotCall) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(4));
    MultiHeadAttention attention(8, 2);
    const std::shared_ptr<torch::nn::Module> own = std::make_shared<DoubledLinear>(8, 8);
    torch::nn::ModuleList model(attention.ptr(), own);
    EXPECT_TRUE(distributed::shards_of(*model).empty());
    distributed::parallelize(*model, group);
    const auto shards = distributed::shards_of(*model);
    EXPECT_EQ(shards.count("0.fc_q.weight"), 1U);
    EXPECT_EQ(shards.count("1.weight"), 0U);
  });
}

/// The modules are one that is split and one that is not; the norm's weights are whole.
TEST(ParameterShards, ClipAParameterThatStandsTwiceOnce) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(3));
    auto model = make_model();
    model->to(torch::kDouble);
    auto& blocks = model->stack->blocks;
    const auto first = blocks[0];
    blocks = model->stack->replace_module("blocks", torch::nn::ModuleList(first, first));
    for (const bool is_split : {false, true}) {
      if (is_split) distributed::parallelize(*model, group);
      model->zero_grad();
      run_backward(*model);
      const auto shards = distributed::shards_of(*model);
      double squares = 0.0;
      std::map<const c10::TensorImpl*, at::Tensor> before;
      for (const auto& parameter : model->named_parameters()) {
        auto gradient = parameter.value().grad().clone();
        if (!before.emplace(parameter.value().unsafeGetTensorImpl(), gradient).second) continue;
        const auto shard = shards.find(parameter.key());
        if (shard != shards.end()) {
          gradient = distributed::gather_shards(gradient, shard->second, group);
        }
        squares += gradient.square().sum().item<double>();
      }
      ASSERT_LT(before.size(), model->parameters().size());
      const auto norm = distributed::clip_grad_norm_(*model, std::sqrt(squares) / 2, group);
      EXPECT_NEAR(norm, std::sqrt(squares), 1e-10 * std::sqrt(squares));
      const auto factor = norm / 2 / (norm + 1e-6);  // as torch's
      for (const auto& parameter : model->parameters()) {
        expect_close(parameter.grad(), before.at(parameter.unsafeGetTensorImpl()) * factor, "half");
      }
    }
  });
}

}  // namespace
}  // namespace heed::test::of_parameter_shards
