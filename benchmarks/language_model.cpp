// Trains and runs two small language models for language_model.py, which times the same models in
// Python in turns with it: each line such as "narrow train" or "wide decode" on standard input is
// answered with tokens a second.
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <c10/core/InferenceMode.h>
#include <heed/fused_adamw.h>
#include <heed/memory.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "support/language_model.h"

namespace {

// As in language_model.py.
constexpr heed::bench::LanguageModelSizes kNarrow = {
    /*vocabulary=*/256, /*layers=*/4, /*width=*/128,
    /*heads=*/4,        /*groups=*/2, /*hidden=*/344,
    /*context=*/128,    /*batch=*/8};
constexpr heed::bench::LanguageModelSizes kWide = {
    /*vocabulary=*/256, /*layers=*/4, /*width=*/512,
    /*heads=*/8,        /*groups=*/2, /*hidden=*/1368,
    /*context=*/512,    /*batch=*/4};
constexpr int64_t kPrompt = 16;

/// Tokens a second of `step`, which returns its number of tokens, over about half a second.
template <typename Step>
double throughput(const Step& step) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  int64_t tokens = 0;
  std::chrono::duration<double> seconds{0};
  while (seconds.count() < 0.5) {
    tokens += step();
    seconds = Clock::now() - start;
  }
  return static_cast<double>(tokens) / seconds.count();
}

/// A model in training and in generation, and the tokens of both.
class Work {
 public:
  explicit Work(const heed::bench::LanguageModelSizes& sizes)
      : sizes_(sizes),
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
    const auto next = tokens_.narrow(1, 1, sizes_.context);
    model_->loss(tokens_.narrow(1, 0, sizes_.context), next).backward();
    optimizer_.step();
    return sizes_.batch * sizes_.context;
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
  heed::Decoder model_;
  heed::FusedAdamW optimizer_;
  at::Tensor tokens_;
};

}  // namespace

int main(int argc, char** argv) {
  heed::reuse_memory();
  if (argc > 1) at::set_num_threads(std::atoi(argv[1]));
  torch::manual_seed(0);
  Work narrow(kNarrow), wide(kWide);
  for (std::string model, work; std::cin >> model >> work;) {
    auto& measured = model == "wide" ? wide : narrow;
    std::cout << (work == "train" ? measured.train() : measured.decode()) << std::endl;
  }
}
