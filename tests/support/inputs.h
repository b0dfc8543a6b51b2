// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <heed/attend.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "support/reference.h"

namespace heed::test {

/// Sizes of one attention, in the letters of attend.h.
struct Sizes {
  int64_t B = 2, H = 4, G = 4, L = 5, S = 5, D = 8, Dv = 8;
};

/// Uniform in [-1, 1): |values| <= 1 makes unit roundoff the natural unit of an output's error.
inline at::Tensor uniform(at::IntArrayRef shape, const at::TensorOptions& options) {
  return (at::rand(shape, at::kDouble) * 2 - 1).to(options.device()).to(options.dtype());
}

/// Hides two keys of five.
inline at::Tensor random_mask(at::IntArrayRef shape) { return at::rand(shape).gt(0.4); }

struct Inputs {
  at::Tensor query, key, value;
};

/// Heads split from a packed last dimension, as the modules make them: [B, H, L, D] in the memory
/// of [B, L, H, D].
inline Inputs make_inputs(const Sizes& s, const at::TensorOptions& options) {
  return {uniform({s.B, s.L, s.H, s.D}, options).transpose(1, 2).detach(),
          uniform({s.B, s.S, s.G, s.D}, options).transpose(1, 2).detach(),
          uniform({s.B, s.S, s.G, s.Dv}, options).transpose(1, 2).detach()};
}

/// Query, key and value, which require grad from now on.
inline std::vector<at::Tensor> leaves_of(const Inputs& inputs) {
  return {inputs.query.requires_grad_(), inputs.key.requires_grad_(),
          inputs.value.requires_grad_()};
}

using heed::attend;
using heed::attend_path;
using heed::attend_with_lse;
using heed::attend_with_weights;

inline at::Tensor attend(const Inputs& inputs, const AttendOptions& options = {}) {
  return attend(inputs.query, inputs.key, inputs.value, options);
}

inline auto attend_with_weights(const Inputs& inputs, const AttendOptions& options = {}) {
  return attend_with_weights(inputs.query, inputs.key, inputs.value, options);
}

inline auto attend_with_lse(const Inputs& inputs, const AttendOptions& options = {}) {
  return attend_with_lse(inputs.query, inputs.key, inputs.value, options);
}

inline AttendPath attend_path(const Inputs& inputs, const AttendOptions& options = {}) {
  return attend_path(inputs.query, inputs.key, inputs.value, options);
}

inline at::Tensor four_dimensional(const std::optional<at::Tensor>& scores) {
  if (!scores) return {};
  if (scores->dim() == 2) return scores->unsqueeze(0).unsqueeze(0);
  return scores->dim() == 3 ? scores->unsqueeze(1) : *scores;
}

/// Bool [B or 1, 1, L, S]: which queries see keys of their own document.
inline at::Tensor document_pairs(const at::Tensor& documents, const at::Tensor& key_documents) {
  const auto rows = [](const at::Tensor& ids) { return ids.dim() == 1 ? ids.unsqueeze(0) : ids; };
  return rows(documents).unsqueeze(1).unsqueeze(3).eq(
      rows(key_documents).unsqueeze(1).unsqueeze(2));
}

inline ReferenceInput reference_input(const Inputs& inputs, const AttendOptions& options,
                                      const at::Tensor& output_gradient = {}) {
  ReferenceInput reference;
  reference.query = inputs.query;
  reference.key = inputs.key;
  reference.value = inputs.value;
  reference.mask = four_dimensional(options.mask());
  if (const auto& documents = options.documents()) {
    const auto pairs = document_pairs(*documents, options.key_documents().value_or(*documents));
    const auto& mask = reference.mask;
    reference.mask = mask.defined() ? mask.ne(0).logical_and(pairs) : pairs;
  }
  if (const auto& by_rule = options.block_mask()) {
    const auto& mask = reference.mask;
    const auto own = by_rule->mask().to(inputs.query.device());
    reference.mask = mask.defined() ? mask.ne(0).logical_and(own) : own;
  }
  reference.bias = four_dimensional(options.bias());
  reference.causal = options.causal();
  reference.window = options.window();
  reference.scale = options.scale();
  reference.softcap = options.softcap();
  reference.alibi_slopes = options.alibi_slopes().value_or(at::Tensor());
  reference.sinks = options.sinks().value_or(at::Tensor());
  reference.output_gradient = output_gradient;
  return reference;
}

inline ReferenceResult reference(const Inputs& inputs, const AttendOptions& options,
                                 const at::Tensor& output_gradient = {}) {
  return reference_attention(reference_input(inputs, options, output_gradient));
}

/// Bool [B, H, L, S]: which keys queries see.
inline at::Tensor seen_pairs(const ReferenceInput& input) {
  const auto L = input.query.size(2), S = input.key.size(2);
  const auto ahead = at::arange(S) - (at::arange(L).unsqueeze(1) + (S - L));
  auto seen = at::ones({input.query.size(0), input.query.size(1), L, S}, at::kBool);
  if (input.mask.defined()) seen = seen.logical_and(input.mask.ne(0));
  if (input.causal) seen = seen.logical_and(ahead.le(0));
  if (input.window && *input.window < L + S) seen = seen.logical_and(ahead.abs().lt(*input.window));
  return seen;
}

}  // namespace heed::test
