// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/attention.h>
#include <heed/distributed/context_parallel.h>
#include <heed/multi_head_attention.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <utility>

#include "distributed/processes.h"
#include "support/expect.h"

namespace heed::test::of_context {
namespace {

using distributed::ring_attend;
using distributed::shard_sequence;
using distributed::ulysses_attend;
using distributed::unshard_sequence;

TEST(ContextParallelErrors, NameWhatIsWrong) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto x = at::zeros({2, 4, 6, 8});
    EXPECT_ERROR(
        "shard_sequence: dim 2 (6) must be a multiple of 4, two chunks for each of 2 processes; "
        "tensor [2, 4, 6, 8]",
        shard_sequence(x, 2, group));
    EXPECT_ERROR("shard_sequence: dim (4) must be from -4 to 3; tensor [2, 4, 6, 8]",
                 shard_sequence(x, 4, group));
    EXPECT_ERROR(
        "unshard_sequence: dim 2 (3) must be even, as shard_sequence makes it; tensor [2, 4, 3, 8]",
        unshard_sequence(x.narrow(2, 0, 3), 2, group));
    EXPECT_ERROR("ring_attend: group must not be null", ring_attend(x, x, x, {}));
    const auto by_rule = make_block_mask(
        1, 1, 6, 6, [](int64_t /*b*/, int64_t /*h*/, int64_t i, int64_t j) { return j <= i; });
    EXPECT_ERROR("ring_attend: block_mask must be absent: pass its mask() as mask",
                 ring_attend(x, x, x, group, AttendOptions().block_mask(by_rule)));
    EXPECT_ERROR(
        "ring_attend: query dim 2 (5) must be even, as shard_sequence makes it; query [2, 4, 5, 8]",
        ring_attend(x.narrow(2, 0, 5), x, x, group));
    EXPECT_ERROR(
        "ring_attend: mask dim 1 (6) must equal S (12), the keys of all processes; mask [6, 6], "
        "key [2, 4, 6, 8]",
        ring_attend(x, x, x, group, AttendOptions().mask(at::ones({6, 6}, at::kBool))));
    EXPECT_ERROR(
        "ulysses_attend: query dim 1 (3) must be a multiple of the number of processes (2); query "
        "[2, 3, 6, 8]",
        ulysses_attend(x.narrow(1, 0, 3), x.narrow(1, 0, 3), x.narrow(1, 0, 3), group));
  });
}

TEST(ContextParallelErrors, NameOptionsThatCannotShareASequence) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto x = at::zeros({2, 4, 6, 8});
    const auto lengths = at::ones({2}, at::kLong);
    const std::pair<std::string, AttendOptions> refused[] = {
        {"global_tokens must be absent",
         AttendOptions().left_window(1).global_tokens(at::ones({6}, at::kBool))},
        {"query_lengths must be absent", AttendOptions().query_lengths(lengths)},
        {"key_lengths must be absent", AttendOptions().key_lengths(lengths)},
        {"relative_positions must be absent",
         AttendOptions().relative_bias(at::zeros({4, 3})).relative_positions(at::arange(6))},
        {"mask_batch must be each", AttendOptions().mask_batch(MaskBatch::cycled)}};
    for (const auto& [what, options] : refused) {
      const auto expected = "_attend: " + what + ": processes share the sequence";
      EXPECT_ERROR("ring" + expected, ring_attend(x, x, x, group, options));
      EXPECT_ERROR("ulysses" + expected, ulysses_attend(x, x, x, group, options));
    }
  });
}

TEST(ContextParallelErrors, NameWhatCannotShareASequence) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::nn::Linear linear(2, 2);
    EXPECT_ERROR("share_sequence: module must contain a MultiHeadAttention or GroupQueryAttention",
                 distributed::share_sequence(*linear, group));
    torch::nn::ModuleList attentions(MultiHeadAttention(8, 2), AttentionV1(8));
    EXPECT_ERROR("share_sequence: 1: module must not be or contain AttentionV1",
                 distributed::share_sequence(*attentions, group));
    MultiHeadAttention attention(8, 2);
    distributed::share_sequence(*attention, group);
    const auto x = at::zeros({1, 4, 8});
    EXPECT_ERROR(
        "MultiHeadAttention: forward_with_weights must not be used while processes share the "
        "sequence",
        attention->forward_with_weights(x));
    EXPECT_ERROR(
        "MultiHeadAttention: mask dim 1 (4) must equal S (8); mask [4, 4], query [1, 4, 8], key "
        "[1, 4, 8]",
        attention->forward(x, at::ones({4, 4}, at::kBool)));
    auto cache = attention->make_cache(1, 8);
    EXPECT_ERROR("MultiHeadAttention: a cache must not be used while processes share the sequence",
                 attention->forward_cached(x, cache));
  });
}

TEST(ContextParallelErrors, NameTheProcessThatDiffers) {
  in_processes(3, [](const ProcessGroup& group) {
    const bool odd = group->getRank() == 1;
    const auto x = at::zeros({2, 4, 6, 8}), longer = at::zeros({2, 4, 8, 8});
    EXPECT_ERROR(
        "ring_attend: call of rank 1 (key [2, 4, 8, 8] Float) must equal that of rank 0 (key [2, "
        "4, 6, 8] Float)",
        ring_attend(x, odd ? longer : x, odd ? longer : x, group));
    EXPECT_ERROR("ring_attend: call of rank 1 (scale 2) must equal that of rank 0 (scale 1)",
                 ring_attend(x, x, x, group, AttendOptions().causal(true).scale(odd ? 2.0 : 1.0)));
    EXPECT_ERROR(
        "ring_attend: call of rank 1 (right_window none) must equal that of rank 0 (right_window "
        "0)",
        ring_attend(x, x, x, group, odd ? AttendOptions() : AttendOptions().right_window(0)));
    const auto bias = at::zeros({4, 3});
    EXPECT_ERROR(
        "ring_attend: call of rank 1 (relative_bias [4, 3] Float requires grad) must equal that of "
        "rank 0 (relative_bias [4, 3] Float)",
        ring_attend(x, x, x, group,
                    AttendOptions().relative_bias(odd ? bias.clone().requires_grad_() : bias)));
  });
}

}  // namespace
}  // namespace heed::test::of_context
