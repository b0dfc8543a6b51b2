// SPDX-License-Identifier: BSD-3-Clause
// Trains a published language model further, on a text.
#include <fmt/core.h>
#include <heed/adapters.h>
#include <heed/memory.h>
#include <heed/pretrained.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "language/corpus.h"
#include "language/published.h"
#include "language/team.h"
#include "language/training_run.h"
#include "language/weights_argument.h"
#include "support/checks.h"
#include "support/command_line.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Arguments {
  std::string model;
  int64_t context = 256;
  bool checkpointing = false;
  std::optional<int64_t> lora;  // rank; without it the whole model is trained
  std::optional<double> lora_alpha;
  std::string lora_targets;  // names of Linears, separated by commas; all by default
  bool dora = false;
  heed::examples::WeightsArgument weights;
  heed::examples::RunOptions run;
};

/// The options of the adapter.
heed::LoraOptions lora_options(const Arguments& arguments, int64_t rank) {
  std::vector<std::string> targets;
  std::istringstream names(arguments.lora_targets);
  for (std::string name; std::getline(names, name, ',');) targets.push_back(name);
  return heed::LoraOptions(rank)
      .alpha(arguments.lora_alpha.value_or(2.0 * static_cast<double>(rank)))
      .target_modules(targets)
      .dora(arguments.dora);
}

/// Throws std::runtime_error if an option belongs to adapters, and there is none.
void check_lora_options(const Arguments& arguments) {
  if (arguments.lora) return;
  if (arguments.lora_alpha) throw std::runtime_error("--lora-alpha needs --lora");
  if (!arguments.lora_targets.empty()) throw std::runtime_error("--lora-targets needs --lora");
  if (arguments.dora) throw std::runtime_error("--dora needs --lora");
  if (arguments.weights.chosen()) {
    throw std::runtime_error(fmt::format(
        "--weights {} needs --lora: packed weights cannot be trained", arguments.weights.name));
  }
}

void check_memory(const heed::DecoderImpl& model) {
  double numbers = 0;
  for (const auto& parameter : heed::adapter_parameters(model))
    numbers += static_cast<double>(parameter.numel());
  heed::examples::check_memory("parameters, gradients and two means of the optimizer",
                               numbers * 4 * sizeof(float));
}

class Finetune : public heed::examples::TrainingTask {
 public:
  explicit Finetune(Arguments& arguments) : arguments_(arguments) {
    auto& model = arguments_.model;
    if (!model.empty()) model = fs::absolute(model).lexically_normal();  // for a later --resume
  }

  json recipe() const override {
    const auto& rank = arguments_.lora;
    const auto& alpha = arguments_.lora_alpha;
    return {{"model", arguments_.model},
            {"context", arguments_.context},
            {"lora", rank ? json(*rank) : json()},
            {"lora_alpha", alpha ? json(*alpha) : json()},
            {"lora_targets", arguments_.lora_targets},
            {"dora", arguments_.dora},
            {"weights", arguments_.weights.name}};
  }

  void take_recipe(const json& saved, const CLI::App& app) override {
    if (app.count("--model") == 0) saved.at("model").get_to(arguments_.model);
    saved.at("context").get_to(arguments_.context);
    saved.at("weights").get_to(arguments_.weights.name);
    if (!saved.at("lora").is_null()) arguments_.lora = saved.at("lora");
    if (!saved.at("lora_alpha").is_null()) arguments_.lora_alpha = saved.at("lora_alpha");
    saved.at("lora_targets").get_to(arguments_.lora_targets);
    saved.at("dora").get_to(arguments_.dora);
    if (!fs::exists(arguments_.model)) {
      throw std::runtime_error(arguments_.model +
                               " is gone: give the model's new place with --model");
    }
  }

  void prepare(const CLI::App& app) override {
    const auto& model = arguments_.model;
    const auto& out = arguments_.run.out;
    if (model.empty()) {
      throw std::runtime_error("give a folder in Hugging Face's format with --model");
    }
    if (arguments_.run.text.empty())
      throw std::runtime_error("give the text to train on with --text");
    if (fs::exists(out + "/config.json")) {
      throw std::runtime_error(out + " holds a model already: give another folder with --out");
    }
    if (fs::exists(out + "/adapter_config.json")) {
      throw std::runtime_error(out + " holds an adapter already: give another folder with --out");
    }
    check_lora_options(arguments_);
    const auto most = heed::examples::published_context(model);
    if (app.count("--context") == 0) arguments_.context = std::min(arguments_.context, most);
    if (arguments_.context > most) {
      throw std::runtime_error(fmt::format("--context ({}) must be at most {}, as the model's",
                                           arguments_.context, most));
    }
  }

  uint64_t base_fingerprint() const override {
    return arguments_.lora ? heed::examples::fingerprint_of_weights(arguments_.model) : 0;
  }

  heed::examples::TokenCorpus read_text(const std::string& path) override {
    const auto codec = heed::examples::published_codec(arguments_.model);
    if (!codec) {
      throw std::runtime_error(arguments_.model +
                               " has no tokenizer.json, which --text needs: save the model's "
                               "tokenizer there from Python");
    }
    return encode(heed::examples::read_corpus(path), *codec);
  }

  heed::examples::TrainedModel model() const override {
    const auto make = [this] {
      // Autocast keeps the parameters in float32, in which small steps are not lost.
      const auto options = heed::PretrainedOptions()
                               .dtype(at::kFloat)
                               .head(true)
                               .weights(arguments_.weights.chosen());
      auto model = heed::load_pretrained(arguments_.model, options);
      model->stack->options.checkpointing(arguments_.checkpointing);
      if (const auto rank = arguments_.lora) {
        heed::add_adapter(*model, lora_options(arguments_, *rank));
      }
      if (arguments_.run.device == "cpu") check_memory(*model);
      return model;
    };
    return {make, arguments_.context, "tokens", heed::examples::LossUnit::nats_per_token,
            /*knows_something=*/true};
  }

  void write_model(const heed::Decoder& model, double /*loss*/,
                   const heed::examples::LossHistory& history) override {
    const auto& out = arguments_.run.out;
    if (arguments_.lora) {
      heed::save_adapter(*model, out, heed::AdapterOptions().source(arguments_.model));
    } else {
      heed::examples::copy_companions(arguments_.model, out);
      heed::save_pretrained(model, out, arguments_.model);
    }
    const auto before = history.held_out.front().second, after = history.held_out.back().second;
    fmt::print("wrote the {} and its losses to {}\n", arguments_.lora ? "adapter" : "model", out);
    fmt::print(
        "held out: loss {:.3f} before, {:.3f} after; perplexity {:.4g} before, {:.4g} after\n",
        before, after, std::exp(before), std::exp(after));
  }

 private:
  Arguments& arguments_;
};

}  // namespace

int main(int argc, char** argv) {
  heed::reuse_memory();
  Arguments arguments;
  arguments.run.out = "finetuned";
  arguments.run.evaluate_every = 50;
  auto& training = arguments.run.training;
  training.steps = 200;
  training.batch_size = 4;
  training.learning_rate = 5e-5;
  training.warm_up = 20;
  training.weight_decay = 0.01;
  heed::examples::CommandLine app(
      "Trains a language model in Hugging Face's format further, on a text, and evaluates it on a\n"
      "tenth of the text that it is not trained on. Writes it, in float32, in the same format;\n"
      "with --lora the adapter alone, in the format of Hugging Face's PEFT.\n"
      "Trains in one process.",
      "finetune");
  app.folder("--model", arguments.model,
             "a folder in Hugging Face's format: config.json, its weights and tokenizer.json");
  heed::examples::add_run_options(app, arguments.run,
                                  "a file, or a folder with all files below it");
  app.whole_number("--context", arguments.context,
                   "tokens that the model sees at once; less if it cannot see as many", 1);
  app.add_flag("--checkpointing", arguments.checkpointing,
               "compute each block twice, which takes less memory; the result is the same");
  app.whole_number(
      "--lora", arguments.lora,
      "train an adapter of this rank in place of the weights, which needs less memory; "
      "generate and serve take it with --adapter",
      1);
  app.add("--lora-alpha", arguments.lora_alpha,
          "the adapter is multiplied by this / its rank; twice the rank by default",
          heed::examples::above_zero());
  const CLI::Validator any([](const std::string&) { return std::string(); }, "");
  app.add("--lora-targets", arguments.lora_targets,
          "the Linears that are adapted, such as fc_q,fc_v; by default all but the head", any);
  app.add_flag("--dora", arguments.dora,
               "train the lengths of the adapted weights' rows too, as DoRA does")
      ->check(any);
  heed::examples::add_weights_option(app, arguments.weights);
  return app.run(argc, argv, [&] {
    Finetune task(arguments);
    const auto team = heed::examples::make_team_of_one();
    return run_training(task, arguments.run, app, *team);
  });
}
