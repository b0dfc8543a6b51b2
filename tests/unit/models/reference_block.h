// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>
#include <heed/transformer.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "support/expect.h"
#include "support/inputs.h"

namespace heed::test {

/// A transformer block with gelu as its definition reads, in float64, from parameters by their
/// names. It shares no code with src.
struct ReferenceBlock {
  using Layer = std::function<at::Tensor(const std::string& name, const at::Tensor& x)>;

  std::map<std::string, at::Tensor> parameters;
  int64_t heads = 1, groups = 1;
  bool causal = false, self_attention = true, memory_norm = false;
  NormPlacement placement = NormPlacement::pre;
  double residual_scale = 1.0, skip_scale = 1.0;
  std::optional<int64_t> cross_heads, cross_groups;  // where they are not those above
  Layer own_norm;                                    // in place of layer_norm

  /// The parameters of a module by their names.
  static std::map<std::string, at::Tensor> parameters_of(const torch::nn::Module& module) {
    std::map<std::string, at::Tensor> found;
    for (const auto& item : module.named_parameters()) found[item.key()] = item.value();
    return found;
  }

  bool has(const std::string& name) const { return parameters.count(name) != 0; }

  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    const auto product = at::matmul(x, parameters.at(name + ".weight").t());
    return has(name + ".bias") ? product + parameters.at(name + ".bias") : product;
  }

  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    if (own_norm) return own_norm(name, x);
    const auto centered = x - x.mean(-1, /*keepdim=*/true);
    const auto variance = centered.square().mean(-1, /*keepdim=*/true);
    return centered / (variance + 1e-5).sqrt() * parameters.at(name + ".weight") +
           parameters.at(name + ".bias");
  }

  at::Tensor split(const at::Tensor& x, int64_t count) const {
    return x.unflatten(2, {count, x.size(2) / count}).transpose(1, 2);
  }

  at::Tensor attention(const std::string& name, const at::Tensor& x, const at::Tensor& memory,
                       int64_t own_heads, int64_t own_groups, bool is_causal) const {
    const auto repeat = [&](const at::Tensor& rows) {
      return split(rows, own_groups).repeat_interleave(own_heads / own_groups, 1);
    };
    const auto query = split(linear(name + ".fc_q", x), own_heads);
    const auto key = repeat(linear(name + ".fc_k", memory));
    const auto value = repeat(linear(name + ".fc_v", memory));
    auto scores = at::matmul(query, key.transpose(2, 3)) / std::sqrt(query.size(3));
    if (is_causal) {
      const auto hidden = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
      scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    }
    const auto output = at::matmul(at::softmax(scores, -1), value);
    return linear(name + ".fc_o", output.transpose(1, 2).flatten(2));
  }

  at::Tensor feed_forward(const at::Tensor& x) const {
    const auto hidden = linear("feed_forward.fc_in", x);
    const auto active = hidden * 0.5 * (1.0 + at::erf(hidden / std::sqrt(2.0)));
    return linear("feed_forward.fc_out", active);
  }

  /// The input of a layer and the output, added.
  at::Tensor sum(const std::string& name, const at::Tensor& x, const at::Tensor& output) const {
    const auto factors = name + "_layer_scale";
    const auto own = has(factors) ? output * parameters.at(factors) : output;
    return skip_scale * x + own * residual_scale;
  }

  template <typename Layer>
  at::Tensor connected(const std::string& name, const at::Tensor& x, const Layer& layer) const {
    const auto before = name + "_norm";
    switch (placement) {
      case NormPlacement::pre:
        return sum(name, x, layer(norm(before, x)));
      case NormPlacement::post:
        return norm(before, sum(name, x, layer(x)));
      case NormPlacement::sandwich:
        return sum(name, x, norm(name + "_output_norm", layer(norm(before, x))));
      case NormPlacement::output:
        return sum(name, x, norm(before, layer(x)));
    }
    return {};
  }

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& memory = {}) const {
    auto result = x;
    if (self_attention) {
      result = connected("attention", x, [&](const at::Tensor& t) {
        return attention("attention", t, t, heads, groups, causal);
      });
    }
    if (memory.defined()) {
      const auto source = memory_norm ? norm("cross_attention_norm", memory) : memory;
      result = connected("cross_attention", result, [&](const at::Tensor& t) {
        return attention("cross_attention", t, source, cross_heads.value_or(heads),
                         cross_groups.value_or(groups), false);
      });
    }
    return connected("feed_forward", result, [&](const at::Tensor& t) { return feed_forward(t); });
  }
};

/// Another value for every norm, bias and factor, so that none can stand for another.
template <typename Module>
Module with_random_vectors(Module module) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module->parameters()) {
    if (parameter.dim() == 1) parameter.uniform_(0.5, 1.5);
  }
  module->eval();
  return module;
}

/// The reference of a block whose self-attention is a GroupQueryAttention.
inline ReferenceBlock reference_of(const TransformerBlock& block) {
  const auto& options = block->options;
  ReferenceBlock reference;
  reference.parameters = ReferenceBlock::parameters_of(*block);
  reference.heads = options.attention().head_num();
  reference.groups = options.attention().group_num();
  reference.causal = options.causal();
  reference.self_attention = options.self_attention();
  reference.memory_norm = options.memory_norm();
  reference.placement = options.norm_placement();
  reference.residual_scale = options.residual_scale();
  reference.skip_scale = options.skip_scale();
  if (const auto& cross = options.cross_attention_layer()) {
    reference.cross_heads = cross->head_num();
    reference.cross_groups = cross->group_num();
  }
  return reference;
}

/// Compares a block's output, and the gradients of all parameters, of x and of the memory, which
/// may be undefined, with those of the reference.
inline void expect_is_the_reference(const TransformerBlock& block, const ReferenceBlock& reference,
                                    const at::Tensor& x, const at::Tensor& memory = {}) {
  auto leaves = block->parameters();
  leaves.push_back(x.requires_grad_());
  TransformerInputs inputs;
  if (memory.defined()) inputs.memory(leaves.emplace_back(memory.requires_grad_()));
  const auto output = block.ptr()->forward(x, inputs);
  const auto expected = reference(x, memory);
  EXPECT_TRUE(are_alike({output}, {expected}, 1e-12));
  {
    // Without gradients, a sum and the norm of it are one kernel's.
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(are_alike({block.ptr()->forward(x, inputs)}, {expected}, 1e-12));
  }
  const auto direction = uniform(x.sizes(), at::kDouble);
  // Sums over some tens of tokens and elements, in another order.
  EXPECT_TRUE(are_alike(torch::autograd::grad({output}, leaves, {direction}),
                        torch::autograd::grad({expected}, leaves, {direction}), 1e-10));
}

}  // namespace heed::test
