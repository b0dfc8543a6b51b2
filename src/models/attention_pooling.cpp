// SPDX-License-Identifier: BSD-3-Clause
#include <heed/attention_pooling.h>

#include <ATen/TensorOperators.h>

#include "core/checks.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kAttentionPooling = "AttentionPooling";

}  // namespace

AttentionPoolingImpl::AttentionPoolingImpl(const AttentionPoolingOptions& options)
    : options(options) {
  reset();
}

void AttentionPoolingImpl::reset() {
  const auto width = options.attention().emb_dim();
  detail::check_positive(kAttentionPooling, "emb_dim", width);
  HEED_CHECK(options.feed_forward().emb_dim() == width,
             "{}: feed_forward emb_dim ({}) must equal attention emb_dim ({})", kAttentionPooling,
             options.feed_forward().emb_dim(), width);
  probe = register_parameter("probe", detail::empty_parameter({1, 1, width}));
  attention = register_module("attention", GroupQueryAttention(options.attention()));
  norm = register_module("norm", Norm(NormOptions(width).eps(options.norm_eps())));
  feed_forward = register_module("feed_forward", FeedForward(options.feed_forward()));
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void AttentionPoolingImpl::reset_parameters() {
  detail::draw_initial(probe);
  attention->reset_parameters();  // its sinks
  detail::initialize_linears(*attention);
  norm->reset_parameters();
  detail::initialize_linears(*feed_forward);
}

void AttentionPoolingImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kAttentionPooling)
      .show("emb_dim", options.attention().emb_dim())
      .option("norm_eps", options.norm_eps(), 1e-5);
}

at::Tensor AttentionPoolingImpl::forward(const at::Tensor& x,
                                         const std::optional<at::Tensor>& mask) {
  detail::check_defined(kAttentionPooling, "x", x);
  detail::check_rank(kAttentionPooling, "x", x, 3);
  detail::check_input(kAttentionPooling, "x", x, probe.squeeze(0));
  const auto query = probe.to(x.scalar_type()).expand({x.size(0), 1, -1});
  const auto y = attention->forward(query, x, x, mask).squeeze(1);
  return y + feed_forward->forward(norm->forward(y));
}

}  // namespace heed
