// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/attention.h>
#include <heed/decoder.h>
#include <heed/differential_attention.h>
#include <heed/distributed/parallel_linear.h>
#include <heed/distributed/parallelize.h>
#include <heed/residual_attention.h>
#include <heed/self_attention.h>
#include <torch/nn/modules/container/sequential.h>

#include <vector>

#include "distributed/counting_group.h"
#include "distributed/processes.h"
#include "distributed/whole_and_parts.h"
#include "support/expect.h"
#include "support/seeds.h"

/// Tests of what parallelize exchanges, draws and refuses.

namespace heed::test::of_parallelize {
namespace {

TransformerBlockOptions block_options(double dropout = 0.0) {
  TransformerBlockOptions options(GroupQueryAttentionOptions(16, 4, 2).dropout(dropout));
  options.dropout(dropout).feed_forward().dropout(dropout);
  return options;
}

TEST(Parallelize, ExchangesActivationsFourTimesABlock) {
  in_processes(2, [](const ProcessGroup& gloo) {
    for (const bool sequence_parallel : {false, true}) {
      Counted counted;
      const auto group = counting_group(gloo, counted);
      torch::manual_seed(moved(7));
      TransformerBlock block(block_options());
      parallelize(*block, group, ParallelizeOptions().sequence_parallel(sequence_parallel));
      const int64_t length = sequence_parallel ? 4 : 8;
      const auto x = torch::randn({2, length, 16}).requires_grad_();
      const int64_t bytes = 2 * 8 * 16 * 4;  // of whole float32 activations
      using Counts = std::map<std::string, int64_t>;
      counted = {};
      const auto y = block->forward(x);
      const Counts passes = {{"all_gather", 2}, {"reduce_scatter", 2}};
      EXPECT_EQ(counted.operations, sequence_parallel ? passes : Counts({{"all_reduce", 2}}));
      EXPECT_EQ(counted.bytes, sequence_parallel
                                   ? Counts({{"all_gather", bytes}, {"reduce_scatter", 2 * bytes}})
                                   : Counts({{"all_reduce", 2 * bytes}}));
      counted = {};
      y.sum().backward();
      if (sequence_parallel) {
        // The gradients of two norms, with biases, and of two biases of row-parallel layers.
        EXPECT_EQ(counted.operations,
                  Counts({{"all_gather", 2}, {"reduce_scatter", 2}, {"all_reduce", 6}}));
        EXPECT_EQ(counted.bytes["all_reduce"], 6 * 16 * 4);
      } else {
        EXPECT_EQ(counted.operations, Counts({{"all_reduce", 2}}));
        EXPECT_EQ(counted.bytes, Counts({{"all_reduce", 2 * bytes}}));
      }
    }
  });
}

/// The tensors of all processes.
std::vector<at::Tensor> gathered(const ProcessGroup& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> inputs = {tensor.detach().contiguous()};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int i = 0; i < group->getSize(); ++i) outputs[0].push_back(at::empty_like(inputs[0]));
  group->allgather(outputs, inputs)->wait();
  return outputs[0];
}

bool is_equal_everywhere(const ProcessGroup& group, const at::Tensor& tensor) {
  const auto all = gathered(group, tensor);
  return std::all_of(all.begin(), all.end(), [&](const auto& each) { return each.equal(all[0]); });
}

bool is_different_everywhere(const ProcessGroup& group, const at::Tensor& tensor) {
  const auto all = gathered(group, tensor);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (all[i].equal(all[j])) return false;
    }
  }
  return true;
}

at::Tensor random_state() { return at::globalContext().defaultGenerator(at::kCPU).get_state(); }

TEST(ParallelizeDropout, IsTheSameWhereActivationsAre) {
  in_processes(4, [](const ProcessGroup& group) {
    for (const bool sequence_parallel : {false, true}) {
      auto options = DecoderOptions(12, block_options(0.3), 2).dropout(0.3);
      options.stack().checkpointing(true);
      torch::manual_seed(moved(7));
      Decoder model(options);
      parallelize(*model, group, ParallelizeOptions().sequence_parallel(sequence_parallel));
      const auto before = random_state();
      const auto x = model->stack->forward(torch::randn({2, 8, 16}));
      EXPECT_TRUE(is_equal_everywhere(group, x));
      weighed(x).backward();
      EXPECT_TRUE(is_equal_everywhere(group, random_state()));
      EXPECT_FALSE(random_state().equal(before));
      const auto& block = *model->stack->blocks->ptr<TransformerBlockImpl>(0);
      EXPECT_TRUE(is_equal_everywhere(group, block.attention_norm->weight.grad()));
      EXPECT_TRUE(is_equal_everywhere(group, block.feed_forward->fc_out->bias.grad()));
    }
  });
}

TEST(ParallelizeDropout, DiffersWhereActivationsDo) {
  in_processes(4, [](const ProcessGroup& group) {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(moved(7));
    MultiHeadAttention attention(16, 4, /*dropout=*/0.5);
    FeedForward layer(FeedForwardOptions(16).dropout(0.5));
    parallelize(*attention, group);
    parallelize(*layer, group);
    // Equal weights in all processes leave the dropout to differ.
    for (auto& parameter : attention->parameters()) parameter.zero_();
    for (auto& parameter : layer->parameters()) parameter.fill_(1.0);
    const auto x = torch::ones({2, 8, 16});
    const auto weights = std::get<1>(attention->forward_with_weights(x));
    EXPECT_TRUE(is_different_everywhere(group, weights));
    EXPECT_FALSE(weights.equal(std::get<1>(attention->forward_with_weights(x))));
    {
      const at::AutoGradMode with_grad(true);
      layer->forward(x).sum().backward();
    }
    EXPECT_TRUE(is_different_everywhere(group, layer->fc_out->weight.grad()));
    layer->eval();
    attention->eval();
    EXPECT_TRUE(is_equal_everywhere(group, layer->forward(x)));
    EXPECT_TRUE(is_equal_everywhere(group, std::get<1>(attention->forward_with_weights(x))));
  });
}

TEST(ParallelizeDropout, DiffersBetweenPartsOfASequence) {
  in_processes(4, [](const ProcessGroup& group) {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(moved(7));
    auto options = block_options();
    TransformerBlock block(options.dropout(0.5));
    parallelize(*block, group, ParallelizeOptions().sequence_parallel(true));
    const auto y = block->forward(torch::ones({2, 4, 16}));
    EXPECT_TRUE(is_different_everywhere(group, y));
  });
}

TEST(ParallelizeDropout, IsReplayedByCheckpointing) {
  in_processes(2, [](const ProcessGroup& group) {
    std::vector<at::Tensor> gradients[2];
    for (const bool checkpointing : {false, true}) {
      torch::manual_seed(moved(7));
      Encoder encoder(EncoderOptions(block_options(0.3), 2).checkpointing(checkpointing));
      encoder->to(torch::kDouble);
      parallelize(*encoder, group);
      weighed(encoder->forward(random_input({2, 8, 16}))).backward();
      for (const auto& parameter : encoder->parameters()) {
        gradients[checkpointing].push_back(parameter.grad());
      }
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      expect_close(gradients[1][i], gradients[0][i], "gradient");
    }
  });
}

/// The backward pass recomputes blocks as they were in the forward pass: with whole sequences.
TEST(Parallelize, RemembersThatASequenceWasWhole) {
  in_processes(2, [](const ProcessGroup& group) {
    auto options = EncoderOptions(block_options(), 2).checkpointing(true);
    WholeAndParts<Encoder> pair([&] { return Encoder(options); }, group,
                                ParallelizeOptions().sequence_parallel(true));
    const auto x = random_input({2, 5, 16});
    const auto parts_loss = [&] {
      const WholeSequence whole;
      return weighed(pair.parts->forward(x));
    };
    // Norms and biases that see whole sequences are not summed.
    pair.expect_same_training([&] { return weighed(pair.whole->forward(x)); }, parts_loss);
  });
}

/// The error of `run` in this process.
/// The text of parallelize's error; the module must stay as it is.
std::string refusal(torch::nn::Module& module, const ProcessGroup& group,
                    const ParallelizeOptions& options = {}) {
  std::vector<at::Tensor> before;
  for (const auto& parameter : module.parameters()) before.push_back(parameter.detach().clone());
  const auto text = c10::str(module);
  const auto error = value_error([&] { parallelize(module, group, options); });
  EXPECT_EQ(c10::str(module), text);
  EXPECT_TRUE(are_equal(module.parameters(), before));
  return error;
}

/// A module whose `part` cannot be split, after one that can.
template <typename Module>
torch::nn::Sequential behind(Module part) {
  torch::nn::Sequential all;
  all->push_back("first", FeedForward(FeedForwardOptions(16)));
  all->push_back("part", std::move(part));
  return all;
}

TEST(ParallelizeErrors, NameWhatCannotBeSplit) {
  in_processes(4, [](const ProcessGroup& group) {
    torch::manual_seed(moved(7));
    EXPECT_EQ(refusal(*behind(MultiHeadAttention(12, 6)), group),
              "parallelize: part: head_nums (6) must be a multiple of the number of processes (4)");
    EXPECT_EQ(
        refusal(*GroupQueryAttention(24, 12, 6), group),
        "parallelize: group_num (6) must be a multiple or a divisor of the number of processes "
        "(4)");
    EXPECT_EQ(
        refusal(*behind(FeedForward(FeedForwardOptions(16).hidden_dim(6))), group),
        "parallelize: part: hidden_dim (6) must be a multiple of the number of processes (4)");
    EXPECT_EQ(refusal(*Decoder(DecoderOptions(10, block_options(), 1)), group),
              "parallelize: vocab_size (10) must be a multiple of the number of processes (4)");
    EXPECT_EQ(refusal(*behind(SelfAttention(16, 4)), group),
              "parallelize: part: module must not be or contain SelfAttention");
    EXPECT_EQ(refusal(*behind(Attention(16)), group),
              "parallelize: part: module must not be or contain Attention");
    EXPECT_EQ(refusal(*behind(AttentionV1(16)), group),
              "parallelize: part: module must not be or contain AttentionV1");
    EXPECT_EQ(refusal(*behind(DifferentialAttention(DifferentialAttentionOptions(16, 4))), group),
              "parallelize: part: module must not be or contain DifferentialAttention");
    EXPECT_EQ(refusal(*ResidualAttention(MultiHeadAttentionOptions(16, 4)), group,
                      ParallelizeOptions().sequence_parallel(true)),
              "parallelize: module must not be or contain ResidualAttention with "
              "sequence_parallel");
    const auto in_sequence = ParallelizeOptions().sequence_parallel(true);
    EXPECT_EQ(refusal(*MixtureOfExperts(MixtureOfExpertsOptions(16, 4, 2)), group, in_sequence),
              "parallelize: module must not be or contain MixtureOfExperts with sequence_parallel");
    auto own = block_options();
    own.feed_forward([] { return torch::nn::AnyModule(torch::nn::Linear(16, 16)); });
    EXPECT_EQ(refusal(*TransformerBlock(own), group, in_sequence),
              "parallelize: feed_forward must not be a layer of your own with sequence_parallel");
    own = block_options();
    own.norm([] { return torch::nn::AnyModule(Norm(NormOptions(16))); });
    EXPECT_EQ(refusal(*TransformerBlock(own), group, in_sequence),
              "parallelize: norm must not be a layer of your own with sequence_parallel");
    own = block_options().cross_attention(true).memory_norm(true);
    EXPECT_EQ(refusal(*TransformerBlock(own), group, in_sequence),
              "parallelize: memory_norm must be false with sequence_parallel");
    EXPECT_ERROR("parallelize: group must not be null",
                 parallelize(*MultiHeadAttention(16, 4), nullptr));
  });
}

TEST(ParallelizeErrors, NameParametersOfTwoLayers) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(7));
    torch::nn::Sequential all(FeedForward(FeedForwardOptions(16)),
                              FeedForward(FeedForwardOptions(16)));
    all->ptr<FeedForwardImpl>(1)->fc_in->weight = all->ptr<FeedForwardImpl>(0)->fc_in->weight;
    auto& second = *all->ptr<FeedForwardImpl>(1);
    second.fc_in = second.replace_module(
        "fc_in", std::make_shared<torch::nn::LinearImpl>(*all->ptr<FeedForwardImpl>(0)->fc_in));
    EXPECT_EQ(refusal(*all, group),
              "parallelize: 1: parameters must not be those of another layer too");
  });
}

TEST(ParallelizeErrors, NameTheRankThatDiffers) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto rank = group->getRank();
    torch::manual_seed(moved(7));
    EXPECT_EQ(refusal(*FeedForward(FeedForwardOptions(16).dropout(0.5 * rank)), group),
              "parallelize: module of rank 1 (heed::FeedForward(emb_dim=16, hidden_dim=64, "
              "activation=gelu, dropout=0.5)) must equal that of rank 0 "
              "(heed::FeedForward(emb_dim=16, hidden_dim=64, activation=gelu, dropout=0))");
    torch::manual_seed(moved(7));
    auto layer = behind(FeedForward(FeedForwardOptions(16).bias(rank == 0)));
    EXPECT_EQ(refusal(*layer, group),
              "parallelize: module of rank 1 (part heed::FeedForward(emb_dim=16, hidden_dim=64, "
              "activation=gelu, dropout=0, bias=false)) must equal that of rank 0 (part "
              "heed::FeedForward(emb_dim=16, hidden_dim=64, activation=gelu, dropout=0))");
    torch::manual_seed(rank);
    const auto error = refusal(*FeedForward(FeedForwardOptions(16)), group);
    EXPECT_EQ(error.find("parallelize: module of rank 1 (fc_in.weight [64, 16] Float cpu "), 0U)
        << error;
    torch::manual_seed(moved(7));
    EXPECT_EQ(refusal(*FeedForward(FeedForwardOptions(16)), group,
                      ParallelizeOptions().sequence_parallel(rank == 1)),
              "parallelize: module of rank 1 (sequence_parallel=true) must equal that of rank 0 "
              "(sequence_parallel=false)");
    torch::manual_seed(moved(7));
    FeedForward other(FeedForwardOptions(16));
    torch::manual_seed(rank);
    const auto state = refusal(*other, group);
    EXPECT_EQ(state.find("parallelize: state of torch::manual_seed's generator of rank 1 ("), 0U)
        << state;
    other->eval();
    parallelize(*other, group);
  });
}

TEST(ParallelizeErrors, RefuseASplitModule) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(7));
    Decoder model(DecoderOptions(12, block_options(), 1));
    parallelize(*model, group);
    EXPECT_ERROR("parallelize: module must not be split already", parallelize(*model, group));
    const std::string sharded =
        "clone: module must not be sharded: clone the whole module before parallelize";
    EXPECT_ERROR(sharded, model->clone());
    EXPECT_ERROR(sharded, model->stack->clone());
    EXPECT_ERROR(sharded, model->token_embedding->clone());
    EXPECT_ERROR("Decoder: tokens (3 to 12) must be at least 0 and below vocab_size (12)",
                 model->forward(torch::tensor({{3, 12}})));
  });
}

TEST(ParallelizeErrors, RefuseLengthsThatCannotBeSplit) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(7));
    Decoder model(DecoderOptions(12, block_options(), 1));
    parallelize(*model, group, ParallelizeOptions().sequence_parallel(true));
    EXPECT_ERROR("sequence_parallel: L (5) must be a multiple of the number of processes (2)",
                 model->forward(torch::ones({1, 5}, torch::kLong)));
    auto& block = *model->stack->blocks->ptr<TransformerBlockImpl>(0);
    const auto nested = at::_nested_tensor_from_tensor_list({torch::randn({2, 16})});
    EXPECT_ERROR(
        "GroupQueryAttention: query must not be nested where the sequence is split among processes",
        block.attention->forward(nested));
  });
}

TEST(ParallelLinearErrors, NameTheSize) {
  in_processes(2, [](const ProcessGroup& group) {
    using namespace distributed;
    EXPECT_ERROR(
        "ColumnParallelLinear: out_features (5) must be a multiple of the number of processes (2)",
        ColumnParallelLinear(ColumnParallelLinearOptions(4, 5), group));
    EXPECT_ERROR(
        "RowParallelLinear: in_features (5) must be a multiple of the number of processes (2)",
        RowParallelLinear(RowParallelLinearOptions(5, 4), group));
    EXPECT_ERROR("RowParallelLinear: out_features (0) must be at least 1",
                 RowParallelLinear(RowParallelLinearOptions(4, 0), group));
    EXPECT_ERROR("RowParallelLinear: group must not be null",
                 RowParallelLinear(RowParallelLinearOptions(4, 4), nullptr));
  });
}

/// One process is a group too; a module of other layers stays as it is.
TEST(Parallelize, LeavesWholeWhatNeedsNoSplit) {
  in_processes(1, [](const ProcessGroup& group) {
    Decoder model(DecoderOptions(5, block_options(), 1));
    parallelize(*model, group);
    EXPECT_EQ(model->forward(torch::tensor({{1, 2}})).size(2), 5);
  });
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(7));
    torch::nn::Sequential other(torch::nn::Linear(3, 3));
    parallelize(*other, group);
    EXPECT_EQ(other->parameters()[0].size(0), 3);
  });
}

}  // namespace
}  // namespace heed::test::of_parallelize
