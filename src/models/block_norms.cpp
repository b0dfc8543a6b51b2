// SPDX-License-Identifier: BSD-3-Clause
#include "models/block_norms.h"

#include <typeinfo>
#include <variant>

#include "core/autocast.h"
#include "core/plain.h"
#include "cpu/layers/function.h"
#include "models/norm_options.h"
#include "models/own_layer.h"

namespace heed::detail {

void make_norm(const char* function, torch::nn::Module& owner, const char* name,
               const TransformerBlockOptions& block, Norm& plain, torch::nn::AnyModule& own) {
  if (const auto* make = std::get_if<LayerFactory>(&block.norm_layer())) {
    own = make_own_layer(function, "norm", *make);
    owner.register_module(name, own.ptr());
  } else {
    plain = owner.register_module(name, Norm(norm_options(block)));
  }
}

at::Tensor apply_norm(const char* function, const Norm& plain, const torch::nn::AnyModule& own,
                      const at::Tensor& x) {
  if (plain) return plain.ptr()->forward(x);
  return own.is_empty() ? x : apply_own_layer(function, "norm", own, x);
}

SumAndNorm add_and_apply_norm(const Norm& plain, const at::Tensor& x, const at::Tensor& added,
                              bool keeps_sum) {
  if (!plain) return {};
  const auto& own = *plain;
  if (typeid(own) != typeid(NormImpl)) return {};
  const auto& options = plain->options;
  const NormParameters norm{options.kind() == NormKind::layer_norm, plain->weight, plain->bias,
                            options.eps(), options.unit_offset() ? 1.0 : 0.0};
  const bool are_taken = x.scalar_type() == added.scalar_type() && x.sizes() == added.sizes() &&
                         x.is_contiguous() && added.is_contiguous() &&
                         norm.weight.is_contiguous() &&
                         (!norm.bias.defined() || norm.bias.is_contiguous());
  if (!are_taken || is_recorded(x, added, norm.weight, norm.bias) || !is_plain(added) ||
      is_autocast(x) || !kernels_normalize(x, norm.weight, norm.bias)) {
    return {};
  }
  return add_and_normalize(x, added, norm, keeps_sum);
}

}  // namespace heed::detail
