// SPDX-License-Identifier: BSD-3-Clause
#include <heed/distributed/vocab_parallel.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>
#include <utility>

#include "distributed/collectives.h"
#include "distributed/differentiable.h"
#include "distributed/vocab_parallel_embedding.h"
#include "modules/layers/linear.h"
#include "modules/layers/linear_cross_entropy.h"

namespace heed::distributed {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kCrossEntropy = "vocab_parallel_cross_entropy";
constexpr auto kLinearCrossEntropy = "vocab_parallel_linear_cross_entropy";
constexpr auto kGather = "gather_scores";
constexpr auto kEmbedding = "VocabParallelEmbedding";

/// Where tokens are in this process's part of the vocabulary.
struct OwnRows {
  /// This process has `size` rows from `first` on.
  OwnRows(const at::Tensor& tokens, int64_t first, int64_t size)
      : outside((tokens < first).logical_or_(tokens >= first + size)),
        rows((tokens - first).masked_fill_(outside, 0)) {}
  at::Tensor outside;  ///< true for tokens of other processes
  at::Tensor rows;     ///< of each token in this part; 0 for tokens of other processes
};

struct CrossEntropy : public torch::autograd::Function<CrossEntropy> {
  /// scores [N, V / P], targets [N].
  static at::Tensor forward(AutogradContext* context, const at::Tensor& scores,
                            const at::Tensor& targets, const ProcessGroup& group,
                            int64_t ignore_index) {
    const auto size = scores.size(1);
    const auto dtype = scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    auto largest = scores.amax(1, /*keepdim=*/true).to(dtype);
    detail::all_reduce_max(group, kCrossEntropy, largest);
    auto softmax = scores.to(dtype) - largest;  // [N, V / P]; not normalized yet
    const OwnRows own(targets, group->getRank() * size, size);
    const auto rows = own.rows.unsqueeze(1);
    const auto picked = softmax.gather(1, rows).squeeze(1).masked_fill_(own.outside, 0.0);
    const auto sums = softmax.exp_().sum(1);
    auto totals = at::stack({sums, picked});
    detail::all_reduce(group, kCrossEntropy, totals);
    const auto ignored = targets == ignore_index;
    const auto count = ignored.logical_not().sum();
    const auto losses = (totals[0].log() - totals[1]).masked_fill_(ignored, 0.0);
    if (scores.requires_grad()) {
      // Turns `softmax` into the gradient of the sum of losses, in place.
      softmax.div_(totals[0].unsqueeze(1));
      softmax.scatter_add_(1, rows, own.outside.to(dtype).sub_(1.0).unsqueeze(1));
      softmax.masked_fill_(ignored.unsqueeze(1), 0.0);
      context->save_for_backward({softmax, count});
      context->saved_data["dtype"] = scores.scalar_type();
    }
    return losses.sum() / count;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "vocab_parallel_cross_entropy: there is no second derivative");
    const auto saved = context->get_saved_variables();
    const auto dtype = context->saved_data["dtype"].toScalarType();
    return {(saved[0] * (gradients[0] / saved[1])).to(dtype), {}, {}, {}};
  }
};

void check_targets(const at::Tensor& targets, const ProcessGroup& group, int64_t vocab_size,
                   int64_t ignore_index) {
  // On other devices targets are not checked: reading them would wait for the device.
  if (!targets.is_cpu() || targets.numel() == 0) return;
  const auto [least, most] = detail::run_exchange(group, kCrossEntropy, [&] {
    const auto range = at::aminmax(targets.masked_fill(targets == ignore_index, 0));
    return std::pair(std::get<0>(range).item<int64_t>(), std::get<1>(range).item<int64_t>());
  });
  HEED_CHECK(least >= 0 && most < vocab_size,
             "{}: targets ({} to {}) must be ignore_index ({}), or at least 0 and below V ({})",
             kCrossEntropy, least, most, ignore_index, vocab_size);
}

}  // namespace

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& scores, const at::Tensor& targets,
                                        const ProcessGroup& group, int64_t ignore_index) {
  HEED_CHECK(group, "{}: group must not be null", kCrossEntropy);
  HEED_CHECK(scores.defined() && scores.dim() >= 1 && scores.is_floating_point(),
             "{}: scores must be floating and have a last dimension", kCrossEntropy);
  HEED_CHECK(targets.defined() && targets.scalar_type() == at::kLong,
             "{}: targets must be defined and of dtype Long", kCrossEntropy);
  const auto tokens = scores.sizes().slice(0, scores.dim() - 1);
  HEED_CHECK(targets.sizes() == tokens, "{}: targets {} must have shape {}; scores {}",
             kCrossEntropy, c10::str(targets.sizes()), c10::str(tokens), c10::str(scores.sizes()));
  check_targets(targets, group, scores.size(-1) * group->getSize(), ignore_index);
  return detail::run_exchange(group, kCrossEntropy, [&] {
    return CrossEntropy::apply(scores.reshape({-1, scores.size(-1)}), targets.reshape(-1), group,
                               ignore_index);
  });
}

at::Tensor vocab_parallel_linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                               const at::Tensor& targets, const ProcessGroup& group,
                                               const LinearCrossEntropyOptions& options) {
  HEED_CHECK(group, "{}: group must not be null", kLinearCrossEntropy);
  HEED_CHECK(x.defined() && weight.defined() && weight.dim() == 2,
             "{}: x and weight must be defined, and weight [V / P, E]", kLinearCrossEntropy);
  const auto size = weight.size(0);
  const heed::detail::SharedClasses shared{
      group->getRank() * size, group->getSize() * size,
      [group](const at::Tensor& numbers) {
        detail::all_reduce_max(group, kLinearCrossEntropy, numbers);
      },
      [group](const at::Tensor& numbers) {
        detail::all_reduce(group, kLinearCrossEntropy, numbers);
      }};
  // Before the exchange, so that an error leaves the group open.
  heed::detail::check_linear_cross_entropy(kLinearCrossEntropy, x, weight, targets, options,
                                           &shared);
  return detail::run_exchange(group, kLinearCrossEntropy, [&] {
    return heed::detail::linear_cross_entropy_of_shard(
        kLinearCrossEntropy, detail::sum_gradient(x, group, kLinearCrossEntropy), weight, targets,
        options, shared);
  });
}

at::Tensor gather_scores(const at::Tensor& scores, const ProcessGroup& group) {
  HEED_CHECK(group, "{}: group must not be null", kGather);
  HEED_CHECK(scores.defined() && scores.dim() >= 1,
             "{}: scores must be defined and have a last dimension", kGather);
  return detail::gather(scores, -1, group, kGather);
}

namespace detail {

void VocabParallelEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("heed::distributed::{}(num_embeddings={} of {}, embedding_dim={})",
                        kEmbedding, shard.size, shard.whole, weight.size(1));
}

at::Tensor VocabParallelEmbeddingImpl::embed(const at::Tensor& tokens) const {
  const OwnRows own(tokens, shard.first, shard.size);
  return sum_parts(at::embedding(weight, own.rows).masked_fill(own.outside.unsqueeze(-1), 0.0),
                   group_, kEmbedding);
}

at::Tensor VocabParallelEmbeddingImpl::scores(const at::Tensor& x) const {
  return heed::detail::linear(sum_gradient(x, group_, kEmbedding), weight);
}

at::Tensor VocabParallelEmbeddingImpl::loss(const at::Tensor& x, const at::Tensor& targets,
                                            const LinearCrossEntropyOptions& loss_options) const {
  return vocab_parallel_linear_cross_entropy(x.flatten(0, -2), weight, targets.flatten(), group_,
                                             loss_options);
}

}  // namespace detail

}  // namespace heed::distributed
