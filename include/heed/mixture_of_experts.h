// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/export.h>
#include <heed/feed_forward.h>
#include <heed/module.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string_view>
#include <vector>

namespace heed {

/// How the router's logits become the scores of the experts.
enum class ExpertScore {
  softmax,  ///< over all experts
  sigmoid,  ///< of each expert by itself. DeepSeek-AI 2024 (arXiv:2412.19437)
};

/// Returns the name, such as "softmax".
HEED_API std::string_view to_string(ExpertScore score);

/// Options of `MixtureOfExperts`.
struct HEED_API MixtureOfExpertsOptions {
  /// Required options.
  MixtureOfExpertsOptions(const FeedForwardOptions& expert, int64_t expert_num, int64_t top_k)
      : expert_(expert), expert_num_(expert_num), top_k_(top_k) {}
  HEED_NO_BOOL(MixtureOfExpertsOptions);
  /// Options of each expert; its emb_dim is the layer's E.
  TORCH_ARG(FeedForwardOptions, expert);
  /// N, the number of experts.
  HEED_NUMBER_ARG(int64_t, expert_num);
  /// K, the number of experts that compute each token: 1 to N.
  HEED_NUMBER_ARG(int64_t, top_k);
  /// How the router's logits become scores.
  TORCH_ARG(ExpertScore, score) = ExpertScore::softmax;
  /// Whether the scores of a token's experts are divided by their sum, to become its weights. With
  /// softmax, they are then the softmax over the chosen experts alone.
  TORCH_ARG(bool, normalize) = true;
  /// Factor on the weights.
  HEED_NUMBER_ARG(double, scale) = 1.0;
  /// Whether the router adds a bias.
  TORCH_ARG(bool, router_bias) = false;
  /// Whether the buffer choice_bias is added to the scores by which experts are chosen, but not to
  /// the weights. A training loop that raises it for experts with few tokens balances the experts
  /// without a loss. Wang et al. 2024 (arXiv:2408.15664).
  TORCH_ARG(bool, choice_bias) = false;
  /// The number of groups of experts that follow one another; it divides N. A token's experts are
  /// chosen from its best groups alone. DeepSeek-AI 2024 (arXiv:2405.04434).
  HEED_NUMBER_ARG(int64_t, group_num) = 1;
  /// The number of groups that a token's experts are chosen from.
  HEED_NUMBER_ARG(int64_t, top_groups) = 1;
  /// A group's score is the sum of its so many highest scores.
  HEED_NUMBER_ARG(int64_t, group_best) = 1;
  /// Options of the shared expert, which computes every token; none by default. Several shared
  /// experts are one whose hidden_dim is the sum of theirs.
  TORCH_ARG(std::optional<FeedForwardOptions>, shared) = std::nullopt;
  /// Whether the shared expert's output is multiplied by sigmoid(fc_shared_gate(x)).
  TORCH_ARG(bool, shared_gate) = false;
};

/// The experts that a router chose for rows [T, E].
struct HEED_API ExpertRouting {
  at::Tensor experts;  ///< int64 [T, K], those with the highest scores first
  at::Tensor weights;  ///< [T, K], factors on the experts' outputs
  at::Tensor logits;   ///< [T, N], of the router
};

/// A feed-forward layer that is a mixture of experts: a router chooses K of N experts for each
/// token, whose outputs are added, each multiplied by its weight. No token is dropped. Shazeer et
/// al. 2017 (arXiv:1701.06538).
///
/// @code
/// auto expert = heed::FeedForwardOptions(64).hidden_dim(96).activation(heed::Activation::swiglu);
/// heed::MixtureOfExpertsOptions options(expert, /*expert_num=*/8, /*top_k=*/2);
/// heed::MixtureOfExperts layer(options);
/// auto y = layer->forward(torch::randn({2, 10, 64}));  // [B, L, E]
/// @endcode
///
/// The router computes in float32 (in float64 for float64), also in modules of half types and under
/// autocast. Tokens are sorted by expert, and each expert multiplies its own at once; the others'
/// weights are not read. Training gives an expert without tokens gradients of 0. Results, and
/// gradients, do not depend on the number of threads.
///
/// Modules: router, a Linear(E, N), which pack_weights leaves as it is; experts, a ModuleList of N
/// FeedForward; shared, a FeedForward, and fc_shared_gate, a Linear(E, 1), if the options ask for
/// them. Buffer: choice_bias [N], float32 and 0 at first, if options.choice_bias().
class HEED_API MixtureOfExpertsImpl : public Cloneable<MixtureOfExpertsImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options);

  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters and sets choice_bias to 0.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [..., E]; returns the same shape.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& x);

  /// Chooses the experts of x [..., E], whose T rows are in the order of memory.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  ExpertRouting route(const at::Tensor& x) const;

  using Cloneable<MixtureOfExpertsImpl>::to;
  /// As in torch::nn::Module; choice_bias stays float32.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  /// As in torch::nn::Module; choice_bias stays float32.
  void to(torch::Dtype dtype, bool non_blocking = false) override;

  /// The options given at construction.
  MixtureOfExpertsOptions options;
  torch::nn::Linear router{nullptr};          ///< [N, E]
  torch::nn::ModuleList experts{nullptr};     ///< N of FeedForward
  FeedForward shared{nullptr};                ///< empty unless options.shared()
  torch::nn::Linear fc_shared_gate{nullptr};  ///< empty unless options.shared_gate()
  at::Tensor choice_bias;                     ///< undefined unless options.choice_bias()

 private:
  HEED_LOCAL void check_options() const;
  HEED_LOCAL at::Tensor router_logits(const at::Tensor& rows) const;
  HEED_LOCAL at::Tensor without_other_groups(const at::Tensor& scores) const;
  HEED_LOCAL ExpertRouting route_rows(const at::Tensor& rows) const;
  HEED_LOCAL at::Tensor shared_output(const at::Tensor& rows) const;
};
TORCH_MODULE(MixtureOfExperts);

/// While this object exists, it collects the routings of all MixtureOfExperts that its thread
/// runs, for losses that keep the experts in use. Objects nest: the innermost collects.
///
/// @code
/// heed::RoutingRecord record;
/// auto loss = model->loss(text.slice(1, 0, -1), text.slice(1, 1));
/// loss = loss + 0.01 * heed::load_balancing_loss(record.routings());
/// loss.backward();
/// @endcode
///
/// A stack with checkpointing throws c10::ValueError while one exists: its blocks are computed
/// again in the backward pass, after the losses.
class HEED_API RoutingRecord {
 public:
  RoutingRecord();
  RoutingRecord(const RoutingRecord&) = delete;
  RoutingRecord& operator=(const RoutingRecord&) = delete;
  ~RoutingRecord();

  /// Whether this thread has such an object.
  static bool is_active();
  /// Adds a routing to this thread's innermost object, if there is one.
  static void add(const ExpertRouting& routing);

  /// The routings of all layers that have run, in their order.
  const std::vector<ExpertRouting>& routings() const { return routings_; }

 private:
  RoutingRecord* const outer_;
  std::vector<ExpertRouting> routings_;
};

/// The loss that keeps tokens evenly spread over the experts: N times the sum, over the experts, of
/// the share of the rows that chose the expert and the mean of its softmax of the logits. It is K
/// if all experts get as many rows. The rows of all routings count alike; those where `mask`, bool
/// [T], is false, such as padding, do not count. Fedus et al. 2021 (arXiv:2101.03961); equal to
/// transformers' load_balancing_loss_func.
/// Throws c10::ValueError when there is no routing, when the numbers of experts differ, or when a
/// mask does not fit.
HEED_API at::Tensor load_balancing_loss(const std::vector<ExpertRouting>& routings,
                                        const std::optional<at::Tensor>& mask = {});

/// The loss that keeps the router's logits small: the mean of logsumexp(logits)^2 over the rows of
/// all routings. Zoph et al. 2022 (arXiv:2202.08906). Throws as `load_balancing_loss` does.
HEED_API at::Tensor router_z_loss(const std::vector<ExpertRouting>& routings,
                                  const std::optional<at::Tensor>& mask = {});

}  // namespace heed
