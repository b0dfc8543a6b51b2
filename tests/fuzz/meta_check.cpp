// SPDX-License-Identifier: BSD-3-Clause
// Calls of tensors without memory: refused as on the CPU, or of the CPU's shapes.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <tuple>

#include "attend_verdict.h"

namespace heed::fuzz {

namespace {

at::Tensor on_meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const auto moved = tensor.detach().to(at::kMeta);
  return tensor.requires_grad() ? moved.requires_grad_() : moved;
}

std::optional<at::Tensor> on_meta(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(on_meta(*tensor)) : std::nullopt;
}

/// Offsets are read, so they stay.
Call on_meta(const Call& call) {
  auto moved = call;
  moved.query = on_meta(call.query);
  moved.key = on_meta(call.key);
  moved.value = on_meta(call.value);
  moved.options.mask(on_meta(call.options.mask()))
      .bias(on_meta(call.options.bias()))
      .alibi_slopes(on_meta(call.options.alibi_slopes()))
      .sinks(on_meta(call.options.sinks()))
      .documents(on_meta(call.options.documents()))
      .key_documents(on_meta(call.options.key_documents()))
      .relative_bias(on_meta(call.options.relative_bias()))
      .relative_positions(on_meta(call.options.relative_positions()))
      .global_tokens(on_meta(call.options.global_tokens()))
      .query_lengths(on_meta(call.options.query_lengths()))
      .key_lengths(on_meta(call.options.key_lengths()));
  return moved;
}

void expect_shape(const at::Tensor& actual, const Shape& shape, at::ScalarType dtype) {
  expect(actual.is_meta(), "a result is on another device");
  expect(actual.sizes() == at::IntArrayRef(shape), "a shape is not the CPU's");
  expect(actual.scalar_type() == dtype, "a dtype is not query's");
}

void expect_gradient_shapes(const Call& call, const at::Tensor& output) {
  if (!output.requires_grad()) return;
  const auto& options = call.options;
  for (const auto& leaf :
       {call.query, call.key, call.value, options.relative_bias().value_or(at::Tensor()),
        options.alibi_slopes().value_or(at::Tensor())}) {
    if (!leaf.defined() || !leaf.requires_grad()) continue;
    const auto gradient =
        torch::autograd::grad({output}, {leaf}, {at::empty_like(output)}, /*retain_graph=*/true);
    expect_shape(gradient[0], leaf.sizes().vec(), leaf.scalar_type());
  }
}

void check_heads(const Case& c, const Call& call, bool valid) {
  const auto &query = call.query, &key = call.key, &value = call.value;
  std::optional<at::Tensor> output, weights;
  if (c.target == kAttend) {
    output = outcome(valid, {"attend"}, [&] { return attend(query, key, value, call.options); });
  } else if (const auto both = outcome(valid, {"attend_with_weights"}, [&] {
               return attend_with_weights(query, key, value, call.options);
             })) {
    std::tie(output, weights) = *both;
  }
  if (!output) return;
  const auto B = query.size(0), H = query.size(1), L = query.size(2);
  expect_shape(*output, {B, H, L, value.size(3)}, query.scalar_type());
  if (weights) expect_shape(*weights, {B, H, L, key.size(2)}, query.scalar_type());
  expect_gradient_shapes(call, *output);
}

}  // namespace

void check_meta(const Case& given) {
  auto c = given;
  if (c.defect == kMeta) c.defect = kNoDefect;
  const auto on_cpu = make_call(c);
  const auto call = on_meta(on_cpu);
  const at::AutoGradMode mode(c.inference % 3 == 0);
  if (c.target != kAttendVarlen)
    return check_heads(c, call, is_valid(on_cpu, /*reads_numbers=*/false));
  const auto output = outcome(is_valid_varlen(on_cpu), {"attend_varlen"}, [&] {
    return attend_varlen(call.query, call.key, call.value, call.query_offsets, call.key_offsets,
                         call.options);
  });
  if (!output) return;
  expect_shape(*output, {call.query.size(0), call.query.size(1), call.value.size(2)},
               call.query.scalar_type());
  expect_gradient_shapes(call, *output);
}

}  // namespace heed::fuzz
