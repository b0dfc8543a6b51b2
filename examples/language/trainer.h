#pragma once

#include <torch/optim/adamw.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "corpus.h"
#include "language_model.h"
#include "loss_history.h"

namespace heed::examples {

struct TrainingOptions {
  int64_t steps = 2000;
  int64_t batch_size = 16;      ///< windows of text at once
  int64_t accumulate = 1;       ///< batches whose gradients make a step
  double learning_rate = 2e-3;  ///< reached after the warm-up; falls to a tenth by half a cosine
  int64_t warm_up = 100;        ///< steps
  double clip = 1.0;            ///< the largest norm of the gradients
  double weight_decay = 0.1;    ///< of matrices
  double dropout = 0.0;
  uint64_t seed = 0;
  std::string dtype = "float32";  ///< or "bfloat16": of the products, by autocast
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingOptions, steps, batch_size, accumulate, learning_rate,
                                   warm_up, clip, weight_decay, dropout, seed, dtype)

/// Trains a language model step by step. What it does depends on its options, the corpus and the
/// state that `save` writes alone, so that a run that was broken off goes on bit for bit.
class Trainer {
 public:
  /// Seeds LibTorch's generators. Throws std::runtime_error when the corpus is too short.
  Trainer(const LanguageModelOptions& model, const TrainingOptions& training, const Corpus& corpus,
          at::Device device);

  /// Throws std::runtime_error when the loss is not finite.
  void step();

  /// The mean loss of held-out characters: of the whole held-out text, cut into contexts, or of
  /// `most` of those contexts. Throws std::runtime_error when it is not finite.
  double evaluate();
  double evaluate(int64_t most);

  int64_t steps_done() const { return static_cast<int64_t>(history_.training.size()); }
  double characters_a_step() const;
  LossHistory& history() { return history_; }
  const LanguageModel& language_model() const { return language_model_; }

  /// The state as a file's content, with `about` beside it.
  std::string save(const std::string& about) const;
  void load(const std::string& path);

 private:
  at::Tensor windows(const at::Tensor& text, const at::Tensor& starts) const;
  at::Tensor loss(const at::Tensor& windows);

  TrainingOptions options_;
  at::Device device_;
  at::Tensor training_, held_out_;  // [N] uint8
  LanguageModel language_model_;
  torch::optim::AdamW optimizer_;
  LossHistory history_;
};

/// What `save` was told of the run whose state `path` holds. Throws std::runtime_error when it is
/// no such file.
std::string read_about(const std::string& path);

}  // namespace heed::examples
