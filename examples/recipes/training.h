// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/heed.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace recipes {

/// nanoGPT's optimizer: matrices decay; norms and biases do not.
inline heed::FusedAdamW nanogpt_optimizer(const torch::nn::Module& model, double learning_rate) {
  std::vector<at::Tensor> matrices, vectors;
  for (auto& parameter : model.parameters()) {
    (parameter.dim() >= 2 ? matrices : vectors).push_back(parameter);
  }
  auto options = torch::optim::AdamWOptions(learning_rate).betas({0.9, 0.95});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  auto add_group = [&](const std::vector<at::Tensor>& parameters, double decay) {
    auto own = std::make_unique<torch::optim::AdamWOptions>(options.weight_decay(decay));
    groups.emplace_back(parameters, std::move(own));
  };
  add_group(matrices, 0.1);
  add_group(vectors, 0.0);
  return heed::FusedAdamW(groups, options);
}

/// tokens [B, L + 1]; returns the loss of the step.
inline double train_step(heed::Decoder& model, heed::FusedAdamW& optimizer,
                         const at::Tensor& tokens) {
  auto loss = model->loss(tokens.slice(1, 0, -1), tokens.slice(1, 1));
  optimizer.zero_grad();
  loss.backward();
  optimizer.step_clipped(/*max_norm=*/1.0);
  return loss.item<double>();
}

/// A Linear that stays as it is, plus the product of two thin matrices, which learn.
class LoraLinearImpl : public torch::nn::LinearImpl, public heed::LinearStandIn {
 public:
  LoraLinearImpl(const torch::nn::LinearImpl& whole, int64_t rank, double alpha)
      : LinearImpl(whole.options), scale(alpha / static_cast<double>(rank)) {
    weight.set_data(whole.weight.detach());
    if (bias.defined()) bias.set_data(whole.bias.detach());
    auto rows = torch::randn({rank, weight.size(1)}, weight.options()) / std::sqrt(weight.size(1));
    lora_a = register_parameter("lora_a", rows);
    lora_b = register_parameter("lora_b", torch::zeros({weight.size(0), rank}, weight.options()));
  }

  /// heed's modules call this in place of a product with `weight`.
  at::Tensor project(const at::Tensor& x) const override {
    return torch::linear(x, weight, bias) + scale * x.matmul(lora_a.t()).matmul(lora_b.t());
  }
  void initialize(const std::function<void(torch::nn::LinearImpl&)>& draw) override { draw(*this); }

  /// The weight of a plain Linear that computes as this layer does.
  at::Tensor merged() const { return weight + scale * lora_b.matmul(lora_a); }

  double scale;
  at::Tensor lora_a, lora_b;
};

/// Puts such layers in the place of fc_q and fc_v.
template <typename Attention>
void add_lora(Attention& attention, int64_t rank, double alpha) {
  auto replace = [&](const char* name, torch::nn::Linear& layer) {
    std::shared_ptr<torch::nn::LinearImpl> lora;
    lora = std::make_shared<LoraLinearImpl>(*layer, rank, alpha);
    layer = attention->replace_module(name, lora);
  };
  replace("fc_q", attention->fc_q);
  replace("fc_v", attention->fc_v);
}

inline void add_lora_to_blocks(heed::Encoder& stack, int64_t rank, double alpha) {
  for (const auto& block : *stack->blocks) {
    add_lora(block->as<heed::TransformerBlock>()->attention, rank, alpha);
  }
}

/// Freezes all parameters but those with one of these in their names; returns them.
inline std::vector<at::Tensor> freeze_all_but(torch::nn::Module& model,
                                              const std::vector<std::string>& parts) {
  std::vector<at::Tensor> trained;
  for (auto& parameter : model.named_parameters()) {
    bool trains = std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return parameter.key().find(part) != std::string::npos;
    });
    parameter.value().requires_grad_(trains);
    if (trains) trained.push_back(parameter.value());
  }
  TORCH_CHECK(!trained.empty(), "no parameter has such a name");
  return trained;
}

/// The loss of documents that are packed into one row.
inline at::Tensor packed_loss(heed::Decoder& model, const std::vector<at::Tensor>& documents) {
  std::vector<at::Tensor> ids, positions, targets;
  for (const auto& document : documents) {
    ids.push_back(torch::full_like(document, static_cast<int64_t>(ids.size())));
    positions.push_back(torch::arange(document.size(0), document.options()));
    auto next = document.roll(-1);
    next[-1] = -100;  // nothing follows the last token
    targets.push_back(next);
  }
  heed::TransformerInputs inputs;
  inputs.documents(torch::cat(ids)).positions(torch::cat(positions));
  auto tokens = torch::cat(documents).unsqueeze(0);
  return model->loss(tokens, torch::cat(targets).unsqueeze(0), inputs);  // ignores -100
}

/// WGAN-GP's penalty at points between real and generated ones.
template <typename Critic>
at::Tensor gradient_penalty(const Critic& critic, const at::Tensor& between) {
  auto x = between.detach().requires_grad_();
  auto gradient = torch::autograd::grad({critic(x).sum()}, {x}, /*grad_outputs=*/{},
                                        /*retain_graph=*/true, /*create_graph=*/true)[0];
  return (gradient.flatten(1).norm(2, 1) - 1).square().mean();
}

inline at::Tensor distillation_loss(heed::Decoder& teacher, heed::Decoder& student,
                                    const at::Tensor& tokens, double temperature, double share) {
  auto input = tokens.slice(1, 0, -1), target = tokens.slice(1, 1);
  at::Tensor expected;
  {
    torch::NoGradGuard no_grad;  // the teacher is in eval mode, and learns nothing
    expected = (teacher(input) / temperature).log_softmax(-1).flatten(0, 1);
  }
  auto scores = student(input).flatten(0, 1);
  auto guessed = (scores / temperature).log_softmax(-1);
  auto soft = torch::kl_div(guessed, expected, at::Reduction::Sum, /*log_target=*/true);
  auto hard = torch::cross_entropy_loss(scores, target.flatten());
  auto tokens_seen = static_cast<double>(target.numel());
  return share * temperature * temperature * soft / tokens_seen + (1 - share) * hard;
}

/// Sets what a class of layer has; other initializers of this kind forget heed::Norm.
inline void initialize_layer(torch::nn::Module& module) {
  auto fill = [](at::Tensor& tensor, double number) {
    if (tensor.defined()) tensor.fill_(number);
  };
  if (auto* linear = module.as<torch::nn::LinearImpl>()) {
    linear->weight.normal_(0.0, 0.02);
    fill(linear->bias, 0.0);
  } else if (auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
    embedding->weight.normal_(0.0, 0.02);
  } else if (auto* their_norm = module.as<torch::nn::LayerNormImpl>()) {
    fill(their_norm->weight, 1.0);
    fill(their_norm->bias, 0.0);
  } else if (auto* norm = module.as<heed::NormImpl>()) {  // no LayerNormImpl
    fill(norm->weight, norm->options.unit_offset() ? 0.0 : 1.0);
    fill(norm->bias, 0.0);
  }
}

/// Calls `initialize` for each layer, and throws if it leaves a parameter as it was.
template <typename Initialize>
void initialize_all(torch::nn::Module& model, const Initialize& initialize) {
  torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) parameter.fill_(NAN);
  model.apply(initialize);
  for (const auto& parameter : model.named_parameters()) {
    TORCH_CHECK(!parameter.value().isnan().any().item<bool>(), parameter.key(),
                " is not initialized");
  }
}

}  // namespace recipes
