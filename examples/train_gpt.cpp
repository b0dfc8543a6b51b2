// Trains a small GPT on a text, character by character.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>

#include "language/corpus.h"
#include "language/ngram.h"
#include "language/team.h"
#include "language/trainer.h"
#include "support/atomic_write.h"
#include "support/device.h"
#include "support/folder_lock.h"
#include "support/interrupt.h"
#include "support/output_file.h"
#include "support/progress.h"
#include "support/run_app.h"
#include "support/validators.h"

namespace {

using heed::examples::bits;
using heed::examples::Corpus;
using heed::examples::Team;
using heed::examples::Trainer;
using nlohmann::json;

constexpr int64_t kEvaluated = 128;  // number of held-out contexts for an evaluation
constexpr int kOrder = 5;            // n of the n-gram model

struct Arguments {
  std::string text;
  heed::examples::LanguageModelOptions model;
  heed::examples::TrainingOptions training;
  std::string out = "gpt";
  bool resume = false;
  int64_t stop_after = 0;
  int64_t evaluate_every = 100;
  std::string device = "cpu";
  heed::examples::TeamSizes team;

  std::string checkpoint() const { return out + "/checkpoint.pt"; }
};

/// The options on which the results depend, by name.
json recipe(const Arguments& arguments) {
  json options = arguments.model;
  options.update(json(arguments.training));
  options["text"] = arguments.text;
  options["evaluate_every"] = arguments.evaluate_every;
  return options;
}

/// Takes over the options of the run that is continued. Options on the command line must agree.
void take_recipe(const json& saved, Arguments& arguments, const CLI::App& app) {
  const auto given = recipe(arguments);
  for (const auto& [name, value] : saved.items()) {
    auto flag = "--" + name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    // The text may have another path now: its fingerprint tells whether it is the same text.
    if (name != "text" && app.count(flag) > 0 && given.at(name) != value) {
      throw std::runtime_error(fmt::format("{} ({}) must be {}, as when the run in {} began", flag,
                                           given.at(name).dump(), value.dump(), arguments.out));
    }
  }
  saved.get_to(arguments.model);
  saved.get_to(arguments.training);
  if (app.count("--text") == 0) saved.at("text").get_to(arguments.text);
  saved.at("evaluate_every").get_to(arguments.evaluate_every);
}

Corpus read_text(const std::string& text) {
  return text.empty() ? heed::examples::read_own_sources(HEED_SOURCE_DIR)
                      : heed::examples::read_corpus(text);
}

void take(heed::examples::FolderLock& lock, const Arguments& arguments) {
  if (lock.take(arguments.out)) return;
  throw std::runtime_error(arguments.out +
                           " is in use by another train_gpt: wait for it, or take another --out");
}

void refuse_other_run(const Arguments& arguments) {
  if (!std::filesystem::exists(arguments.checkpoint())) return;
  throw std::runtime_error(arguments.out +
                           " holds a run already: --resume goes on with it, --out takes another");
}

/// Reads the text of the run, and checks that it has not changed since the run began.
Corpus read_same_text(const Arguments& arguments, const json& about) {
  if (!arguments.text.empty() && !std::filesystem::exists(arguments.text)) {
    throw std::runtime_error(arguments.text + " is gone: give the text's new place with --text");
  }
  auto corpus = read_text(arguments.text);
  if (about.at("fingerprint") != heed::examples::fingerprint(corpus)) {
    throw std::runtime_error("the text is no longer what it was when the run in " + arguments.out +
                             " began");
  }
  return corpus;
}

/// Checks before the training what could otherwise fail after it.
void prepare_folder(const Arguments& arguments) {
  std::error_code error;
  std::filesystem::create_directories(arguments.out, error);
  if (error) throw std::runtime_error("cannot write " + arguments.out + ": " + error.message());
  heed::examples::check_writable(arguments.checkpoint());
}

/// Returns the exit status if the training stopped before its end.
std::optional<int> train(Trainer& trainer, const Arguments& arguments, const std::string& about,
                         const Team& team) {
  using Clock = std::chrono::steady_clock;
  const auto steps = arguments.training.steps;
  const auto first = trainer.steps_done();
  const auto stop_at = arguments.stop_after > 0 ? first + arguments.stop_after : steps;
  const heed::examples::Interrupt interrupt;
  std::optional<heed::examples::Progress> progress;
  if (team.leads()) progress.emplace(steps, first);
  std::chrono::duration<double> seconds{};
  const auto status = [&] {
    const auto& history = trainer.history();
    const auto done = trainer.steps_done();
    auto text = fmt::format("step {:{}}/{}  loss {:.3f}", done, std::to_string(steps).size(), steps,
                            history.training.back());
    if (!history.held_out.empty()) {
      text += fmt::format("  held out {:.3f}", history.held_out.back().second);
    }
    return text +
           fmt::format("  {:.0f} tokens/s", static_cast<double>(done - first) *
                                                trainer.characters_a_step() / seconds.count());
  };
  while (trainer.steps_done() < steps) {
    const auto start = Clock::now();
    trainer.step();
    seconds += Clock::now() - start;
    if (progress) progress->advance(status());
    const auto done = trainer.steps_done();
    const bool milestone = done % arguments.evaluate_every == 0 || done == steps;
    const bool asked = team.any(interrupt.asked());
    const bool stop = done < steps && (asked || done >= stop_at);
    if (!milestone && !stop) continue;
    // Throws if the weights have diverged; the last saved state then stays.
    const auto loss = trainer.evaluate(kEvaluated);
    if (milestone) {
      trainer.history().held_out.emplace_back(done, loss);
      if (progress) progress->milestone(status());
    }
    const auto state = trainer.save(about);
    team.lead([&] {
      heed::examples::write_atomically(arguments.checkpoint(), state);
      return "";
    });
    if (stop) return interrupt.exit_status();
  }
  return std::nullopt;
}

void write_results(Trainer& trainer, const Corpus& corpus, const Arguments& arguments,
                   const Team& team) {
  const auto& out = arguments.out;
  const auto loss = trainer.evaluate();
  const auto language_model = trainer.language_model();
  team.lead([&] {
    heed::examples::save_language_model(language_model, out);
    heed::examples::write_csv(trainer.history(), out + "/loss.csv");
    heed::examples::write_plot(trainer.history(), out + "/loss.png");
    const auto counted =
        heed::examples::NgramModel(corpus.training, kOrder).bits_per_character(corpus.held_out);
    fmt::print("wrote the model and its losses to {}\n", out);
    fmt::print("held out: {:.3f} bits per character (loss {:.3f}); a {}-gram model: {:.3f}\n",
               bits(loss), loss, kOrder, counted);
    return "";
  });
}

/// Makes the folder of a new run this process's.
void begin(heed::examples::FolderLock& lock, const Arguments& arguments) {
  prepare_folder(arguments);
  take(lock, arguments);
  refuse_other_run(arguments);  // one may have begun in the meantime
}

int run(Arguments arguments, const CLI::App& app) {
  heed::examples::check_device(arguments.device);
  if (!arguments.text.empty()) arguments.text = std::filesystem::absolute(arguments.text);
  const auto team = heed::examples::make_team(arguments.team);
  const auto lead = [&](const auto& work) {
    team->lead([&] {
      work();
      return "";
    });
  };
  json about;
  heed::examples::FolderLock lock;
  if (arguments.resume) {
    lead([&] { take(lock, arguments); });
    about = json::parse(heed::examples::read_about(arguments.checkpoint(), *team));
    take_recipe(about.at("recipe"), arguments, app);
  } else {
    lead([&] { refuse_other_run(arguments); });
  }
  const auto corpus =
      arguments.resume ? read_same_text(arguments, about) : read_text(arguments.text);
  about = {{"recipe", recipe(arguments)}, {"fingerprint", heed::examples::fingerprint(corpus)}};
  team->check_same("the options and the text", about.dump());
  Trainer trainer(arguments.model, arguments.training, corpus, at::Device(arguments.device), *team);
  if (arguments.resume) {
    trainer.load(arguments.checkpoint());
    lead([&] { prepare_folder(arguments); });
  } else {
    lead([&] { begin(lock, arguments); });
  }

  if (team->leads()) {
    fmt::print("{} file{}, {} characters to train on, {} held out; {} parameters\n", corpus.files,
               corpus.files == 1 ? "" : "s", corpus.training.size(), corpus.held_out.size(),
               trainer.parameters());
  }
  if (const auto status = train(trainer, arguments, about.dump(), *team)) {
    if (team->leads()) {
      fmt::print("stopped after step {} of {}; go on with: train_gpt --out {} --resume\n",
                 trainer.steps_done(), arguments.training.steps, arguments.out);
    }
    return *status;
  }
  write_results(trainer, corpus, arguments, *team);
  return 0;
}

void add_team_options(CLI::App& app, Arguments& arguments) {
  auto& team = arguments.team;
  app.add_option("--data-parallel", team.data,
                 "processes that share each batch; 0 means all that torchrun has started")
      ->check(heed::examples::whole_number(0));
  app.add_option("--context-parallel", team.context, "processes that share each sequence")
      ->check(heed::examples::whole_number(1));
  app.add_option("--tensor-parallel", team.tensor, "processes that share the weights")
      ->check(heed::examples::whole_number(1));
}

void add_model_options(CLI::App& app, Arguments& arguments) {
  auto& model = arguments.model;
  app.add_option("--layers", model.layers, "number of transformer blocks")
      ->check(heed::examples::whole_number(1));
  app.add_option("--width", model.width, "size of a token's vector")
      ->check(heed::examples::whole_number(1));
  app.add_option("--heads", model.heads, "number of query heads")
      ->check(heed::examples::whole_number(1));
  app.add_option("--groups", model.groups, "number of key/value heads")
      ->check(heed::examples::whole_number(1));
  app.add_option("--context", model.context, "number of characters that the model sees at once")
      ->check(heed::examples::whole_number(1));
}

void add_training_options(CLI::App& app, Arguments& arguments) {
  auto& training = arguments.training;
  app.add_option("--steps", training.steps, "number of optimizer steps")
      ->check(heed::examples::whole_number(1));
  app.add_option("--batch-size", training.batch_size, "pieces of text in each batch")
      ->check(heed::examples::whole_number(1));
  app.add_option("--accumulate", training.accumulate,
                 "batches whose gradients are averaged for one step")
      ->check(heed::examples::whole_number(1));
  app.add_option("--learning-rate", training.learning_rate,
                 "AdamW's, after the warm-up; then decays to a tenth along a cosine")
      ->check(heed::examples::learning_rate());
  app.add_option("--warm-up", training.warm_up, "steps in which the learning rate rises")
      ->check(heed::examples::whole_number(0));
  app.add_option("--clip", training.clip, "largest allowed norm of the gradients")
      ->check(heed::examples::above_zero());
  app.add_option("--weight-decay", training.weight_decay, "weight decay of the matrices")
      ->check(heed::examples::at_least_zero());
  app.add_option("--dropout", training.dropout,
                 "dropout of embeddings, attention weights and layers")
      ->check(heed::examples::share());
  app.add_option("--seed", training.seed, "the same seed gives the same numbers")
      ->check(heed::examples::seed());
  app.add_option("--dtype", training.dtype, "dtype of the matrix products")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
}

void add_options(CLI::App& app, Arguments& arguments) {
  app.add_option("--text", arguments.text,
                 "a file, or a folder with all files below it; by default heed's own sources")
      ->type_name("PATH")
      ->check(heed::examples::path());
  app.add_option("--out", arguments.out,
                 "folder for the model, its losses and the state for --resume")
      ->type_name("DIR")
      ->check(heed::examples::path());
  app.add_flag(
      "--resume", arguments.resume,
      "continue the run in --out with its options; the result is the same as without a break");
  app.add_option("--stop-after", arguments.stop_after,
                 "save and stop after this many steps, as Ctrl-C does; 0 means never")
      ->check(heed::examples::whole_number(0));
  app.add_option("--evaluate-every", arguments.evaluate_every,
                 "steps between evaluations on the held-out text; the state is saved then too")
      ->check(heed::examples::whole_number(1));
  app.add_option("--device", arguments.device, "where to train")
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Trains a small GPT on a text, character by character, and evaluates it on a tenth of the\n"
      "text that it is not trained on. examples/generate writes text with the model.\n"
      "Several processes: torchrun --no-python --standalone --nproc-per-node 2 train_gpt ...",
      "train_gpt");
  app.option_defaults()->always_capture_default();
  app.get_formatter()->column_width(34);
  add_options(app, arguments);
  add_model_options(app, arguments);
  add_training_options(app, arguments);
  add_team_options(app, arguments);
  return heed::examples::run_app(app, argc, argv, [&] {
    try {
      return run(arguments, app);
    } catch (const heed::examples::OtherFailed&) {
      return 1;
    }
  });
}
