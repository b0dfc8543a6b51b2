// Calls of attend, attend_with_weights and attend_varlen against the float64 reference.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "attend_verdict.h"
#include "support/expect.h"
#include "support/inputs.h"

namespace heed::fuzz {

namespace {

bool is_head_vector(const std::optional<at::Tensor>& tensor, int64_t heads) {
  return !tensor ||
         (is_dense(*tensor, 1) && has_attention_dtype(*tensor) && tensor->size(0) == heads);
}

/// Whether tensors of `rank` with heads in dim 1 fulfil what attend and attend_varlen ask.
bool agree(const Call& call, int64_t rank) {
  const auto &query = call.query, &key = call.key, &value = call.value;
  for (const auto* tensor : {&query, &key, &value}) {
    if (!is_dense(*tensor, rank) || !has_attention_dtype(*tensor)) return false;
    if (tensor->scalar_type() != query.scalar_type()) return false;
  }
  const bool same_keys = key.sizes().slice(0, rank - 1) == value.sizes().slice(0, rank - 1);
  const bool same_batch = rank == 3 || query.size(0) == key.size(0);
  const auto H = query.size(1), G = key.size(1);
  return same_keys && same_batch && query.size(-1) == key.size(-1) && query.size(-1) >= 1 &&
         G >= 1 && H >= 1 && H % G == 0;
}

/// Where `documents` are given, [B or none, L or S].
bool fits_documents(const Call& call) {
  const auto &documents = call.options.documents(), &keys = call.options.key_documents();
  const auto fits = [&](const at::Tensor& ids, int64_t length) {
    return ids.size(-1) == length && (ids.dim() == 1 || ids.size(0) == call.query.size(0)) &&
           ids.device() == call.query.device();
  };
  return !documents || (fits(*documents, call.query.size(2)) && fits(*keys, call.key.size(2)));
}

}  // namespace

bool are_valid_options(const AttendOptions& options, const at::Tensor& query) {
  const auto heads = query.size(1);
  const auto& slopes = options.alibi_slopes();
  return are_in_range(options) && are_representable(options, query.scalar_type()) &&
         is_head_vector(slopes, heads) && is_head_vector(options.sinks(), heads) &&
         !(slopes && slopes->requires_grad() && at::GradMode::is_enabled());
}

bool are_offsets(const at::Tensor& offsets, int64_t total) {
  if (!is_dense(offsets, 1) || offsets.scalar_type() != at::kLong || offsets.size(0) < 1) {
    return false;
  }
  return offsets[0].item<int64_t>() == 0 && offsets[-1].item<int64_t>() == total &&
         offsets.diff().ge(0).all().item<bool>();
}

bool is_valid(const Call& call) {
  if (!agree(call, 4) || !are_valid_options(call.options, call.query)) return false;
  const auto sizes = call.query.sizes();
  const auto S = call.key.size(2);
  const auto &mask = call.options.mask(), &bias = call.options.bias();
  if (!fits_documents(call)) return false;
  if (mask && !is_mask(*mask, sizes[0], sizes[1], sizes[2], S)) return false;
  return !bias ||
         (fits_scores(*bias, sizes[0], sizes[1], sizes[2], S) && has_attention_dtype(*bias));
}

bool is_valid_varlen(const Call& call) {
  return agree(call, 3) && are_valid_options(call.options, call.query) && !call.options.mask() &&
         !call.options.bias() && are_offsets(call.query_offsets, call.query.size(0)) &&
         are_offsets(call.key_offsets, call.key.size(0)) &&
         call.query_offsets.size(0) == call.key_offsets.size(0);
}

double largest_score(const Call& call, int64_t distance) {
  const auto& options = call.options;
  const auto D = static_cast<double>(call.query.size(-1));
  auto largest = std::abs(options.scale().value_or(1.0 / std::sqrt(D))) * D;
  if (const auto& bias = options.bias(); bias && bias->numel() > 0) {
    const auto scores = bias->detach().to(at::kDouble);
    largest += at::where(scores.isfinite(), scores, 0.0).abs().max().item<double>();
  }
  const auto& slopes = options.alibi_slopes();
  if (!slopes) return largest;
  const auto slope = slopes->detach().to(at::kDouble).abs().max().item<double>();
  return largest + slope * static_cast<double>(distance);
}

namespace {

/// Tensors that require grad, beside their names.
std::vector<std::pair<const char*, at::Tensor>> leaves(const Call& call) {
  std::vector<std::pair<const char*, at::Tensor>> result = {
      {"query", call.query}, {"key", call.key}, {"value", call.value}};
  if (const auto& bias = call.options.bias()) result.emplace_back("bias", *bias);
  if (const auto& sinks = call.options.sinks()) result.emplace_back("sinks", *sinks);
  const auto is_constant = [](const auto& leaf) { return !leaf.second.requires_grad(); };
  result.erase(std::remove_if(result.begin(), result.end(), is_constant), result.end());
  return result;
}

at::Tensor gradient_of(const std::string& name, const test::ReferenceResult& result) {
  if (name == "query") return result.query_grad;
  if (name == "key") return result.key_grad;
  if (name == "value") return result.value_grad;
  return name == "bias" ? result.bias_grad : result.sinks_grad;
}

/// Gradients of scale 1e30 leave float16, if not float32.
bool has_moderate_gradients(const Call& call) {
  return std::abs(call.options.scale().value_or(1.0)) <= 30.0;
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
  if (name == "sinks") return rows * size(call.query, 0);
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

void check_gradients(const Call& call, const at::Tensor& output, const at::Tensor& output_gradient,
                     double largest, const test::ReferenceResult* expected, double mean = 0.0) {
  const auto asked = leaves(call);
  if (asked.empty() || !at::GradMode::is_enabled() || !has_moderate_gradients(call)) return;
  expect(output.requires_grad(), "output does not require grad");
  std::vector<at::Tensor> tensors;
  for (const auto& leaf : asked) tensors.push_back(leaf.second);
  const auto actual = torch::autograd::grad({output}, tensors, {output_gradient});
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
    const auto allowed = kept(call) * gradient_tolerance(forward, gradient) +
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
  check_gradients(call, output, at::ones_like(output), largest, nullptr);
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
  const auto seen =
      test::seen_pairs(test::reference_input({clean.query, clean.key, clean.value}, clean.options));
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
  if (!mask || !mask->defined() || !mask->is_cpu() || !is_valid(call)) return;
  const auto L = call.query.size(2), S = call.key.size(2);
  const auto dense = test::four_dimensional(mask).ne(0).expand({-1, -1, L, S}).contiguous();
  const auto H = dense.size(1);
  const auto* sees = dense.const_data_ptr<bool>();
  const auto rule = [=](int64_t b, int64_t h, int64_t i, int64_t j) {
    return sees[((b * H + h) * L + i) * S + j];
  };
  call.options.block_mask(make_block_mask(dense.size(0), H, L, S, rule)).mask(std::nullopt);
}

void check_result(const Case& c, const Calls& calls, const at::Tensor& output,
                  const at::Tensor& weights) {
  const auto& call = calls.clean;
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
  auto input = test::reference_input(inputs, call.options);
  if (!leaves(calls.made).empty()) input.output_gradient = output_gradient;
  if (dropped) input.kept = weights.detach().ne(0).to(at::kDouble) * kept(call);
  const auto expected = test::reference_attention(input);
  expect(test::is_close(output, expected.output, allowed * (1.0 + std::abs(mean))), "output");
  if (weights.defined()) {
    expect(weights.scalar_type() == dtype, "weights' dtype is not query's");
    expect(test::is_close(weights, expected.weights, allowed), "weights");
  }
  check_gradients(calls.made, output, calls.poisoned(output_gradient, poison_of(c).value_or(0.0)),
                  largest, &expected, mean);
}

/// [T, H, D] to [1, H, length, D] from row `start`.
at::Tensor sequence(const at::Tensor& packed, int64_t start, int64_t length) {
  return packed.narrow(0, start, length).unsqueeze(0).transpose(1, 2);
}

at::Tensor as_rows(const at::Tensor& heads) { return heads.transpose(1, 2).squeeze(0); }

/// The reference of one sequence after another, gradients included.
test::ReferenceResult packed_reference(const Call& call, const at::Tensor& output_gradient) {
  test::ReferenceResult packed;
  std::vector<at::Tensor> outputs, query_grads, key_grads, value_grads;
  const auto heads = at::zeros({call.query.size(1)}, at::kDouble);
  packed.sinks_grad = heads;
  for (int64_t n = 0; n + 1 < call.query_offsets.size(0); ++n) {
    const auto at = [&](const at::Tensor& ends, int64_t i) { return ends[i].item<int64_t>(); };
    const auto t = at(call.query_offsets, n), L = at(call.query_offsets, n + 1) - t;
    const auto u = at(call.key_offsets, n), S = at(call.key_offsets, n + 1) - u;
    const test::Inputs inputs = {sequence(call.query, t, L), sequence(call.key, u, S),
                                 sequence(call.value, u, S)};
    const auto result = test::reference_attention(
        test::reference_input(inputs, call.options, sequence(output_gradient, t, L)));
    outputs.push_back(as_rows(result.output));
    query_grads.push_back(as_rows(result.query_grad));
    key_grads.push_back(as_rows(result.key_grad));
    value_grads.push_back(as_rows(result.value_grad));
    if (result.sinks_grad.defined()) packed.sinks_grad = packed.sinks_grad + result.sinks_grad;
  }
  const auto joined = [](const std::vector<at::Tensor>& parts, const at::Tensor& empty) {
    return parts.empty() ? empty.to(at::kDouble) : at::cat(parts);
  };
  packed.output = joined(outputs, output_gradient);
  packed.query_grad = joined(query_grads, call.query);
  packed.key_grad = joined(key_grads, call.key);
  packed.value_grad = joined(value_grads, call.value);
  return packed;
}

}  // namespace

void check_attend(const Case& c) {
  auto calls = poisoned_calls(c);
  if (c.by_rule != 0) give_rule(calls.made);
  const auto& call = calls.made;
  const at::AutoGradMode mode(c.inference % 3 == 0);
  if (c.target == kAttendWithWeights) {
    const auto result = outcome(is_valid(call), {"attend_with_weights"}, [&] {
      return attend_with_weights(call.query, call.key, call.value, call.options);
    });
    if (result) check_result(c, calls, std::get<0>(*result), std::get<1>(*result));
    return;
  }
  const auto output = outcome(is_valid(call), {"attend"}, [&] {
    return attend(call.query, call.key, call.value, call.options);
  });
  if (output) check_result(c, calls, *output, {});
}

void check_varlen(const Case& c) {
  const auto call = make_call(c);
  const at::AutoGradMode mode(c.inference % 3 == 0);
  const auto output = outcome(is_valid_varlen(call), {"attend_varlen"}, [&] {
    return attend_varlen(call.query, call.key, call.value, call.query_offsets, call.key_offsets,
                         call.options);
  });
  if (!output) return;
  const auto dtype = call.query.scalar_type();
  const auto largest = largest_score(call, c.L + c.S);
  expect(output->scalar_type() == dtype, "output's dtype is not query's");
  expect(test::is_finite(*output), "output");
  if (call.options.dropout() > 0.0) return check_dropped(call, *output, largest);
  const auto output_gradient = test::uniform(output->sizes(), dtype);
  const auto expected = packed_reference(call, output_gradient);
  const auto allowed = tolerance(dtype, largest) * (1.0 + std::abs(mean_of(c)));
  expect(test::is_close(*output, expected.output, allowed), "output");
  check_gradients(call, *output, output_gradient, largest, &expected, mean_of(c));
}

}  // namespace heed::fuzz
