// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <heed/autocast.h>
#include <heed/decoder.h>
#include <heed/fused_adamw.h>
#include <heed/grad_scaler.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test::of_grad_scaler {
namespace {

using torch::optim::SGD;

constexpr auto kInfinity = std::numeric_limits<float>::infinity();

/// One parameter, in float32, whose gradient is what its loss is multiplied by.
struct Training {
  explicit Training(at::Device device = at::kCPU)
      : weight(at::zeros({3}, device).requires_grad_()), optimizer({weight}, 0.1) {}

  void backward(GradScaler& scaler, double gradient) {
    optimizer.zero_grad();
    scaler.scale((weight * gradient).sum()).backward();
  }

  /// An iteration. Returns whether the optimizer made its step.
  bool run(GradScaler& scaler, double gradient) {
    backward(scaler, gradient);
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  }

  at::Tensor weight;
  SGD optimizer;
};

TEST(GradScaler, SkipsAStepThatOverflowsAndHalves) {
  for (const auto device : devices()) {
    Training training(device);
    GradScaler scaler;
    EXPECT_EQ(scaler.scale(), 65536.0);
    EXPECT_TRUE(training.run(scaler, 2.0));
    EXPECT_TRUE(training.weight.eq(-0.2F).all().item<bool>()) << training.weight;
    EXPECT_EQ(scaler.scale(), 65536.0);
    for (const double gradient : {static_cast<double>(kInfinity), std::nan(""), 1e35}) {
      const auto before = scaler.scale();
      EXPECT_FALSE(training.run(scaler, gradient)) << gradient;
      EXPECT_EQ(scaler.scale(), before / 2) << gradient;
      EXPECT_TRUE(training.weight.eq(-0.2F).all().item<bool>()) << training.weight;
    }
    EXPECT_TRUE(training.run(scaler, 1.0)) << device;
  }
}

TEST(GradScaler, GrowsAfterAnInterval) {
  for (const auto device : devices()) {
    Training training(device);
    GradScaler scaler(
        GradScalerOptions().init_scale(8.0).growth_factor(4.0).backoff_factor(0.25).growth_interval(
            3));
    // An overflow ends a run of steps without one.
    const std::vector<std::pair<double, double>> iterations = {
        {1.0, 8.0}, {1.0, 8.0}, {kInfinity, 2.0}, {1.0, 2.0}, {1.0, 2.0},
        {1.0, 8.0}, {1.0, 8.0}, {1.0, 8.0},       {1.0, 32.0}};
    for (size_t i = 0; i < iterations.size(); ++i) {
      const auto [gradient, scale] = iterations[i];
      training.run(scaler, gradient);
      EXPECT_EQ(scaler.scale(), scale) << "iteration " << i << " on " << device;
    }
  }
}

TEST(GradScaler, DoesNotGrowBeyondFloat32) {
  Training training;
  GradScaler scaler(GradScalerOptions().init_scale(0x1p127).growth_interval(1));
  EXPECT_TRUE(training.run(scaler, 1e-10));
  EXPECT_EQ(scaler.scale(), 0x1p127);
}

TEST(GradScaler, LetsGradientsBeClipped) {
  for (const auto device : devices()) {
    Training training(device);
    GradScaler scaler;
    training.backward(scaler, 2.0);
    EXPECT_TRUE(training.weight.grad().eq(2.0 * 65536.0).all().item<bool>());
    scaler.unscale_(training.optimizer);
    EXPECT_TRUE(training.weight.grad().eq(2.0).all().item<bool>());
    torch::nn::utils::clip_grad_norm_({training.weight}, std::sqrt(3.0));
    EXPECT_TRUE(scaler.step(training.optimizer));
    EXPECT_TRUE(is_close(training.weight, at::full({3}, -0.1), 1e-6)) << device;
    scaler.update();
    training.backward(scaler, kInfinity);
    scaler.unscale_(training.optimizer);
    EXPECT_FALSE(scaler.step(training.optimizer)) << device;
  }
}

TEST(GradScaler, UnscalesAGradientThatStandsTwiceOnce) {
  const auto options = at::requires_grad();
  const auto weight = at::zeros({3}, options), other = at::zeros({3}, options);
  const auto sparse = at::zeros({3}, options);
  SGD optimizer(std::vector<torch::optim::OptimizerParamGroup>{{{weight, other, weight, sparse}},
                                                               {{sparse, weight}}},
                0.1);
  GradScaler scaler;
  scaler.scale(at::ones({}));
  weight.mutable_grad() = at::full({3}, 65536.0);
  other.mutable_grad() = weight.grad();  // of another parameter, the same tensor
  sparse.mutable_grad() = at::full({3}, 2.0 * 65536.0).to_sparse();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(weight.grad().eq(1.0).all().item<bool>()) << weight.grad();
  EXPECT_TRUE(sparse.grad().to_dense().eq(2.0).all().item<bool>()) << sparse.grad();
}

/// float32 and float64, dense and sparse, on all devices, and none.
TEST(GradScaler, TakesParametersOfSeveralKinds) {
  for (const auto device : devices()) {
    for (size_t overflow = 0; overflow < 4; ++overflow) {
      std::vector<at::Tensor> parameters;
      for (const auto& [where, dtype] : {std::pair(device, at::kFloat),
                                         {device, at::kDouble},
                                         {at::Device(at::kCPU), at::kBFloat16},
                                         {at::Device(at::kCPU), at::kFloat}}) {
        parameters.push_back(at::zeros({4}, at::device(where).dtype(dtype)).requires_grad_());
      }
      parameters.push_back(at::zeros({4}).requires_grad_());
      SGD optimizer(parameters, 1.0);
      GradScaler scaler;
      scaler.scale(at::ones({}, device));
      const auto gradient = [&](size_t i) {
        return at::full({4}, i == overflow ? kInfinity : 65536.0F, parameters[i].options())
            .detach();
      };
      for (size_t i = 0; i < 3; ++i) parameters[i].mutable_grad() = gradient(i);
      parameters[3].mutable_grad() = gradient(3).to_sparse();
      scaler.unscale_(optimizer);
      for (size_t i = 0; i < 4; ++i) {
        const auto expected = i == overflow ? kInfinity : 1.0F;
        EXPECT_TRUE(parameters[i].grad().to_dense().eq(expected).all().item<bool>()) << i;
      }
      EXPECT_FALSE(scaler.step(optimizer)) << overflow << " on " << device;
      scaler.update();
      EXPECT_EQ(scaler.scale(), 32768.0);
    }
  }
}

TEST(GradScaler, SkipsTheStepOfOneOptimizerOfTwo) {
  std::array<Training, 2> trainings;
  for (size_t overflowing = 0; overflowing < trainings.size(); ++overflowing) {
    GradScaler scaler;
    for (size_t i = 0; i < trainings.size(); ++i) {
      trainings[i].backward(scaler, i == overflowing ? kInfinity : 1.0);
      EXPECT_EQ(scaler.step(trainings[i].optimizer), i != overflowing);
    }
    scaler.update();
    EXPECT_EQ(scaler.scale(), 32768.0);
  }
}

TEST(GradScaler, GoesOnFromASavedState) {
  for (const auto device : devices()) {
    const auto options = GradScalerOptions().init_scale(16.0).growth_interval(3);
    Training training(device);
    GradScaler scaler(options);
    for (const double gradient : {1.0, static_cast<double>(kInfinity), 1.0, 1.0}) {
      training.run(scaler, gradient);
    }
    std::stringstream file;
    torch::save(scaler, file);
    GradScaler loaded;
    torch::load(loaded, file);
    EXPECT_EQ(loaded.scale(), 8.0);
    EXPECT_EQ(loaded.options().growth_interval(), 3);
    training.run(loaded, 1.0);
    EXPECT_EQ(loaded.scale(), 16.0) << "the third step since the overflow";
    // Before the first loss, and after one on another device.
    std::stringstream fresh;
    torch::save(GradScaler(GradScalerOptions().init_scale(4.0)), fresh);
    torch::load(loaded, fresh);
    EXPECT_EQ(loaded.scale(), 4.0);
    training.run(loaded, kInfinity);
    EXPECT_EQ(loaded.scale(), 2.0);
  }
}

TEST(GradScaler, DoesNothingWhereItIsNotEnabled) {
  Training training;
  GradScaler scaler(GradScalerOptions().enabled(false));
  const auto loss = at::ones({});
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  EXPECT_EQ(scaler.scale(), 1.0);
  EXPECT_TRUE(training.run(scaler, 2.0));
  scaler.unscale_(training.optimizer);
  EXPECT_TRUE(training.weight.eq(-0.2F).all().item<bool>());
  std::stringstream file;
  torch::save(scaler, file);
  torch::load(scaler, file);
  file.seekg(0);
  GradScaler enabled;
  EXPECT_ERROR("GradScaler::load: archive must hold scale of a GradScaler that is enabled",
               torch::load(enabled, file));
}

TEST(GradScaler, RefusesTheWrongOrder) {
  Training training, other;
  auto& optimizer = training.optimizer;
  GradScaler scaler;
  EXPECT_ERROR("GradScaler::unscale_: a loss must be scaled before", scaler.unscale_(optimizer));
  EXPECT_ERROR("GradScaler::step: a loss must be scaled before", scaler.step(optimizer));
  EXPECT_ERROR("GradScaler::update: no gradients have been unscaled since the last update",
               scaler.update());
  training.backward(scaler, 1.0);
  EXPECT_ERROR("GradScaler::update: no gradients have been unscaled since the last update",
               scaler.update());
  EXPECT_ERROR("GradScaler::step: no parameter of the optimizer has a gradient",
               scaler.step(other.optimizer));
  EXPECT_ERROR("GradScaler::update: no gradients have been unscaled since the last update",
               scaler.update());
  scaler.unscale_(optimizer);
  EXPECT_ERROR("GradScaler::unscale_: it has been called for this optimizer since the last update",
               scaler.unscale_(optimizer));
  EXPECT_TRUE(training.weight.grad().eq(1.0).all().item<bool>());
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_ERROR("GradScaler::step: step has been called for this optimizer since the last update",
               scaler.step(optimizer));
  EXPECT_ERROR(
      "GradScaler::unscale_: step has been called for this optimizer since the last update",
      scaler.unscale_(optimizer));
  EXPECT_TRUE(training.weight.eq(-0.1F).all().item<bool>()) << training.weight;
  scaler.update();
  EXPECT_TRUE(training.run(scaler, 1.0));
}

TEST(GradScaler, RefusesWhatItCannotUnscale) {
  GradScaler scaler;
  EXPECT_ERROR("GradScaler::scale: loss must be defined", scaler.scale(at::Tensor()));
  EXPECT_ERROR("GradScaler::scale: loss dtype (Long) must be floating",
               scaler.scale(at::ones({}, at::kLong)));
  Training training;
  training.backward(scaler, 1.0);
  auto half = at::zeros({2}, at::kHalf).requires_grad_();
  half.mutable_grad() = at::ones({2}, at::kHalf);
  SGD optimizer({training.weight, half}, 0.1);
  EXPECT_ERROR(
      "GradScaler::unscale_: gradient dtype (Half) of parameter 1 of group 0 must not be Half: "
      "keep parameters in Float and use Autocast",
      scaler.step(optimizer));
  EXPECT_TRUE(training.weight.grad().eq(65536.0).all().item<bool>()) << "is as it was";
  torch::optim::LBFGS lbfgs({training.weight}, 0.1);
  EXPECT_ERROR("GradScaler::step: optimizer (LBFGS) must not compute gradients in its step",
               scaler.step(lbfgs));
}

/// The gradients before the wrong one are as they were, although their kind is unscaled first.
TEST(GradScaler, RefusesGradientsThatAreNotFloating) {
  GradScaler scaler;
  Training training;
  training.backward(scaler, 1.0);
  const auto refusal = [&](const at::Tensor& gradient) {
    auto other = at::zeros({2}).requires_grad_();
    other.mutable_grad() = gradient;
    SGD optimizer({training.weight, other}, 0.1);
    FusedAdamW fused({training.weight, other}, 0.1);
    auto error = value_error([&] { scaler.unscale_(optimizer); });
    EXPECT_EQ(value_error([&] { scaler.step(optimizer); }), error);
    EXPECT_EQ(value_error([&] { scaler.step(fused); }), error);
    EXPECT_TRUE(training.weight.grad().eq(65536.0).all().item<bool>()) << error;
    return error;
  };
  const std::string floating = " of parameter 1 of group 0 must be Float, Double, BFloat16 or Half";
  EXPECT_EQ(refusal(at::ones({2}, at::kLong)),
            "GradScaler::unscale_: gradient dtype (Long)" + floating);
  EXPECT_EQ(refusal(at::ones({2}, at::kComplexFloat)),
            "GradScaler::unscale_: gradient dtype (ComplexFloat)" + floating);
  EXPECT_EQ(refusal(at::ones({2, 2}).to_sparse_csr()),
            "GradScaler::unscale_: gradient layout (SparseCsr) of parameter 1 of group 0 must be "
            "Strided or Sparse");
  EXPECT_EQ(refusal(at::ones({1}).expand({2})),
            "GradScaler::unscale_: elements of the gradient of parameter 1 of group 0 must not "
            "share memory");
}

TEST(GradScaler, RefusesOptionsOutOfRange) {
  const auto error_of = [](const GradScalerOptions& options) {
    return value_error([&] { const GradScaler scaler(options); });
  };
  EXPECT_EQ(error_of(GradScalerOptions().init_scale(0.0)),
            "GradScaler: init_scale (0) must be finite and above 0 in Float");
  EXPECT_EQ(error_of(GradScalerOptions().init_scale(1e39)),
            "GradScaler: init_scale (1e+39) must be finite and above 0 in Float");
  EXPECT_EQ(error_of(GradScalerOptions().growth_factor(1.0)),
            "GradScaler: growth_factor (1) must be finite and above 1");
  EXPECT_EQ(error_of(GradScalerOptions().backoff_factor(1.0)),
            "GradScaler: backoff_factor (1) must be above 0 and below 1");
  EXPECT_EQ(error_of(GradScalerOptions().growth_interval(0)),
            "GradScaler: growth_interval (0) must be at least 1");
}

/// The last loss of a training that repeats a sequence.
double final_loss(at::Device device, at::ScalarType dtype) {
  constexpr int64_t kVocabulary = 20;
  torch::manual_seed(moved(8));
  Decoder model(DecoderOptions(kVocabulary, llama_options(32, 4, 2), /*num_layers=*/1));
  const auto tokens = at::randint(kVocabulary, {2, 13}, at::kLong).to(device);
  model->to(device);
  torch::optim::Adam optimizer(model->parameters(), 1e-2);
  GradScaler scaler(GradScalerOptions().init_scale(0x1p20).enabled(dtype == at::kHalf));
  int64_t skipped = 0;
  double last = 0.0;
  for (int step = 0; step < 40; ++step) {
    const auto loss = [&] {
      const Autocast autocast(device.type(), dtype);
      const auto scores = model->forward(tokens.narrow(1, 0, 12));
      EXPECT_EQ(scores.scalar_type(), dtype);
      return torch::nn::functional::cross_entropy(scores.flatten(0, 1).to(at::kFloat),
                                                  tokens.narrow(1, 1, 12).flatten());
    }();
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    if (!scaler.step(optimizer)) ++skipped;
    scaler.update();
    last = loss.item<double>();
  }
  EXPECT_EQ(skipped > 0, dtype == at::kHalf) << "2^20 must be too much for float16";
  EXPECT_LT(skipped, 15);
  return last;
}

TEST(GradScaler, TrainsInFloat16AsInFloat32) {
  for (const auto device : devices()) {
    const auto expected = final_loss(device, at::kFloat);
    EXPECT_LT(expected, 0.1);  // at first log(20) = 3.0
    EXPECT_LT(final_loss(device, at::kHalf), 0.2) << device;
  }
}

}  // namespace
}  // namespace heed::test::of_grad_scaler
