// SPDX-License-Identifier: BSD-3-Clause
// Calls of attend, attend_with_weights and attend_varlen against the float64 reference.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "attend_verdict.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/inputs.h"

namespace heed::fuzz {

namespace {

/// Tensors that require grad, beside their names.
std::vector<std::pair<const char*, at::Tensor>> leaves(const Call& call) {
  std::vector<std::pair<const char*, at::Tensor>> result = {
      {"query", call.query}, {"key", call.key}, {"value", call.value}};
  if (const auto& bias = call.options.bias()) result.emplace_back("bias", *bias);
  if (const auto& sinks = call.options.sinks()) result.emplace_back("sinks", *sinks);
  if (const auto& bias = call.options.relative_bias()) result.emplace_back("relative_bias", *bias);
  if (const auto& slopes = call.options.alibi_slopes()) result.emplace_back("slopes", *slopes);
  const auto is_constant = [](const auto& leaf) { return !leaf.second.requires_grad(); };
  result.erase(std::remove_if(result.begin(), result.end(), is_constant), result.end());
  return result;
}

at::Tensor gradient_of(const std::string& name, const test::ReferenceResult& result) {
  if (name == "query") return result.query_grad;
  if (name == "key") return result.key_grad;
  if (name == "value") return result.value_grad;
  if (name == "relative_bias") return result.relative_bias_grad;
  if (name == "slopes") return result.alibi_slopes_grad;
  return name == "bias" ? result.bias_grad : result.sinks_grad;
}

/// Gradients of scale 1e30 leave float16, if not float32.
bool has_moderate_gradients(const Call& call) {
  return std::abs(call.options.scale().value_or(1.0)) <= 30.0;
}

/// The largest distance of a query and a key.
double distance_of(const Call& call) {
  const auto dim = call.query.dim() == 4 ? 2 : 0;
  return static_cast<double>(call.query.size(dim) + call.key.size(dim));
}

/// How far errors of weights reach into a gradient: how many it sums over, and by what. The values'
/// own gradient is one of weights.
double reach_of(const std::string& name, const Call& call) {
  const auto size = [&](const at::Tensor& tensor, int64_t dim) {
    return static_cast<double>(tensor.dim() == 3 ? tensor.size(0) : tensor.size(dim));
  };
  const auto rows = size(call.query, 2), heads = static_cast<double>(call.query.size(1));
  const auto scale = std::abs(
      call.options.scale().value_or(1.0 / std::sqrt(static_cast<double>(call.query.size(-1)))));
  if (name == "query") return scale;
  if (name == "key") return scale * rows * heads;
  if (name == "sinks" || name == "relative_bias") return rows * size(call.query, 0);
  if (name == "slopes") return rows * size(call.query, 0) * distance_of(call);
  if (name == "bias") return rows * heads * size(call.query, 0);
  return 0.0;
}

/// Gradients by values of a large mean may, beside a sink, whose value is 0.
bool leaves_half(const at::Tensor& gradient) {
  constexpr double kLargestHalf = 65504.0;
  return gradient.defined() && gradient.numel() > 0 &&
         gradient.abs().max().item<double>() > kLargestHalf / 2.0;
}

/// The factor of a weight that dropout keeps.
double kept(const Call& call) { return 1.0 / (1.0 - call.options.dropout()); }

/// A weight's gradient is a difference of two sums of Dv terms as large as the values.
double cancellation(const std::string& name, const Call& call, double mean, double largest) {
  const auto beyond_one = (1.0 + std::abs(mean)) * kept(call) - 1.0;
  const auto half = call.query.element_size() == 2;
  const auto computed_in = half ? at::kFloat : call.query.scalar_type();
  return tolerance(computed_in, largest) * beyond_one * static_cast<double>(call.value.size(-1)) *
         reach_of(name, call);
}

/// The allowed error of a slope's gradient, which sums differences times distances. Their errors
/// are of either sign.
double error_of_distances(const std::string& name, const Call& call, double forward) {
  if (name != "slopes") return 0.0;
  const auto rows = static_cast<double>(call.query.numel() / call.query.size(-1));
  return forward * distance_of(call) / 16.0 * std::sqrt(std::max(rows, 1.0));
}

/// The results that are differentiated, and their gradients.
struct Outputs {
  std::vector<at::Tensor> tensors, gradients;
};

void check_gradients(const Call& call, const Outputs& outputs, double largest,
                     const test::ReferenceResult* expected, double mean = 0.0) {
  const auto& output = outputs.tensors.front();
  const auto asked = leaves(call);
  if (asked.empty() || !at::GradMode::is_enabled() || !has_moderate_gradients(call)) return;
  expect(output.requires_grad(), "output does not require grad");
  std::vector<at::Tensor> tensors;
  for (const auto& leaf : asked) tensors.push_back(leaf.second);
  const auto actual = torch::autograd::grad(outputs.tensors, tensors, outputs.gradients);
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto name = std::string("gradient of ") + asked[i].first;
    at::Tensor gradient;
    if (expected != nullptr) gradient = gradient_of(asked[i].first, *expected);
    if (tensors[i].scalar_type() == at::kHalf && leaves_half(gradient)) continue;
    expect(test::is_finite(actual[i]), name);
    if (expected == nullptr) continue;
    const auto forward = std::max(tolerance(output.scalar_type(), largest),
                                  tolerance(tensors[i].scalar_type(), largest));
    gradient = gradient.view(tensors[i].sizes());
    const auto allowed = kept(call) * (gradient_tolerance(forward, gradient) +
                                       error_of_distances(asked[i].first, call, forward)) +
                         cancellation(asked[i].first, call, mean, largest);
    expect(test::is_close(actual[i], gradient, allowed), name);
  }
}

/// An output whose dropout nobody knows: an average of values, scaled by at most 1 / (1 - dropout).
void check_dropped(const Call& call, const at::Tensor& output, double largest) {
  constexpr auto kAllDropped = 1.0 - 0x1p-30;  // but for one weight in a billion
  const auto largest_output = (1.0 + tolerance(output.scalar_type(), 0.0)) * kept(call);
  const auto bound = call.options.dropout() > kAllDropped ? 0.0 : largest_output;
  expect(test::is_close(output, at::zeros(output.sizes()), bound), "output with dropout");
  check_gradients(call, {{output}, {at::ones_like(output)}}, largest, nullptr);
}

/// The call that is made and the one that the reference gets: they agree, but for what stands in
/// the first where nobody may look.
struct Calls {
  Call made, clean;
  at::Tensor seeing;  // [B, H, L]: which queries see a key; undefined where nothing is poisoned

  at::Tensor poisoned(const at::Tensor& output_gradient, double poison) const {
    if (!seeing.defined()) return output_gradient;
    return output_gradient.masked_fill(seeing.logical_not().unsqueeze(3), poison);
  }
};

Calls poisoned_calls(const Case& c) {
  Calls calls;
  calls.made = calls.clean = make_call(c);
  auto& clean = calls.clean;
  const bool in_place = c.query_layout == 0 && c.key_layout == 0 && c.value_layout == 0;
  if (!poison_of(c) || !in_place || !is_valid(clean) || clean.query.is_meta() ||
      clean.query.numel() == 0 || clean.value.numel() == 0) {
    return calls;
  }
  const auto seen = test::dense_mask({clean.query, clean.key, clean.value}, clean.options);
  calls.seeing = seen.any(3);
  const auto keys = seen.any(2).view({seen.size(0), clean.key.size(1), -1, seen.size(3)}).any(2);
  const auto poison = [&](at::Tensor& tensor, const at::Tensor& shown) {
    const c10::InferenceMode made_there(tensor.is_inference());
    const at::NoGradGuard no_grad;
    const auto poisoned = tensor;
    tensor = tensor.clone();
    poisoned.masked_fill_(shown.logical_not().unsqueeze(3), *poison_of(c));
  };
  poison(clean.query, calls.seeing);
  poison(clean.key, keys);
  poison(clean.value, keys);
  return calls;
}

/// Gives a call its mask as a BlockMask, if it is right.
void give_rule(Call& call) {
  const auto& mask = call.options.mask();
  if (!mask || call.options.mask_batch() != MaskBatch::each || !mask->defined() ||
      !mask->is_cpu() || !is_valid(call))
    return;
  const auto L = call.query.size(2), S = call.key.size(2);
  const auto dense = test::four_dimensional(mask).ne(0).expand({-1, -1, L, S}).contiguous();
  const auto H = dense.size(1);
  const auto* sees = dense.const_data_ptr<bool>();
  const auto rule = [=](int64_t b, int64_t h, int64_t i, int64_t j) {
    return sees[((b * H + h) * L + i) * S + j];
  };
  call.options.block_mask(make_block_mask(dense.size(0), H, L, S, rule)).mask(std::nullopt);
}

/// The results of a call; undefined where they were not asked for.
struct Returned {
  at::Tensor output, weights = {}, lse = {};
};

/// Extreme sinks and slopes count as less extreme ones, which an lse shows.
bool has_common_lse(const Case& c) { return c.sinks_fill == 0 && c.slopes_fill == 0; }

/// The lse is of scores, and off by as much as these, and by the error of a sum of exponentials.
void check_lse(const at::Tensor& lse, const at::Tensor& expected, at::ScalarType dtype,
               double largest) {
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  const auto computed_in = half ? at::kFloat : dtype;
  expect(lse.scalar_type() == computed_in, "the lse's dtype is not that of the computation");
  const auto none = expected.isinf();
  expect(lse.isinf().equal(none), "the lse is infinite in other places");
  const auto allowed = 4.0 * ((64.0 + largest) * test::unit_roundoff(computed_in) +
                              (half ? 4.0 * test::unit_roundoff(dtype) : 0.0));
  expect(test::is_close(lse.masked_fill(none, 0.0), expected.masked_fill(none, 0.0), allowed),
         "lse");
}

/// The output and, if it was asked for, the lse, with gradients of them.
Outputs outputs_of(const Returned& returned, const at::Tensor& output_gradient,
                   const at::Tensor& lse_gradient) {
  Outputs outputs = {{returned.output}, {output_gradient}};
  // An lse does not depend on values.
  if (!lse_gradient.defined() || !returned.lse.requires_grad()) return outputs;
  outputs.tensors.push_back(returned.lse);
  outputs.gradients.push_back(lse_gradient);
  return outputs;
}

void check_result(const Case& c, const Calls& calls, const Returned& returned) {
  const auto& call = calls.clean;
  const auto& [output, weights, lse] = returned;
  const auto mean = mean_of(c);
  const auto dtype = call.query.scalar_type();
  const auto largest = largest_score(call, call.query.size(2) + call.key.size(2));
  const bool dropped = call.options.dropout() > 0.0;
  const auto allowed = tolerance(dtype, largest) * kept(call);
  expect(output.scalar_type() == dtype, "output's dtype is not query's");
  expect(test::is_finite(output), "output");
  const test::Inputs inputs = {call.query, call.key, call.value};
  if (dropped && !weights.defined()) return check_dropped(calls.made, output, largest);

  const auto output_gradient = test::uniform(output.sizes(), dtype);
  test::ReferenceExtras extras;
  if (!leaves(calls.made).empty()) {
    extras.output_gradient = output_gradient;
    if (lse.defined() && has_common_lse(c)) {
      extras.lse_gradient = test::uniform(lse.sizes(), lse.scalar_type());
    }
  }
  if (dropped) extras.kept = weights.detach().ne(0).to(at::kDouble) * kept(call);
  const auto expected = test::dense_reference(inputs, call.options, extras);
  expect(test::is_close(output, expected.output, allowed * (1.0 + std::abs(mean))), "output");
  if (weights.defined()) {
    expect(weights.scalar_type() == dtype, "weights' dtype is not query's");
    expect(test::is_close(weights, expected.weights, allowed), "weights");
  }
  if (lse.defined() && has_common_lse(c)) check_lse(lse, expected.lse, dtype, largest);
  const auto poisoned = calls.poisoned(output_gradient, poison_of(c).value_or(0.0));
  check_gradients(calls.made, outputs_of(returned, poisoned, extras.lse_gradient), largest,
                  &expected, mean);
}

/// [T, H, D] to [1, H, length, D] from row `start`.
at::Tensor sequence(const at::Tensor& packed, int64_t start, int64_t length) {
  return packed.narrow(0, start, length).unsqueeze(0).transpose(1, 2);
}

at::Tensor as_rows(const at::Tensor& heads) { return heads.transpose(1, 2).squeeze(0); }

/// Adds a gradient that may be undefined.
void add(at::Tensor& sum, const at::Tensor& gradient) {
  if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
}

at::Tensor zeros_of(const std::optional<at::Tensor>& tensor) {
  return tensor ? at::zeros(tensor->sizes(), at::kDouble) : at::Tensor();
}

/// The reference of one sequence after another, gradients included. The gradients of output
/// [T, H, Dv] and lse [T, H] may be undefined.
test::ReferenceResult packed_reference(const Call& call, const at::Tensor& output_gradient,
                                       const at::Tensor& lse_gradient) {
  test::ReferenceResult packed;
  std::vector<at::Tensor> outputs, lses, query_grads, key_grads, value_grads;
  packed.sinks_grad = zeros_of(call.options.sinks());
  packed.relative_bias_grad = zeros_of(call.options.relative_bias());
  packed.alibi_slopes_grad = zeros_of(call.options.alibi_slopes());
  for (int64_t n = 0; n + 1 < call.query_offsets.size(0); ++n) {
    const auto at = [&](const at::Tensor& ends, int64_t i) { return ends[i].item<int64_t>(); };
    const auto t = at(call.query_offsets, n), L = at(call.query_offsets, n + 1) - t;
    const auto u = at(call.key_offsets, n), S = at(call.key_offsets, n + 1) - u;
    const test::Inputs inputs = {sequence(call.query, t, L), sequence(call.key, u, S),
                                 sequence(call.value, u, S)};
    test::ReferenceExtras extras{sequence(output_gradient, t, L)};
    if (lse_gradient.defined()) {
      extras.lse_gradient = lse_gradient.narrow(0, t, L).transpose(0, 1).unsqueeze(0);
    }
    const auto result = test::dense_reference(inputs, call.options, extras);
    outputs.push_back(as_rows(result.output));
    lses.push_back(result.lse.squeeze(0).transpose(0, 1));
    query_grads.push_back(as_rows(result.query_grad));
    key_grads.push_back(as_rows(result.key_grad));
    value_grads.push_back(as_rows(result.value_grad));
    add(packed.sinks_grad, result.sinks_grad);
    add(packed.relative_bias_grad, result.relative_bias_grad);
    add(packed.alibi_slopes_grad, result.alibi_slopes_grad);
  }
  const auto joined = [](const std::vector<at::Tensor>& parts, const at::Tensor& empty) {
    return parts.empty() ? empty.to(at::kDouble) : at::cat(parts);
  };
  packed.output = joined(outputs, output_gradient);
  packed.lse = joined(lses, at::zeros({0, call.query.size(1)}));
  packed.query_grad = joined(query_grads, call.query);
  packed.key_grad = joined(key_grads, call.key);
  packed.value_grad = joined(value_grads, call.value);
  return packed;
}

Returned attend_packed(const Case& c, const Call& call) {
  if (c.lse == 0) {
    return {attend_varlen(call.query, call.key, call.value, call.query_offsets, call.key_offsets,
                          call.options)};
  }
  const auto [output, lse] = attend_varlen_with_lse(
      call.query, call.key, call.value, call.query_offsets, call.key_offsets, call.options);
  return {output, {}, lse};
}

}  // namespace

void check_attend(const Case& c) {
  auto calls = poisoned_calls(c);
  if (c.by_rule != 0) give_rule(calls.made);
  const auto& call = calls.made;
  const at::AutoGradMode mode(c.inference % 3 == 0);
  std::optional<Returned> returned;
  if (c.target == kAttendWithWeights) {
    returned = outcome(is_valid(call), {"attend_with_weights"}, [&] {
      const auto [output, weights] =
          attend_with_weights(call.query, call.key, call.value, call.options);
      return Returned{output, weights, {}};
    });
  } else if (c.lse != 0) {
    returned = outcome(is_valid(call), {"attend_with_lse"}, [&] {
      const auto [output, lse] = attend_with_lse(call.query, call.key, call.value, call.options);
      return Returned{output, {}, lse};
    });
  } else {
    returned = outcome(is_valid(call), {"attend"}, [&] {
      return Returned{attend(call.query, call.key, call.value, call.options), {}, {}};
    });
  }
  if (returned) check_result(c, calls, *returned);
}

void check_varlen(const Case& c) {
  const auto call = make_call(c);
  const at::AutoGradMode mode(c.inference % 3 == 0);
  const auto* const name = c.lse != 0 ? "attend_varlen_with_lse" : "attend_varlen";
  const auto returned =
      outcome(is_valid_varlen(call), {name}, [&] { return attend_packed(c, call); });
  if (!returned) return;
  const auto& [output, weights, lse] = *returned;
  const auto dtype = call.query.scalar_type();
  const auto largest = largest_score(call, c.L + c.S);
  expect(output.scalar_type() == dtype, "output's dtype is not query's");
  expect(test::is_finite(output), "output");
  if (call.options.dropout() > 0.0) return check_dropped(call, output, largest);
  const auto output_gradient = test::uniform(output.sizes(), dtype);
  const bool checks_lse = lse.defined() && has_common_lse(c);
  const auto lse_gradient =
      checks_lse ? test::uniform(lse.sizes(), lse.scalar_type()) : at::Tensor();
  const auto expected = packed_reference(call, output_gradient, lse_gradient);
  const auto allowed = tolerance(dtype, largest) * (1.0 + std::abs(mean_of(c)));
  expect(test::is_close(output, expected.output, allowed), "output");
  if (checks_lse) check_lse(lse, expected.lse, dtype, largest);
  check_gradients(call, outputs_of(*returned, output_gradient, lse_gradient), largest, &expected,
                  mean_of(c));
}

}  // namespace heed::fuzz
