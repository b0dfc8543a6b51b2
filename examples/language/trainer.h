// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/decoder.h>
#include <heed/fused_adamw.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "corpus.h"
#include "loss_history.h"
#include "team.h"

namespace heed::examples {

struct TrainingOptions {
  int64_t steps = 2000;
  int64_t batch_size = 16;      ///< windows of text in each batch
  int64_t accumulate = 1;       ///< batches whose gradients are averaged for one step
  double learning_rate = 2e-3;  ///< after the warm-up; then decays to a tenth along a cosine
  int64_t warm_up = 100;        ///< steps in which the learning rate rises
  double clip = 1.0;            ///< largest allowed norm of the gradients
  double weight_decay = 0.1;    ///< weight decay of the matrices
  uint64_t seed = 0;
  std::string dtype = "float32";  ///< dtype of matrix products; or "bfloat16", by autocast
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingOptions, steps, batch_size, accumulate, learning_rate,
                                   warm_up, clip, weight_decay, seed, dtype)

/// A language model to train: how it is made, and how its losses are reported.
struct TrainedModel {
  std::function<Decoder()> make;  ///< as it is before the first step, on the CPU
  int64_t context = 0;            ///< tokens that it sees at once
  std::string tokens = "tokens";  ///< what messages call them
  LossUnit unit = LossUnit::bits_per_character;
  bool knows_something = false;  ///< whether it is evaluated before the first step, too
};

/// Trains the parameters of a language model that require gradients step by step, with a team whose
/// processes call the same functions. It depends only on its options, the corpus and the state that
/// `save` writes, so that a continued run gives the same bits as one without a break.
class Trainer {
 public:
  /// Seeds LibTorch's generators, then makes the model. Throws std::runtime_error when the corpus
  /// is too short.
  Trainer(const TrainedModel& trained, const TrainingOptions& training, const TokenCorpus& corpus,
          at::Device device, Team& team);

  /// Throws std::runtime_error when the loss is not finite.
  void step();

  /// The mean loss of held-out tokens: over the whole held-out text, cut into contexts, or over
  /// `most` of these contexts. Throws std::runtime_error when it is not finite.
  double evaluate(int64_t most = std::numeric_limits<int64_t>::max());

  int64_t steps_done() const { return static_cast<int64_t>(history_.training.size()); }
  double tokens_a_step() const;
  /// How many numbers the whole model has, and how many of them are trained.
  int64_t parameters() const { return parameters_; }
  int64_t trained_parameters() const { return trained_parameters_; }
  LossHistory& history() { return history_; }
  /// The whole model; the processes may each hold a part of it.
  Decoder model() const;

  /// Writes the state, without parameters that are not trained, and `about` into a file, which does
  /// not depend on the team. The leader throws c10::ValueError when that is impossible.
  void save(const std::string& path, const std::string& about) const;
  /// Throws std::runtime_error unless the state is one that such a training saved.
  void load(const Checkpoint& checkpoint);

 private:
  at::Tensor windows(const at::Tensor& text, const at::Tensor& starts) const;
  at::Tensor loss(const at::Tensor& windows);
  void check(const Checkpoint& checkpoint) const;

  Team& team_;
  TrainedModel trained_;
  TrainingOptions options_;
  at::Device device_;
  at::Tensor training_, held_out_;  // [N]
  Decoder model_;
  int64_t parameters_ = 0, trained_parameters_ = 0;     // counted before the model is split
  std::map<std::string, std::vector<int64_t>> shapes_;  // of the whole trained parameters, by name
  FusedAdamW optimizer_;
  LossHistory history_;
};

}  // namespace heed::examples
