// SPDX-License-Identifier: BSD-3-Clause
// Trains and runs one language model for language_model.py and training.py, which time peers in
// turns with it:
//
//     heed_language_model THREADS DTYPE VOCABULARY LAYERS WIDTH HEADS GROUPS HIDDEN CONTEXT BATCH
//
// DTYPE is float32 or bfloat16. The parameters are float32, and training in bfloat16 is autocast.
// Each line on standard input is answered with a number: "train" and "decode" with tokens a second,
// "product" with the FLOP a second of the fastest matrix product in DTYPE, and the parts that
// step_parts.h names with their seconds in a step.
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <heed/autocast.h>
#include <heed/fused_adamw.h>
#include <heed/memory.h>
#include <torch/utils.h>

#include <algorithm>
#include <iostream>
#include <string>

#include "support/language_model.h"
#include "support/limits.h"
#include "support/step_parts.h"
#include "support/throughput.h"

namespace {

using heed::bench::throughput;

constexpr int64_t kPrompt = 16;

/// Returns the FLOP a second of a product that is large enough for the processor's best: that of
/// at::mm or of oneDNN, whichever is faster.
double product_rate(at::ScalarType dtype) {
  constexpr int64_t kRows = 2048, kIn = 1536, kOut = 1536;
  const c10::InferenceMode inference;
  const auto x = at::randn({kRows, kIn}).to(dtype), weight = at::randn({kOut, kIn}).to(dtype);
  const auto rate = [](const auto& product) {
    return throughput([&] {
      product();
      return 2 * kRows * kIn * kOut;
    });
  };
  const auto of_mm = rate([&] { return at::mm(x, weight.t()); });
  try {
    return std::max(of_mm, rate([&] { return heed::bench::onednn_linear(x, weight); }));
  } catch (const c10::Error&) {  // this LibTorch lacks oneDNN's product
    return of_mm;
  }
}

/// A model in training and in generation, and the tokens of both.
class Work {
 public:
  Work(const heed::bench::LanguageModelSizes& sizes, at::ScalarType dtype)
      : sizes_(sizes),
        dtype_(dtype),
        model_(heed::bench::make_language_model(sizes)),
        optimizer_(model_->parameters(), 1e-3),
        tokens_(at::randint(sizes.vocabulary, {sizes.batch, sizes.context + 1}, at::kLong)) {}

  double train() {
    model_->train();
    return throughput([this] { return train_step(); });
  }

  double decode() {
    model_->eval();
    return throughput([this] { return decode_context(); });
  }

 private:
  int64_t train_step() {
    optimizer_.zero_grad();
    loss().backward();
    optimizer_.step();
    return sizes_.batch * sizes_.context;
  }

  at::Tensor loss() {
    const heed::Autocast autocast(at::kCPU, dtype_);
    const auto next = tokens_.narrow(1, 1, sizes_.context);
    return model_->loss(tokens_.narrow(1, 0, sizes_.context), next);
  }

  /// A whole context, one token at a time behind the prompt.
  int64_t decode_context() {
    const c10::InferenceMode inference;
    auto caches = model_->make_caches(1, sizes_.context);
    auto tokens = tokens_.narrow(0, 0, 1).narrow(1, 0, kPrompt);
    for (int64_t i = kPrompt; i < sizes_.context; ++i) {
      const auto scores = model_->forward_cached(tokens, caches);
      tokens = scores.select(1, -1).argmax(-1, /*keepdim=*/true);
    }
    return sizes_.context - kPrompt;
  }

  const heed::bench::LanguageModelSizes sizes_;
  const at::ScalarType dtype_;
  heed::Decoder model_;
  heed::FusedAdamW optimizer_;
  at::Tensor tokens_;
};

}  // namespace

int main(int argc, char** argv) {
  constexpr int kArguments = 11;
  if (argc != kArguments) {
    std::cerr << "heed_language_model needs THREADS DTYPE VOCABULARY LAYERS WIDTH HEADS GROUPS "
                 "HIDDEN CONTEXT BATCH\n";
    return 2;
  }
  heed::reuse_memory();
  const auto number = [&](int i) { return std::stoll(argv[i]); };
  at::set_num_threads(static_cast<int>(number(1)));
  const auto dtype = std::string(argv[2]) == "bfloat16" ? at::kBFloat16 : at::kFloat;
  torch::manual_seed(0);
  const heed::bench::LanguageModelSizes sizes = {number(3), number(4), number(5), number(6),
                                                 number(7), number(8), number(9), number(10)};
  Work model(sizes, dtype);
  for (std::string work; std::cin >> work;) {
    std::cout << (work == "train"     ? model.train()
                  : work == "decode"  ? model.decode()
                  : work == "product" ? product_rate(dtype)
                                      : heed::bench::StepParts(sizes, dtype).seconds(work))
              << std::endl;
  }
}
