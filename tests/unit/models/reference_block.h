#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <heed/transformer.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

namespace heed::test {

/// A transformer block with layer_norm and gelu as its definition reads, in float64, from
/// parameters by their names. It shares no code with src.
struct ReferenceBlock {
  std::map<std::string, at::Tensor> parameters;
  int64_t heads, groups;
  bool causal = false;
  NormPlacement placement = NormPlacement::pre;
  double residual_scale = 1.0;

  /// The parameters of a module in float64.
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

  /// The output of a layer as it is added to x.
  at::Tensor scaled(const std::string& name, const at::Tensor& output) const {
    const auto factors = name + "_layer_scale";
    const auto own = has(factors) ? output * parameters.at(factors) : output;
    return own * residual_scale;
  }

  template <typename Layer>
  at::Tensor connected(const std::string& name, const at::Tensor& x, const Layer& layer) const {
    const auto own_norm = name + "_norm";
    switch (placement) {
      case NormPlacement::pre:
        return x + scaled(name, layer(norm(own_norm, x)));
      case NormPlacement::post:
        return norm(own_norm, x + scaled(name, layer(x)));
      case NormPlacement::sandwich:
        return x + scaled(name, norm(name + "_output_norm", layer(norm(own_norm, x))));
      case NormPlacement::output:
        return x + scaled(name, norm(own_norm, layer(x)));
    }
    return {};
  }

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& memory = {}) const {
    auto result = connected("attention", x, [&](const at::Tensor& t) {
      return attention("attention", t, t, heads, groups, causal);
    });
    if (memory.defined()) {
      result = connected("cross_attention", result, [&](const at::Tensor& t) {
        return attention("cross_attention", t, memory, heads, groups, false);
      });
    }
    return connected("feed_forward", result,
                     [&](const at::Tensor& t) { return feed_forward(t); });
  }
};

}  // namespace heed::test
