// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/tied_weight.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_backward.h>

#include "core/plain.h"
#include "cpu/layers/function.h"
#include "modules/layers/embedding.h"
#include "modules/layers/linear.h"
#include "modules/layers/linear_cross_entropy.h"

namespace heed::detail {

namespace {

/// Returns the weight twice, for the tokens and for the head, and adds the gradients of both.
struct TieUses : public torch::autograd::Function<TieUses> {
  static variable_list forward(AutogradContext* context, const at::Tensor& weight) {
    context->set_materialize_grads(false);
    return {weight.detach(), weight.detach()};
  }

  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    const auto &of_tokens = gradients[0], &of_head = gradients[1];
    if (!of_tokens.defined()) return {of_head};
    if (!of_head.defined()) return {of_tokens.is_sparse() ? of_tokens.to_dense() : of_tokens};
    // Like the engine, this changes a gradient in place only if nobody else has it.
    const bool is_own = !at::GradMode::is_enabled() && is_plain(of_head) &&
                        of_head.is_non_overlapping_and_dense() && of_head.use_count() == 1 &&
                        of_head.storage().use_count() == 1;
    return {is_own ? of_head.add_(of_tokens) : of_head + of_tokens};
  }
};

/// at::embedding, whose gradient is sparse: the rows of the tokens.
struct EmbedTied : public torch::autograd::Function<EmbedTied> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& tokens) {
    context->save_for_backward({tokens});
    context->saved_data["rows"] = weight.size(0);
    return at::embedding(weight, tokens);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto tokens = context->get_saved_variables()[0];
    const auto rows = context->saved_data["rows"].toInt();
    const auto& gradient = gradients[0];
    if (at::GradMode::is_enabled() || !is_plain(gradient)) {
      return {at::embedding_backward(gradient, tokens, rows, /*padding_idx=*/-1,
                                     /*scale_grad_by_freq=*/false, /*sparse=*/false),
              {}};
    }
    const auto width = gradient.size(-1);
    return {
        at::_sparse_coo_tensor_with_dims_and_tensors(
            /*sparse_dim=*/1, /*dense_dim=*/1, {rows, width}, tokens.reshape({1, -1}).to(at::kLong),
            gradient.reshape({-1, width}), gradient.options().layout(at::kSparse)),
        {}};
  }
};

}  // namespace

TiedWeight::TiedWeight(const torch::nn::Embedding& embedding, bool is_tied)
    : embedding_(embedding) {
  const auto& weight = embedding->weight;
  if (!is_tied || stand_in_of(*embedding) != nullptr) return;
  if (!is_recorded(weight) || !is_plain(weight) || !calls_reach_kernels()) return;
  const auto uses = TieUses::apply(weight);
  of_tokens_ = uses[0];
  of_head_ = uses[1];
}

at::Tensor TiedWeight::embed(const at::Tensor& tokens) const {
  return of_tokens_.defined() ? EmbedTied::apply(of_tokens_, tokens)
                              : detail::embed(embedding_, tokens);
}

at::Tensor TiedWeight::scores(const at::Tensor& x) const {
  return of_head_.defined() ? detail::linear(x, of_head_) : detail::scores(embedding_, x);
}

at::Tensor TiedWeight::loss(const at::Tensor& x, const at::Tensor& targets,
                            const LinearCrossEntropyOptions& options) const {
  return of_head_.defined() ? loss_of_head(LinearParameters{of_head_, {}}, x, targets, options)
                            : loss_of_head(embedding_, x, targets, options);
}

}  // namespace heed::detail
