// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>
#include <heed/attend.h>
#include <heed/distributed/context_parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "attend/attend_part.h"
#include "core/autocast.h"
#include "core/problem.h"
#include "distributed/collectives.h"
#include "distributed/sequence_call.h"
#include "distributed/share_exchange.h"

namespace heed::distributed {

namespace {

using detail::chunk_of;
using detail::GradientReturn;
using detail::kChunks;
using detail::SequenceCall;
using detail::SequenceShards;
using detail::ShareExchange;
using heed::detail::PartResult;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kRing = "ring_attend";

/// The tensors of a call that may carry gradients, in the order of kProblemTensors, or their
/// gradients: query, key, value, bias, sinks, relative_bias, alibi_slopes. Some may be undefined.
using Inputs = std::array<at::Tensor, heed::detail::kGradientTensors>;
constexpr size_t kBias = 3, kSinks = 4;

/// Joins `part`, the attention to more keys, into `sum`, the attention to the keys before, in
/// place.
void join(PartResult& sum, PartResult part) {
  if (!sum.output.defined()) {
    sum = std::move(part);
    return;
  }
  const auto lse = at::logaddexp(sum.lse, part.lse);
  const auto base = lse.masked_fill(lse.isinf(), 0.0);
  sum.output.mul_((sum.lse - base).exp_().unsqueeze(-1))
      .addcmul_(part.output, (part.lse - base).exp_().unsqueeze(-1));
  sum.lse = lse;
}

/// The attention of this process's queries to the keys of all processes, unrounded.
PartResult attend_to_shares(const SequenceCall& call, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value, bool for_backward) {
  std::array<PartResult, kChunks> found;
  ShareExchange(call, key, value)
      .for_each_share(
          [&](int64_t owner, int64_t n, const auto& share_key, const auto& share_value) {
            for (int64_t q = 0; q < kChunks; ++q) {
              if (!call.attends(q, owner, n)) continue;
              join(found[q], heed::detail::attend_part(kRing, chunk_of(query, q), share_key,
                                                       share_value, call.options_of(q, owner, n),
                                                       call.part(q, owner, n, for_backward)));
            }
          });
  return {at::cat({found[0].output, found[1].output}, 2), at::cat({found[0].lse, found[1].lse}, 2)};
}

/// Computes the gradients of this process's inputs, unrounded.
class BackwardRing {
 public:
  BackwardRing(const SequenceCall& call, const Inputs& inputs, const PartResult& whole,
               const at::Tensor& output_gradient, const heed::detail::WantedGradients& wanted)
      : call_(call),
        inputs_(inputs),
        whole_(whole),
        output_gradient_(output_gradient),
        wanted_(wanted),
        returns_(call, inputs[1], inputs[2]) {
    // Gradients of keys and values are sent together, so both are computed if one is wanted.
    wanted_[1] = wanted_[2] = wanted[1] || wanted[2];
    if (wanted[0]) sums_[0] = at::zeros(inputs[0].sizes(), whole.output.options());
    if (wanted[kBias]) sums_[kBias] = at::zeros(inputs[kBias].sizes(), inputs[kBias].options());
  }

  Inputs run() {
    ShareExchange(call_, inputs_[1], inputs_[2])
        .for_each_share([&](int64_t owner, int64_t n, const auto& key,
                            const auto& value) { visit(owner, n, key, value); },
                        [&](int64_t step) {
                          if (wanted_[1]) returns_.end_step(step);
                        });
    if (wanted_[1]) std::tie(sums_[1], sums_[2]) = returns_.finish();
    return sums_;
  }

 private:
  void visit(int64_t owner, int64_t n, const at::Tensor& key, const at::Tensor& value) {
    at::Tensor key_sum, value_sum;
    for (int64_t q = 0; q < kChunks; ++q) {
      if (!call_.attends(q, owner, n)) continue;
      const auto options = call_.options_of(q, owner, n);
      auto wanted = wanted_;
      wanted[kSinks] = wanted_[kSinks] && options.sinks();
      const auto found = heed::detail::part_gradients(
          chunk_of(inputs_[0], q), key, value, options, call_.part(q, owner, n, true),
          {chunk_of(whole_.output, q), chunk_of(whole_.lse, q)}, chunk_of(output_gradient_, q),
          wanted);
      if (wanted[0]) chunk_of(sums_[0], q).add_(found[0]);
      if (wanted[1]) {
        key_sum = key_sum.defined() ? key_sum.add_(found[1]) : found[1];
        value_sum = value_sum.defined() ? value_sum.add_(found[2]) : found[2];
      }
      if (wanted[kBias]) call_.bias_block(sums_[kBias], q, owner, n).add_(found[kBias]);
      for (size_t i = kBias + 1; i < wanted.size(); ++i) {
        if (wanted[i]) sums_[i] = sums_[i].defined() ? sums_[i] + found[i] : found[i];
      }
    }
    if (key_sum.defined()) returns_.give(owner, n, key_sum, value_sum);
  }

  const SequenceCall& call_;
  const Inputs& inputs_;
  const PartResult& whole_;
  const at::Tensor& output_gradient_;
  heed::detail::WantedGradients wanted_;
  Inputs sums_;
  GradientReturn returns_;
};

/// The tensors of a call, besides its inputs, that the backward pass reads.
variable_list tensors_of(const AttendOptions& options) {
  variable_list tensors;
  for (const auto* tensor : {&options.mask(), &options.documents(), &options.key_documents()}) {
    tensors.push_back(tensor->value_or(at::Tensor()));
  }
  return tensors;
}

struct RingAttention : public torch::autograd::Function<RingAttention> {
  /// `defined` are the inputs that are defined, which autograd sees.
  static at::Tensor forward(AutogradContext* context, at::TensorList /*defined*/,
                            const Inputs& inputs, const SequenceCall& call) {
    const auto whole =
        attend_to_shares(call, inputs[0], inputs[1], inputs[2], /*for_backward=*/true);
    variable_list saved(inputs.begin(), inputs.end());
    saved.insert(saved.end(), {whole.output, whole.lse});
    // These are saved only because autograd then checks that they have not been changed in place.
    const auto read = tensors_of(call.options());
    saved.insert(saved.end(), read.begin(), read.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["call"] =
        c10::IValue::make_capsule(c10::make_intrusive<SequenceCall>(call));
    return whole.output.to(inputs[0].scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), kRing,
                                ": second derivatives are not supported");
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const SequenceCall&>(*capsule);
    Inputs inputs;
    std::copy_n(saved.begin(), inputs.size(), inputs.begin());
    heed::detail::WantedGradients wanted{};
    size_t defined = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined()) wanted[i] = context->needs_input_grad(defined++);
    }
    const PartResult whole{saved[inputs.size()], saved[inputs.size() + 1]};
    const auto found = detail::run_exchange(
        call.group(), fmt::format("gradient of {}", kRing),
        [&] { return BackwardRing(call, inputs, whole, gradients[0], wanted).run(); });
    variable_list result;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) continue;
      result.push_back(wanted[i]
                           ? at::sum_to(found[i], inputs[i].sizes()).to(inputs[i].scalar_type())
                           : at::Tensor());
    }
    result.resize(result.size() + 2);  // `inputs` and `call` have no gradient
    return result;
  }
};

}  // namespace

at::Tensor ring_attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const ProcessGroup& group, const AttendOptions& options) {
  if (group && group->getSize() == 1) return attend(query, key, value, options);
  if (heed::detail::is_autocast(query)) {
    const auto call = [&](const auto& q, const auto& k, const auto& v, const auto& cast) {
      return ring_attend(q, k, v, group, cast);
    };
    return heed::detail::with_autocast(call, query, key, value, options);
  }
  const SequenceCall call(kRing, query, key, value, group, options);
  const Inputs inputs = {
      query,
      key,
      value,
      options.bias() ? heed::detail::with_head_axis(*options.bias()) : at::Tensor(),
      options.sinks().value_or(at::Tensor()),
      options.relative_bias().value_or(at::Tensor()),
      options.alibi_slopes().value_or(at::Tensor())};
  const auto defined = c10::filter(at::TensorList(inputs),
                                   [](const at::Tensor& tensor) { return tensor.defined(); });
  const bool recorded =
      at::GradMode::is_enabled() &&
      std::any_of(defined.begin(), defined.end(), [](const auto& t) { return t.requires_grad(); });
  return detail::run_exchange(group, kRing, [&]() -> at::Tensor {
    if (recorded) return RingAttention::apply(at::TensorList(defined), inputs, call);
    return attend_to_shares(call, query, key, value, /*for_backward=*/false)
        .output.to(query.scalar_type());
  });
}

}  // namespace heed::distributed
