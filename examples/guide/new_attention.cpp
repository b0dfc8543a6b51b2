// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

namespace guide {

/// Options of `GatedAttention`.
struct GatedAttentionOptions {
  GatedAttentionOptions(int64_t emb_dim, int64_t head_num)
      : emb_dim_(emb_dim), head_num_(head_num) {}
  /// E.
  TORCH_ARG(int64_t, emb_dim);
  /// H; E must be a multiple of it.
  TORCH_ARG(int64_t, head_num);
  /// Probability in [0, 1) of dropping an attention weight, in training mode.
  TORCH_ARG(double, dropout) = 0.0;
};

/// Multi-head attention whose output is multiplied, element by element, by a sigmoid of its input.
/// Qiu et al. 2025 (arXiv:2505.06708).
///
/// Parameters: fc_q, fc_k, fc_v, fc_gate and fc_out, each a Linear(E, E).
class GatedAttentionImpl : public torch::nn::Cloneable<GatedAttentionImpl> {
 public:
  explicit GatedAttentionImpl(const GatedAttentionOptions& options) : options(options) { reset(); }

  void reset() override {
    auto linear = [&](const char* name) {
      return register_module(name, torch::nn::Linear(options.emb_dim(), options.emb_dim()));
    };
    fc_q = linear("fc_q");
    fc_k = linear("fc_k");
    fc_v = linear("fc_v");
    fc_gate = linear("fc_gate");
    fc_out = linear("fc_out");
  }

  /// x [B, L, E]; mask as in AttendOptions; returns [B, L, E].
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {}) {
    auto call = heed::AttendOptions().mask(mask).dropout(is_training() ? options.dropout() : 0.0);
    auto attended = heed::multi_head_attention(fc_q(x), fc_k(x), fc_v(x), options.head_num(), call);
    return fc_out(attended * fc_gate(x).sigmoid());
  }

  GatedAttentionOptions options;
  torch::nn::Linear fc_q{nullptr}, fc_k{nullptr}, fc_v{nullptr}, fc_gate{nullptr}, fc_out{nullptr};

 protected:
  HEED_DEFAULT_ARGS(1, std::optional<at::Tensor>);
};
TORCH_MODULE(GatedAttention);

void new_attention() {
  GatedAttention attention(GatedAttentionOptions(64, 4).dropout(0.1));
  auto x = torch::randn({2, 10, 64}, torch::requires_grad());
  attention->forward(x, heed::causal_mask(10, 10)).sum().backward();
  std::cout << "gated " << x.grad().sizes() << '\n';
}

}  // namespace guide
