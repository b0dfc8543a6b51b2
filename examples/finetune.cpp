// Trains a published language model further, on a text.
#include <fmt/core.h>
#include <heed/memory.h>
#include <heed/pretrained.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "language/corpus.h"
#include "language/published.h"
#include "language/team.h"
#include "language/training_run.h"
#include "support/checks.h"
#include "support/command_line.h"
#include "support/distinct_parameters.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Arguments {
  std::string model;
  int64_t context = 256;
  bool checkpointing = false;
  heed::examples::RunOptions run;
};

void check_memory(const heed::DecoderImpl& model) {
  double numbers = 0;
  for (const auto& parameter : heed::examples::distinct_parameters(model))
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
    return {{"model", arguments_.model}, {"context", arguments_.context}};
  }

  void take_recipe(const json& saved, const CLI::App& app) override {
    if (app.count("--model") == 0) saved.at("model").get_to(arguments_.model);
    saved.at("context").get_to(arguments_.context);
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
    const auto most = heed::examples::published_context(model);
    if (app.count("--context") == 0) arguments_.context = std::min(arguments_.context, most);
    if (arguments_.context > most) {
      throw std::runtime_error(fmt::format("--context ({}) must be at most {}, as the model's",
                                           arguments_.context, most));
    }
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
      const auto options = heed::PretrainedOptions().dtype(at::kFloat).head(true);
      auto model = heed::load_pretrained(arguments_.model, options);
      model->stack->options.checkpointing(arguments_.checkpointing);
      if (arguments_.run.device == "cpu") check_memory(*model);
      return model;
    };
    return {make, arguments_.context, "tokens", heed::examples::LossUnit::nats_per_token,
            /*knows_something=*/true};
  }

  void write_model(const heed::Decoder& model, double /*loss*/,
                   const heed::examples::LossHistory& history) override {
    const auto& out = arguments_.run.out;
    heed::examples::copy_companions(arguments_.model, out);
    heed::save_pretrained(model, out, arguments_.model);
    const auto before = history.held_out.front().second, after = history.held_out.back().second;
    fmt::print("wrote the model and its losses to {}\n", out);
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
      "tenth of the text that it is not trained on. Writes it, in float32, in the same format.\n"
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
  return app.run(argc, argv, [&] {
    Finetune task(arguments);
    const auto team = heed::examples::make_team_of_one();
    return run_training(task, arguments.run, app, *team);
  });
}
