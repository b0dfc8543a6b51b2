// SPDX-License-Identifier: BSD-3-Clause
#include "training_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "support/checks.h"
#include "support/files.h"
#include "support/interrupt.h"
#include "support/json_file.h"
#include "support/progress.h"

namespace heed::examples {

namespace {

using nlohmann::json;

constexpr int64_t kEvaluated = 128;  // number of held-out contexts for an evaluation

/// The options on which the results depend, by name.
json whole_recipe(const TrainingTask& task, const RunOptions& options) {
  json recipe = task.recipe();
  recipe.update(json(options.training));
  recipe["text"] = options.text;
  recipe["evaluate_every"] = options.evaluate_every;
  return recipe;
}

std::string flag_of(const std::string& option) {
  auto flag = "--" + option;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

/// A file may be at another path now: its content tells whether it is the same.
bool is_path(const std::string& option) { return option == "text" || option == "model"; }

/// Throws std::runtime_error unless the command line would take the value.
void check_as_given(CLI::Option& option, const json& value) {
  auto text = value.is_string() ? value.get<std::string>() : value.dump();
  const auto problem = (*option.get_validator(0))(text);  // each option has one
  if (!problem.empty()) throw std::runtime_error(option.get_name() + ": " + problem);
}

/// Takes over the options of the run that is continued. Options on the command line must agree.
void take_whole_recipe(const json& saved, TrainingTask& task, RunOptions& options,
                       const CLI::App& app) {
  const auto given = whole_recipe(task, options);
  for (const auto& [name, value] : saved.items()) {
    const auto flag = flag_of(name);
    if (!is_path(name) && app.count(flag) > 0 && given.at(name) != value) {
      throw std::runtime_error(fmt::format(
          "{} ({}) must be {}, as when the run in {} began", flag, given.at(name).dump(),
          value.is_null() ? "left out" : value.dump(), options.out));
    }
  }
  task.take_recipe(saved, app);
  saved.get_to(options.training);
  if (app.count("--text") == 0) saved.at("text").get_to(options.text);
  saved.at("evaluate_every").get_to(options.evaluate_every);
}

/// Returns what the run that is continued says of itself. Anybody may have written the file.
json read_about(const Checkpoint& checkpoint, const json& options, CLI::App& app) {
  try {
    auto about = parse_json(checkpoint.about());
    const auto& recipe = about.at("recipe");
    for (const auto& [name, value] : options.items()) {
      const auto& saved = recipe.at(name);
      if (saved.is_string() != value.is_string()) throw std::runtime_error(name + " is no option");
      if (is_path(name)) continue;
      auto& option = *app.get_option(flag_of(name));
      const bool is_left_out = saved.is_null() && option.get_default_str().empty();
      if (!is_left_out) check_as_given(option, saved);
    }
    if (recipe.size() != options.size()) throw std::runtime_error("it has too many options");
    about.at("fingerprint");
    about.at("base_fingerprint");
    return about;
  } catch (const std::exception& error) {
    checkpoint.check(false, error.what());
    throw;
  }
}

void take(FolderLock& lock, const RunOptions& options, const std::string& program) {
  if (lock.take(options.out)) return;
  throw std::runtime_error(fmt::format(
      "{} is in use by another {}: wait for it, or take another --out", options.out, program));
}

void refuse_other_run(const RunOptions& options) {
  if (!exists(options.checkpoint()) && !exists(options.old_checkpoint())) return;
  throw std::runtime_error(options.out +
                           " holds a run already: --resume goes on with it, --out takes another");
}

/// Whether there is a run to go on with. A program that is started again after each failure is
/// given --resume from its first start on.
bool holds_run(const RunOptions& options, const Team& team) {
  const auto run = team.lead([&]() -> std::string {
    if (exists(options.checkpoint()) || exists(options.old_checkpoint())) return options.out;
    fmt::print("{} holds no run yet: a new one begins\n", options.out);
    return "";
  });
  return !run.empty();
}

void refuse_old_checkpoint(const RunOptions& options) {
  if (exists(options.checkpoint()) || !exists(options.old_checkpoint())) return;
  throw std::runtime_error(options.old_checkpoint() +
                           " is of heed 0.2, and could run code when it is read: end this run with "
                           "heed 0.2, or begin a new one with another --out");
}

/// Checks before the training what could otherwise fail after it.
void prepare_folder(const RunOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) throw std::runtime_error("cannot write " + options.out + ": " + error.message());
  check_writable(options.checkpoint());
}

/// Reads the text of the run, and checks that it has not changed since the run began.
TokenCorpus read_same_text(TrainingTask& task, const RunOptions& options, const json& about) {
  if (!options.text.empty() && !exists(options.text)) {
    throw std::runtime_error(options.text + " is gone: give the text's new place with --text");
  }
  auto corpus = task.read_text(options.text);
  if (about.at("fingerprint") != fingerprint(corpus)) {
    throw std::runtime_error("the text is no longer what it was when the run in " + options.out +
                             " began");
  }
  return corpus;
}

/// "12 parameters", or "12 parameters, 3 of them trained"
std::string size_of_model(const Trainer& trainer) {
  const auto all = trainer.parameters(), trained = trainer.trained_parameters();
  return fmt::format("{} parameters", all) +
         (trained < all ? fmt::format(", {} of them trained", trained) : "");
}

/// "step  10/300  loss 2.345  held out 2.401"
std::string losses(Trainer& trainer, int64_t steps) {
  const auto& history = trainer.history();
  auto text =
      fmt::format("step {:{}}/{}", trainer.steps_done(), std::to_string(steps).size(), steps);
  if (!history.training.empty()) text += fmt::format("  loss {:.3f}", history.training.back());
  if (!history.held_out.empty()) {
    text += fmt::format("  held out {:.3f}", history.held_out.back().second);
  }
  return text;
}

/// Returns the exit status if the training stopped before its end.
std::optional<int> train(Trainer& trainer, const RunOptions& options, const std::string& about,
                         const Team& team) {
  using Clock = std::chrono::steady_clock;
  const auto steps = options.training.steps;
  const auto first = trainer.steps_done();
  const auto stop_at = options.stop_after > 0 ? first + options.stop_after : steps;
  const Interrupt interrupt;
  std::optional<Progress> progress;
  if (team.leads()) progress.emplace(steps, first);
  std::chrono::duration<double> seconds{};
  const auto status = [&] {
    return losses(trainer, steps) +
           fmt::format("  {:.0f} tokens/s", static_cast<double>(trainer.steps_done() - first) *
                                                trainer.tokens_a_step() / seconds.count());
  };
  while (trainer.steps_done() < steps) {
    const auto start = Clock::now();
    trainer.step();
    seconds += Clock::now() - start;
    if (progress) progress->advance(status());
    const auto done = trainer.steps_done();
    const bool milestone = done % options.evaluate_every == 0 || done == steps;
    const bool asked = team.any(interrupt.asked());
    const bool stop = done < steps && (asked || done >= stop_at);
    if (!milestone && !stop) continue;
    // Throws if the weights have diverged; the last saved state then stays.
    const auto loss = trainer.evaluate(kEvaluated);
    if (milestone) {
      trainer.history().held_out.emplace_back(done, loss);
      if (progress) progress->milestone(status());
    }
    trainer.save(options.checkpoint(), about);
    if (stop) return interrupt.exit_status();
  }
  return std::nullopt;
}

void write_results(TrainingTask& task, Trainer& trainer, LossUnit unit, const RunOptions& options,
                   const Team& team) {
  const auto& out = options.out;
  const auto loss = trainer.evaluate();
  const auto model = trainer.model();
  team.run_in_leader([&] {
    write_csv(trainer.history(), out + "/loss.csv");
    write_plot(trainer.history(), out + "/loss.png", unit);
    task.write_model(model, loss, trainer.history());
  });
}

}  // namespace

int run_training(TrainingTask& task, RunOptions& options, CLI::App& app, Team& team) {
  const auto& program = app.get_name();
  check_device(options.device);
  if (!options.text.empty()) options.text = std::filesystem::absolute(options.text);
  json about;
  FolderLock lock;
  if (options.resume) options.resume = holds_run(options, team);
  std::optional<Checkpoint> checkpoint;
  if (options.resume) {
    team.run_in_leader([&] {
      take(lock, options, program);
      refuse_old_checkpoint(options);
    });
    checkpoint.emplace(options.checkpoint(), team);
    about = read_about(*checkpoint, whole_recipe(task, options), app);
    take_whole_recipe(about.at("recipe"), task, options, app);
  } else {
    team.run_in_leader([&] { refuse_other_run(options); });
    task.prepare(app);
  }
  const auto base = task.base_fingerprint();
  if (options.resume && about.at("base_fingerprint") != base) {
    throw std::runtime_error("the model's weights are no longer what they were when the run in " +
                             options.out + " began");
  }
  const auto corpus =
      options.resume ? read_same_text(task, options, about) : task.read_text(options.text);
  about = {{"recipe", whole_recipe(task, options)},
           {"fingerprint", fingerprint(corpus)},
           {"base_fingerprint", base}};
  team.check_same("the options and the text", about.dump());
  const auto trained = task.model();
  Trainer trainer(trained, options.training, corpus, at::Device(options.device), team);
  if (options.resume) {
    trainer.load(*checkpoint);
    checkpoint.reset();  // its memory
    team.run_in_leader([&] { prepare_folder(options); });
  } else {
    team.run_in_leader([&] {
      prepare_folder(options);
      take(lock, options, program);
      refuse_other_run(options);  // one may have begun in the meantime
    });
  }

  if (team.leads()) {
    fmt::print("{} file{}, {} {} to train on, {} held out; {}\n", corpus.files,
               corpus.files == 1 ? "" : "s", corpus.training.numel(), trained.tokens,
               corpus.held_out.numel(), size_of_model(trainer));
  }
  if (!options.resume && trained.knows_something) {
    trainer.history().held_out.emplace_back(0, trainer.evaluate(kEvaluated));
    if (team.leads()) fmt::print("{}\n", losses(trainer, options.training.steps));
  }
  if (const auto status = train(trainer, options, about.dump(), team)) {
    if (team.leads()) {
      fmt::print("stopped after step {} of {}; go on with: {} --out {} --resume\n",
                 trainer.steps_done(), options.training.steps, program, options.out);
    }
    return *status;
  }
  write_results(task, trainer, trained.unit, options, team);
  return 0;
}

void add_run_options(CommandLine& app, RunOptions& options, const std::string& about_text) {
  auto& training = options.training;
  app.path("--text", options.text, about_text);
  app.folder("--out", options.out, "folder for the model, its losses and the state for --resume");
  app.add_flag(
      "--resume", options.resume,
      "continue the run in --out with its options; the result is the same as without a break. "
      "Begins one if there is none");
  app.whole_number("--stop-after", options.stop_after,
                   "save and stop after this many steps, as Ctrl-C does; 0 means never", 0);
  app.whole_number("--evaluate-every", options.evaluate_every,
                   "steps between evaluations on the held-out text; the state is saved then too",
                   1);
  app.device(options.device, "where to train");
  app.whole_number("--steps", training.steps, "number of optimizer steps", 1);
  app.whole_number("--batch-size", training.batch_size, "pieces of text in each batch", 1);
  app.whole_number("--accumulate", training.accumulate,
                   "batches whose gradients are averaged for one step", 1);
  app.add("--learning-rate", training.learning_rate,
          "AdamW's, after the warm-up; then decays to a tenth along a cosine", learning_rate());
  app.whole_number("--warm-up", training.warm_up, "steps in which the learning rate rises", 0);
  app.add("--clip", training.clip, "largest allowed norm of the gradients", above_zero());
  app.add("--weight-decay", training.weight_decay, "weight decay of the matrices",
          number("at least 0", [](double value) { return value >= 0; }));
  app.add("--seed", training.seed, "the same seed gives the same numbers", seed());
  app.choice("--dtype", training.dtype, "dtype of the matrix products", {"float32", "bfloat16"});
}

}  // namespace heed::examples
