// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <heed/clip_grad_norm.h>
#include <heed/fused_adamw.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <utility>
#include <vector>

#include "rows.h"

namespace heed::bench {

namespace {

/// A language model's parameters: blocks of this width with SwiGLU, and an embedding.
struct OptimizedModel {
  int64_t blocks, width, vocabulary;
  at::ScalarType dtype;
};

/// The parameters and the optimizer of a contestant, which each step changes.
template <typename Optimizer>
struct Optimized {
  explicit Optimized(const OptimizedModel& model) {
    at::manual_seed(0);
    const auto E = model.width, hidden = E * 8 / 3;
    const auto add = [&](at::IntArrayRef shape) {
      parameters.push_back(at::randn(shape).to(model.dtype).requires_grad_());
      parameters.back().mutable_grad() = at::randn(shape).to(model.dtype);
    };
    add({model.vocabulary, E});
    for (int64_t i = 0; i < model.blocks; ++i) {
      for (int projection = 0; projection < 4; ++projection) add({E, E});
      add({hidden, E});
      add({hidden, E});
      add({E, hidden});
      add({E});
      add({E});
    }
    optimizer = std::make_unique<Optimizer>(parameters, torch::optim::AdamWOptions(1e-3));
  }

  std::vector<at::Tensor> parameters;
  std::unique_ptr<Optimizer> optimizer;
};

struct OptimizerInputs {
  explicit OptimizerInputs(const OptimizedModel& model) : ours(model), theirs(model) {}

  Optimized<FusedAdamW> ours;
  Optimized<torch::optim::AdamW> theirs;
};

/// The first parameter after a step.
at::Tensor our_step(OptimizerInputs& in) {
  in.ours.optimizer->step();
  return in.ours.parameters[0];
}
at::Tensor their_step(OptimizerInputs& in) {
  in.theirs.optimizer->step();
  return in.theirs.parameters[0];
}

at::Tensor our_clipped_step(OptimizerInputs& in) {
  in.ours.optimizer->step_clipped(/*max_norm=*/1.0);
  return in.ours.parameters[0];
}
at::Tensor their_clipped_step(OptimizerInputs& in) {
  torch::nn::utils::clip_grad_norm_(in.theirs.parameters, /*max_norm=*/1.0);
  return their_step(in);
}

}  // namespace

void add_optimizer_rows(Rows& rows) {
  RowTraits traits;
  traits.training = true;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& model :
         {OptimizedModel{4, 128, 96, dtype}, OptimizedModel{4, 512, 1024, dtype}}) {
      const auto name = [&](const char* work) {
        return fmt::format("optimizer/{}/{}/N{}_E{}_V{}", work, c10::toString(dtype), model.blocks,
                           model.width, model.vocabulary);
      };
      const auto make = [model] { return OptimizerInputs(model); };
      add_row<OptimizerInputs>(rows, name("step"), traits, make,
                               {{"heed", our_step}, {"torch::optim::AdamW", their_step, 1.0}});
      add_row<OptimizerInputs>(
          rows, name("clipped"), traits, make,
          {{"heed", our_clipped_step}, {"torch::optim::AdamW", their_clipped_step, 1.0}});
    }
  }
}

}  // namespace heed::bench
