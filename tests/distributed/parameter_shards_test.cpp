#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/distributed/parameter_shards.h>
#include <torch/nn/utils/clip_grad.h>

#include "distributed/whole_and_parts.h"
#include "support/expect.h"

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
    EXPECT_EQ(value_error([&] {
                distributed::gather_shards(torch::zeros({3, 2}), TensorShard{0, 0, 2, 8}, group);
              }),
              "gather_shards: part [3, 2] must have size 2 in dim 0");
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
    EXPECT_EQ(value_error([&] { distributed::clip_grad_norm_(*models.parts, 0.0, group); }),
              "clip_grad_norm_: max_norm (0) must be above 0");
  });
}

}  // namespace
}  // namespace heed::test::of_parameter_shards
