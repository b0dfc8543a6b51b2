// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <heed/mixture_of_experts.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "rows.h"

namespace heed::bench {

namespace {

struct Mixture {
  int64_t experts, top_k, width, hidden;
};

FeedForwardOptions layer_options(int64_t width, int64_t hidden) {
  return FeedForwardOptions(width).hidden_dim(hidden).activation(Activation::swiglu).bias(false);
}

/// A mixture, and a layer of as many multiply-adds a token.
struct ExpertInputs {
  ExpertInputs(const Mixture& sizes, int64_t rows, at::ScalarType dtype, bool training)
      : mixture(MixtureOfExpertsOptions(layer_options(sizes.width, sizes.hidden), sizes.experts,
                                        sizes.top_k)),
        dense(layer_options(sizes.width, sizes.top_k * sizes.hidden)),
        x(at::randn({rows, sizes.width}).to(dtype).requires_grad_(training)),
        output_gradient(at::randn({rows, sizes.width}).to(dtype)) {
    mixture->to(dtype);
    dense->to(dtype);
    mixture->train(training);
    dense->train(training);
  }

  MixtureOfExperts mixture;
  FeedForward dense;
  at::Tensor x, output_gradient;
};

/// The gradient of x, after a forward and a backward pass that also computes those of the weights.
template <typename Module>
at::Tensor train(Module& module, ExpertInputs& in) {
  auto inputs = module->parameters();
  inputs.push_back(in.x);
  return torch::autograd::grad({module->forward(in.x)}, inputs, {in.output_gradient}).back();
}

void add_rows(Rows& rows, const Mixture& sizes, int64_t tokens, at::ScalarType dtype,
              bool training) {
  RowTraits traits;
  traits.training = training;
  traits.random = true;  // the dense layer is another function
  const auto active = 3.0 * static_cast<double>(sizes.top_k * sizes.hidden * sizes.width);
  traits.flops = (training ? 6.0 : 2.0) * active * static_cast<double>(tokens);
  using Run = Contestant<ExpertInputs>;
  const std::vector<Run> contestants =
      training
          ? std::vector<Run>{{"mixture", [](auto& in) { return train(in.mixture, in); }},
                             {"dense", [](auto& in) { return train(in.dense, in); }, 0.85}}
          : std::vector<Run>{{"mixture", [](auto& in) { return in.mixture->forward(in.x); }},
                             {"dense", [](auto& in) { return in.dense->forward(in.x); }, 0.85}};
  add_row<ExpertInputs>(
      rows,
      fmt::format("experts/{}{}/{}of{}x{}x{}/{}", training ? "training_" : "",
                  dtype == at::kFloat ? "float" : "bfloat16", sizes.top_k, sizes.experts,
                  sizes.width, sizes.hidden, tokens),
      traits, [=] { return ExpertInputs(sizes, tokens, dtype, training); }, contestants);
}

}  // namespace

void add_expert_rows(Rows& rows) {
  const Mixture few = {8, 2, 512, 1024}, many = {64, 8, 512, 256};
  for (const auto& sizes : {few, many}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t tokens : {1, 16, 2048}) add_rows(rows, sizes, tokens, dtype, false);
      add_rows(rows, sizes, 2048, dtype, /*training=*/true);
    }
  }
}

}  // namespace heed::bench
