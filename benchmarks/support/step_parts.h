// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <heed/attend.h>
#include <heed/autocast.h>
#include <heed/fused_adamw.h>
#include <heed/linear.h>
#include <heed/linear_cross_entropy.h>
#include <heed/norm.h>
#include <heed/rotary_embedding.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/language_model.h"

namespace heed::bench {

/// Times the parts of a training step alone. Each finds its operands in memory, where the step's
/// other parts have left them, and not in the caches.
class StepParts {
 public:
  StepParts(const LanguageModelSizes& sizes, at::ScalarType dtype)
      : sizes_(sizes), dtype_(dtype), others_(at::ones({kOthers})) {}

  /// Returns the seconds that a part takes in a step.
  double seconds(const std::string& part) {
    if (part == "products") return products();
    if (part == "loss") return loss();
    if (part == "attention") return attention();
    if (part == "norms") return norms();
    if (part == "rotary") return rotary();
    if (part == "optimizer") return optimizer();
    throw std::invalid_argument("the part (" + part +
                                ") must be products, loss, attention, norms, rotary or optimizer");
  }

 private:
  static constexpr int64_t kOthers = int64_t{1} << 24;  // 64 MB

  /// The median time of run(prepare()), without that of `prepare`. Other numbers fill the caches
  /// in between.
  template <typename Prepare, typename Run>
  double cold_seconds(const Prepare& prepare, const Run& run) {
    using Clock = std::chrono::steady_clock;
    std::array<double, 9> seconds{};
    for (auto& time : seconds) {
      const auto prepared = prepare();
      {
        const at::NoGradGuard no_grad;
        others_.add_(1);
      }
      const auto start = Clock::now();
      run(prepared);
      time = std::chrono::duration<double>(Clock::now() - start).count();
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  /// The time of forward(), whose result has a gradient of its own sizes, and of its gradients.
  template <typename Forward>
  double both_passes(const std::vector<at::Tensor>& inputs, const Forward& forward) {
    const auto gradient = at::ones_like(forward());
    return cold_seconds([] { return 0; }, [&](int) { forward(); }) +
           cold_seconds(forward, [&](const at::Tensor& output) {
             torch::autograd::grad({output}, inputs, {gradient});
           });
  }

  at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) const {
    return at::randn(sizes).to(dtype).requires_grad_();
  }

  /// A layer of a block: its sizes, and how many layers have them.
  struct Shape {
    int64_t in, out, count;
  };

  /// Outputs of the blocks' layers, gradients of their inputs, and gradients of their weights.
  double products() {
    const at::NoGradGuard no_grad;
    const auto rows = sizes_.batch * sizes_.context, width = sizes_.width;
    double seconds = 0.0;
    for (const auto& [in, out, count] : {Shape{width, width, 2},
                                         {width, width / sizes_.heads * sizes_.groups, 2},
                                         {width, sizes_.hidden, 2},
                                         {sizes_.hidden, width, 1}}) {
      const auto x = random({rows, in}, dtype_), y = random({rows, out}, dtype_);
      const auto weight = random({out, in}, dtype_);
      const auto add = [&](const at::Tensor& input, const at::Tensor& of_layer) {
        torch::nn::Linear fc(torch::nn::LinearOptions(1, 1).bias(false));
        fc->weight = of_layer;
        seconds += static_cast<double>(count) *
                   cold_seconds([] { return 0; }, [&](int) { linear(fc, input); });
      };
      add(x, weight);
      add(y, weight.t());
      add(y.t(), x.t());
    }
    return static_cast<double>(sizes_.layers) * seconds;
  }

  double loss() {
    const auto rows = sizes_.batch * sizes_.context;
    const auto x = random({rows, sizes_.width}, dtype_);
    const auto weight = random({sizes_.vocabulary, sizes_.width}, at::kFloat);
    const auto targets = at::randint(sizes_.vocabulary, {rows}, at::kLong);
    const Autocast autocast(at::kCPU, dtype_);
    return both_passes({x, weight}, [&] { return linear_cross_entropy(x, weight, targets); });
  }

  /// Heads [B, heads, L, D] in the memory of a layer's output.
  at::Tensor heads(int64_t count) const {
    return at::randn({sizes_.batch, sizes_.context, count, sizes_.width / sizes_.heads})
        .to(dtype_)
        .transpose(1, 2)
        .requires_grad_();
  }

  double attention() {
    const auto query = heads(sizes_.heads), key = heads(sizes_.groups),
               value = heads(sizes_.groups);
    const auto causal = AttendOptions().causal(true);
    return static_cast<double>(sizes_.layers) *
           both_passes({query, key, value}, [&] { return attend(query, key, value, causal); });
  }

  double rotary() {
    const RotaryEmbedding rotary(RotaryEmbeddingOptions(sizes_.width / sizes_.heads));
    double seconds = 0.0;
    for (const auto count : {sizes_.heads, sizes_.groups}) {
      const auto x = heads(count);
      const auto angles = rotary->angles(0, sizes_.context, x.options());
      seconds += both_passes({x}, [&] { return rotary->rotate(x, angles); });
    }
    return static_cast<double>(sizes_.layers) * seconds;
  }

  double norms() {
    RMSNorm norm(sizes_.width);
    const auto x = random({sizes_.batch, sizes_.context, sizes_.width}, at::kFloat);
    const auto seconds = both_passes({x, norm->weight}, [&] { return norm->forward(x); });
    return static_cast<double>(2 * sizes_.layers + 1) * seconds;
  }

  double optimizer() {
    const auto model = make_language_model(sizes_);
    FusedAdamW optimizer(model->parameters(), 1e-3);
    for (auto& parameter : model->parameters()) {
      parameter.mutable_grad() = at::ones_like(parameter.detach());
    }
    return cold_seconds([] { return 0; }, [&](int) { optimizer.step(); });
  }

  LanguageModelSizes sizes_;
  at::ScalarType dtype_;
  at::Tensor others_;
};

}  // namespace heed::bench
