// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "corpus.h"
#include "loss_history.h"
#include "support/command_line.h"
#include "team.h"
#include "trainer.h"

namespace heed::examples {

/// The options of a program that trains a language model.
struct RunOptions {
  TrainingOptions training;
  std::string text;
  std::string out;
  bool resume = false;
  int64_t stop_after = 0;
  int64_t evaluate_every = 100;
  std::string device = "cpu";

  std::string checkpoint() const { return out + "/checkpoint.safetensors"; }
  /// Version 0.2 wrote this file, which LibTorch reads: it may hold code that is then run.
  std::string old_checkpoint() const { return out + "/checkpoint.pt"; }
};

void add_run_options(CommandLine& app, RunOptions& options, const std::string& about_text);

/// The parts of a training that each program does in its own way.
class TrainingTask {
 public:
  virtual ~TrainingTask() = default;

  /// The options on which the results depend, by name, beside those of the run.
  virtual nlohmann::json recipe() const = 0;
  /// Takes over the options of the run that is continued, which agree with those on the command
  /// line.
  virtual void take_recipe(const nlohmann::json& saved, const CLI::App& app) = 0;
  /// Checks what a new run needs, before the text is read.
  virtual void prepare(const CLI::App& /*app*/) {}

  /// A number that differs between different models, if the state for --resume has only a part of
  /// the model's parameters.
  virtual uint64_t base_fingerprint() const { return 0; }
  virtual TokenCorpus read_text(const std::string& path) = 0;
  /// The text has been read.
  virtual TrainedModel model() const = 0;
  /// Writes the model, and says how good it is. The process leads.
  virtual void write_model(const Decoder& model, double loss, const LossHistory& history) = 0;
};

/// Trains until all steps are done, a signal, or --stop-after. Shows the progress, saves the state
/// for --resume, and writes the results. Returns the exit status. Throws std::runtime_error when
/// options, the text or the folder do not fit.
int run_training(TrainingTask& task, RunOptions& options, CLI::App& app, Team& team);

}  // namespace heed::examples
