// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/relative_position_bias.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <sstream>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test {
namespace {

using Options = RelativePositionBiasOptions;

RelativePositionBias drawn(const Options& options) {
  RelativePositionBias bias(options);
  bias->to(at::kDouble);
  const at::NoGradGuard no_grad;
  bias->weight.uniform_(-1, 1);
  return bias;
}

/// T5's bucket of a distance, key minus query, as its paper's code has it.
int64_t bucket_of(int64_t distance, int64_t buckets, int64_t most, bool bidirectional) {
  int64_t bucket = 0;
  if (bidirectional) {
    buckets /= 2;
    if (distance > 0) bucket = buckets;
    distance = std::abs(distance);
  } else {
    distance = distance < 0 ? -distance : 0;
  }
  const auto exact = buckets / 2;
  if (distance < exact) return bucket + distance;
  const float growth =
      std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
      static_cast<float>(std::log(static_cast<double>(most) / static_cast<double>(exact)));
  const auto coarse = exact + static_cast<int64_t>(growth * static_cast<float>(buckets - exact));
  return bucket + std::min(coarse, buckets - 1);
}

TEST(RelativePositionBias, HasT5sBuckets) {
  torch::manual_seed(moved(0));
  for (const bool bidirectional : {true, false}) {
    for (const auto& [buckets, most] :
         std::vector<std::pair<int64_t, int64_t>>{{32, 128}, {8, 20}, {4, 3}, {64, 1000}}) {
      auto bias =
          drawn(Options(3).buckets(buckets).max_distance(most).bidirectional(bidirectional));
      for (const auto& [L, S] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 1}, {7, 7}, {3, 300}, {9, 4}, {0, 5}, {200, 200}}) {
        const auto found = bias(L, S);
        ASSERT_EQ(found.sizes(), at::IntArrayRef({1, 3, L, S}));
        for (int64_t i = 0; i < L; ++i) {
          for (int64_t j = 0; j < S; ++j) {
            const auto bucket = bucket_of(j - (i + S - L), buckets, most, bidirectional);
            ASSERT_TRUE(found[0].select(1, i).select(1, j).equal(bias->weight[bucket]))
                << "distance " << j - (i + S - L) << " of " << buckets << " buckets";
          }
        }
      }
    }
  }
}

/// Entry of Swin's table: rows and columns between query and key.
TEST(RelativePositionBias, HasSwinsAndBeitsTables) {
  torch::manual_seed(moved(0));
  const int64_t height = 3, width = 4, tokens = height * width;
  for (const bool class_token : {false, true}) {
    auto bias = drawn(Options(2).image_window({height, width}).class_token(class_token));
    const auto distances = (2 * height - 1) * (2 * width - 1);
    const auto first = class_token ? 1 : 0;
    ASSERT_EQ(bias->weight.size(0), distances + 3 * first);
    const auto found = bias(tokens + first, tokens + first)[0];
    const auto at = [&](int64_t i, int64_t j) { return found.select(1, i).select(1, j); };
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t j = 0; j < tokens; ++j) {
        const auto rows = i / width - j / width + height - 1;
        const auto columns = i % width - j % width + width - 1;
        const auto& expected = bias->weight[rows * (2 * width - 1) + columns];
        EXPECT_TRUE(at(i + first, j + first).equal(expected));
      }
      if (!class_token) continue;
      EXPECT_TRUE(at(0, i + 1).equal(bias->weight[distances]));
      EXPECT_TRUE(at(i + 1, 0).equal(bias->weight[distances + 1]));
    }
    if (class_token) {
      EXPECT_TRUE(at(0, 0).equal(bias->weight[distances + 2]));
    }
  }
}

/// The output and the gradients of query and weight.
std::vector<at::Tensor> results_of(const RelativePositionBias& bias, const Inputs& inputs,
                                   AttendOptions options, bool by_distance) {
  if (by_distance) {
    const auto [table, positions] = bias->relative();
    options.relative_bias(table).relative_positions(positions);
  } else {
    options.bias(bias->forward(inputs.query.size(2), inputs.key.size(2)));
  }
  const auto query = inputs.query.detach().requires_grad_();
  const auto output = attend(query, inputs.key, inputs.value, options);
  const auto gradients = torch::autograd::grad({output.sin().sum()}, {query, bias->weight});
  return {output.detach(), gradients[0], gradients[1]};
}

TEST(RelativePositionBias, IsOneBiasByDistanceAndByElement) {
  torch::manual_seed(moved(0));
  struct Case {
    Options options;
    int64_t L, S;
    bool causal;
  };
  for (const auto& [options, L, S, causal] :
       std::vector<Case>{{Options(4), 40, 40, false},
                         {Options(4).bidirectional(false), 300, 300, true},
                         {Options(4).buckets(8).max_distance(10), 5, 70, false},
                         {Options(4).image_window({5, 7}), 35, 35, false},
                         {Options(4).image_window({1, 1}), 1, 1, false}}) {
    const auto bias = drawn(options);
    const auto inputs = make_inputs({3, 4, 2, L, S, 8, 8}, at::kDouble);
    const auto attending = AttendOptions().causal(causal);
    const auto expected = results_of(bias, inputs, attending, false);
    const auto found = results_of(bias, inputs, attending, true);
    for (size_t i = 0; i < found.size(); ++i) {
      const auto largest = expected[i].abs().max().item<double>();
      EXPECT_TRUE(is_close(found[i], expected[i], 1e-12 * largest)) << "result " << i;
    }
  }
}

TEST(RelativePositionBias, PrintsItsOptions) {
  const auto text = [](const Options& options) {
    std::ostringstream stream;
    stream << *RelativePositionBias(options);
    return stream.str();
  };
  EXPECT_EQ(text(Options(4)),
            "heed::RelativePositionBias(head_num=4, buckets=32, max_distance=128)");
  EXPECT_EQ(text(Options(4).bidirectional(false)),
            "heed::RelativePositionBias(head_num=4, buckets=32, max_distance=128, "
            "bidirectional=false)");
  EXPECT_EQ(text(Options(2).image_window({7, 8}).class_token(true)),
            "heed::RelativePositionBias(head_num=2, image_window=[7, 8], class_token=true)");
}

TEST(RelativePositionBias, NamesWhatIsWrong) {
  const std::string name = "RelativePositionBias: ";
  EXPECT_ERROR(name + "head_num (0) must be at least 1", RelativePositionBias(0));
  EXPECT_ERROR(name + "image_window (1 numbers) must be its height and width",
               RelativePositionBias(Options(4).image_window({7})));
  EXPECT_ERROR(name + "image_window[1] (0) must be at least 1",
               RelativePositionBias(Options(4).image_window({7, 0})));
  EXPECT_ERROR(name + "class_token needs image_window",
               RelativePositionBias(Options(4).class_token(true)));
  EXPECT_ERROR(name + "buckets (7) must be at least 4 and even",
               RelativePositionBias(Options(4).buckets(7)));
  EXPECT_ERROR(name + "buckets (1) must be at least 2",
               RelativePositionBias(Options(4).buckets(1).bidirectional(false)));
  EXPECT_ERROR(name +
                   "max_distance (8) must be above the number of distances that have a bucket "
                   "each (8)",
               RelativePositionBias(Options(4).max_distance(8)));
  EXPECT_ERROR(name + "key_length (-1) must be at least 0", RelativePositionBias(4)(2, -1));
  RelativePositionBias image(Options(4).image_window({2, 3}).class_token(true));
  EXPECT_ERROR(name + "query_length (6) and key_length (7) must be the tokens of the window (7)",
               image(6, 7));
  EXPECT_ERROR(name +
                   "relative must be called without class_token, which has no distance; call "
                   "forward(L, S) and pass its result as bias",
               image->relative());
}

}  // namespace
}  // namespace heed::test
