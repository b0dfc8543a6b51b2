// SPDX-License-Identifier: BSD-3-Clause
#include "models/block_norms.h"

#include <variant>

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

}  // namespace heed::detail
