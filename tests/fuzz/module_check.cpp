// SPDX-License-Identifier: BSD-3-Clause
// MultiHeadAttention and GroupQueryAttention against their definitions in float64: projections,
// norms and rotations by operators, attention by the reference's loops.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "attend_verdict.h"
#include "module_case.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"

namespace heed::fuzz {

namespace {

const Names kMultiHeadNames = {"MultiHeadAttention", "attend", "attend_with_weights",
                               "RotaryEmbedding", "Norm"};
const Names kGroupQueryNames = {"GroupQueryAttention", "attend", "attend_with_weights",
                                "RotaryEmbedding", "Norm"};

bool is_valid(const Case& c, const Parts& parts, const Sources& sources,
              const std::optional<at::Tensor>& mask) {
  const auto& [query, key, value] = sources;
  return can_compute(c, query) && is_input(query, parts.fc_q) && is_input(key, parts.fc_k) &&
         is_input(value, parts.fc_v) && query.size(0) == key.size(0) &&
         key.sizes().slice(0, 2) == value.sizes().slice(0, 2) &&
         (!mask || is_mask(*mask, query.size(0), c.H, query.size(1), key.size(1)));
}

Sources make_sources(const Case& c) {
  const auto dtype = dtype_of(c.dtype);
  const auto query = make_values(c, kQuery, {c.B, c.L, width(c)}, dtype, c.query_layout);
  if (c.cross == 0) return {query, query, query};
  const auto key_dim = c.key_dim > 0 && c.target == kMultiHead ? c.key_dim : width(c);
  const auto value_dim = c.value_dim > 0 && c.target == kMultiHead ? c.value_dim : width(c);
  return {query,
          make_values(c, kKey, {c.B, c.S, key_dim}, dtype_of(c.dtype + c.key_dtype), c.key_layout),
          make_values(c, kValue, {c.B, c.S, value_dim}, dtype_of(c.dtype + c.value_dtype),
                      c.value_layout)};
}

void check_input_gradients(const Case& c, const Parts& parts, const Sources& sources,
                           const Heads64& heads, const AttendOptions& options,
                           test::ReferenceExtras extras, const at::Tensor& output, double allowed) {
  std::vector<at::Tensor> leaves;
  for (const auto& source : {sources.query, sources.key, sources.value}) {
    if (source.requires_grad() && (leaves.empty() || !source.is_same(leaves.front()))) {
      leaves.push_back(source);
    }
  }
  if (leaves.empty() || std::abs(scale_of(c).value_or(1.0)) > 30.0) return;
  const auto output_gradient = test::uniform(output.sizes(), output.scalar_type());
  const auto actual = torch::autograd::grad({output}, leaves, {output_gradient});
  const auto merged =
      output_gradient.to(at::kDouble).matmul(parts.fc_out->weight.detach().to(at::kDouble));
  extras.output_gradient = test::split_heads(merged, c.H);
  const auto result = test::dense_reference(heads.heads, options, extras);
  const auto expected =
      torch::autograd::grad({heads.heads.query, heads.heads.key, heads.heads.value}, leaves,
                            {result.query_grad, result.key_grad, result.value_grad});
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto name = "gradient of source " + std::to_string(i);
    expect(test::is_finite(actual[i]), name);
    expect(test::is_close(actual[i], expected[i],
                          heads.gain * gradient_tolerance(allowed, expected[i])),
           name);
  }
}

void check_output(const Case& c, const Parts& parts, const Sources& sources,
                  const std::optional<at::Tensor>& mask, const at::Tensor& output,
                  const at::Tensor& weights) {
  const auto dtype = sources.query.scalar_type();
  expect(output.scalar_type() == dtype, "output's dtype is not the input's");
  expect(test::is_finite(output), "output");
  const bool dropped = c.training != 0 && dropout_of(c) > 0.0;
  if (dropped && !weights.defined()) return;
  const auto heads = heads_of(c, parts, sources);
  const auto options = call_options(c, parts, mask);
  test::ReferenceExtras extras;
  if (dropped) extras.kept = weights.detach().ne(0).to(at::kDouble) / (1.0 - dropout_of(c));
  const auto result = test::dense_reference(heads.heads, options, extras);
  const auto allowed = module_tolerance(c, dtype, heads);
  const auto expected = test::linear64(parts.fc_out, test::merge_heads(result.output));
  expect(test::is_close(output, expected, allowed), "output");
  if (weights.defined()) expect(test::is_close(weights, result.weights, allowed), "weights");
  if (at::GradMode::is_enabled()) {
    check_input_gradients(c, parts, sources, heads, options, extras, output, allowed);
  }
}

template <typename Module>
void check_calls(const Case& c, Module& module, const Names& names) {
  const auto parts = parts_of(module);
  const auto sources = make_sources(c);
  const auto mask = make_mask(c);
  const at::AutoGradMode mode(c.inference == 0);
  const bool valid = is_valid(c, parts, sources, mask);
  if (c.weights != 0) {
    const auto result = outcome(valid, names, [&] {
      return module->forward_with_weights(sources.query, sources.key, sources.value, mask);
    });
    if (result) {
      check_output(c, parts, sources, mask, std::get<0>(*result), std::get<1>(*result));
    }
    return;
  }
  const auto output = outcome(valid, names, [&] {
    return c.cross != 0 ? module->forward(sources.query, sources.key, sources.value, mask)
                        : module->forward(sources.query, mask);
  });
  if (output) check_output(c, parts, sources, mask, *output, {});
}

}  // namespace

void check_module(const Case& given) {
  Case c = given;
  if (c.cross == 0) c.S = c.L;
  if (c.target == kMultiHead) {
    auto module =
        outcome(has_valid_module_options(c), kMultiHeadNames, [&] { return make_multi_head(c); });
    if (module) check_calls(c, *module, kMultiHeadNames);
  } else {
    auto module =
        outcome(has_valid_module_options(c), kGroupQueryNames, [&] { return make_group_query(c); });
    if (module) check_calls(c, *module, kGroupQueryNames);
  }
}

}  // namespace heed::fuzz
