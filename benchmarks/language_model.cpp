// Trains and runs a small language model for language_model.py, which times the same
// model in Python in turns with it: each line "train" or "decode" on standard input is answered
// with tokens a second.
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "support/language_model.h"

namespace {

// As in language_model.py.
constexpr heed::bench::LanguageModelSizes kSizes = {
    /*vocabulary=*/256, /*layers=*/4, /*width=*/128,
    /*heads=*/4,        /*groups=*/2, /*hidden=*/344,
    /*context=*/128,    /*batch=*/8};
constexpr int64_t kContext = kSizes.context, kBatch = kSizes.batch, kPrompt = 16;

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

int64_t train_step(heed::Decoder& model, torch::optim::Optimizer& optimizer,
                   const at::Tensor& tokens) {
  optimizer.zero_grad();
  const auto scores = model(tokens.narrow(1, 0, kContext));
  at::cross_entropy_loss(scores.flatten(0, 1), tokens.narrow(1, 1, kContext).flatten()).backward();
  optimizer.step();
  return kBatch * kContext;
}

/// A whole context, one token at a time behind the prompt.
int64_t decode(heed::Decoder& model, const at::Tensor& prompt) {
  const torch::NoGradGuard no_grad;
  auto caches = model->make_caches(1, kContext);
  auto tokens = prompt;
  for (int64_t i = kPrompt; i < kContext; ++i) {
    const auto scores = model->forward_cached(tokens, caches);
    tokens = scores.select(1, -1).argmax(-1, /*keepdim=*/true);
  }
  return kContext - kPrompt;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) at::set_num_threads(std::atoi(argv[1]));
  torch::manual_seed(0);
  auto model = heed::bench::make_language_model(kSizes);
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  const auto tokens = at::randint(kSizes.vocabulary, {kBatch, kContext + 1}, at::kLong);
  const auto prompt = tokens.narrow(0, 0, 1).narrow(1, 0, kPrompt);
  for (std::string line; std::getline(std::cin, line);) {
    const bool training = line == "train";
    model->train(training);
    std::cout << (training ? throughput([&] { return train_step(model, optimizer, tokens); })
                           : throughput([&] { return decode(model, prompt); }))
              << std::endl;
  }
}
