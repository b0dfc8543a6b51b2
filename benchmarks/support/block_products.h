// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <heed/linear.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "support/language_model.h"

namespace heed::bench {

/// A layer of a block: its sizes, and how many layers have them.
struct ProductShape {
  int64_t in, out, count;
};

/// Returns the seconds of `product`, the median of some calls, each of which finds its operands in
/// memory: other numbers have filled the caches before it.
template <typename Product>
double cold_seconds(const at::Tensor& others, const Product& product) {
  using Clock = std::chrono::steady_clock;
  std::array<double, 9> seconds{};
  for (auto& time : seconds) {
    others.add_(1);
    const auto start = Clock::now();
    product();
    time = std::chrono::duration<double>(Clock::now() - start).count();
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// Returns the FLOP a second of the matrix products that the blocks of a model run in training, and
/// nothing else: outputs, gradients of inputs, and gradients of weights.
inline double block_products(const LanguageModelSizes& sizes, at::ScalarType dtype) {
  constexpr int64_t kOthers = int64_t{1} << 24;  // 64 MB
  const at::NoGradGuard no_grad;
  const auto rows = sizes.batch * sizes.context, width = sizes.width;
  const auto others = at::ones({kOthers});
  double work = 0.0, seconds = 0.0;
  for (const auto& [in, out, count] : {ProductShape{width, width, 2},
                                       {width, width / sizes.heads * sizes.groups, 2},
                                       {width, sizes.hidden, 2},
                                       {sizes.hidden, width, 1}}) {
    const auto options = at::TensorOptions().dtype(dtype);
    const auto x = at::randn({rows, in}, options), y = at::randn({rows, out}, options);
    const auto weight = at::randn({out, in}, options);
    const auto add = [&](const at::Tensor& input, const at::Tensor& of_layer) {
      torch::nn::Linear fc(torch::nn::LinearOptions(1, 1).bias(false));
      fc->weight = of_layer;
      seconds += static_cast<double>(count) * cold_seconds(others, [&] { linear(fc, input); });
      work += static_cast<double>(count * 2 * rows * in * out);
    };
    add(x, weight);
    add(y, weight.t());
    add(y.t(), x.t());
  }
  return work / seconds;
}

}  // namespace heed::bench
