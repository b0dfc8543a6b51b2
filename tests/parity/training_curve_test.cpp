// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/fused_adamw.h>
#include <heed/name_maps.h>
#include <heed/weights.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/expect.h"

namespace heed::test {
namespace {

const std::string kFolder = HEED_TRAINING_CURVE;

Decoder make_model() {
  const auto attention =
      GroupQueryAttentionOptions(/*emb_dim=*/128, /*head_num=*/4, /*group_num=*/4)
          .input_bias(false)
          .output_bias(false)
          .rotary(RotaryEmbeddingOptions(/*head_dim=*/32));
  const auto feed_forward =
      FeedForwardOptions(128).hidden_dim(344).activation(Activation::swiglu).bias(false);
  const auto block =
      TransformerBlockOptions(attention).norm(NormKind::rms_norm).feed_forward(feed_forward);
  return Decoder(DecoderOptions(/*vocab_size=*/96, block, /*num_layers=*/4));
}

/// Returns the loss of each step.
at::Tensor train(Decoder& model, const at::Tensor& batches, const at::Tensor& learning_rates) {
  FusedAdamW optimizer(model->parameters(),
                       torch::optim::AdamWOptions().betas({0.9, 0.95}).weight_decay(0.1));
  model->train();
  std::vector<double> losses;
  for (int64_t step = 0; step < batches.size(0); ++step) {
    const auto tokens = batches[step];
    const auto loss = model->loss(tokens.slice(1, 0, -1), tokens.slice(1, 1));
    optimizer.zero_grad();
    loss.backward();
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(learning_rates[step].item<double>());
    }
    optimizer.step_clipped(/*max_norm=*/1.0);
    losses.push_back(loss.item<double>());
  }
  return at::tensor(losses, at::kDouble);
}

/// training_curve.py says what is in the file. training_curve_plot.py draws the losses that this
/// test writes next to it.
TEST(TrainingCurve, IsThatOfTransformers) {
  const auto path = kFolder + "/python.safetensors";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "training_curve.py wrote no file";
  auto model = make_model();
  load_weights(*model, path, LoadOptions().prefix("model.").name_map(name_maps::llama()));
  const auto python = read_weights(path);
  const auto losses = train(model, python.at("batches"), python.at("learning_rates"));
  save_weights(NamedTensors{{"losses", losses}}, kFolder + "/heed.safetensors");
  // The loss falls from 5 to 0.1, so a wrong gradient or a wrong step shows.
  EXPECT_LT(losses.slice(0, -20).mean().item<double>(), 0.1 * losses[0].item<double>());
  // Each step enlarges the rounding errors of those before. In Python alone, eager attention moves
  // the losses by 1e-6, and float64 by 2e-6; other processors sum in other orders. Errors move
  // them more: a weight decay of 0.099 by 1.4e-4, an eps of 1e-7 by 2e-4, no clipping by 0.08.
  EXPECT_TRUE(is_close(losses, python.at("losses"), 1e-4));
}

}  // namespace
}  // namespace heed::test
