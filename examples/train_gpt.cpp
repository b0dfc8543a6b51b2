// SPDX-License-Identifier: BSD-3-Clause
// Trains a small GPT on a text, character by character.
#include <fmt/core.h>
#include <heed/memory.h>

#include <string>

#include "language/corpus.h"
#include "language/gpt.h"
#include "language/ngram.h"
#include "language/team.h"
#include "language/training_run.h"
#include "support/command_line.h"

namespace {

using heed::examples::bits;
using nlohmann::json;

constexpr int kOrder = 5;  // n of the n-gram model

struct Arguments {
  heed::examples::GptOptions model;
  double dropout = 0.0;
  heed::examples::RunOptions run;
  heed::examples::TeamSizes team;
};

class TrainGpt : public heed::examples::TrainingTask {
 public:
  explicit TrainGpt(Arguments& arguments) : arguments_(arguments) {}

  json recipe() const override {
    json options = arguments_.model;
    options["dropout"] = arguments_.dropout;
    return options;
  }

  void take_recipe(const json& saved, const CLI::App& /*app*/) override {
    saved.get_to(arguments_.model);
    saved.at("dropout").get_to(arguments_.dropout);
    check_file(arguments_.model, arguments_.run.checkpoint());
  }

  heed::examples::TokenCorpus read_text(const std::string& path) override {
    corpus_ = path.empty() ? heed::examples::read_own_sources(HEED_SOURCE_DIR)
                           : heed::examples::read_corpus(path);
    return encode(corpus_, *heed::examples::byte_codec());
  }

  heed::examples::TrainedModel model() const override {
    const auto make = [this] {
      // On the CPU: parameters, gradients and two means of the optimizer.
      if (arguments_.run.device == "cpu") check_memory(arguments_.model, 4);
      return make_gpt(arguments_.model, arguments_.dropout);
    };
    return {make, arguments_.model.context, "characters"};
  }

  void write_model(const heed::Decoder& model, double loss,
                   const heed::examples::LossHistory& /*history*/) override {
    save_gpt(model, arguments_.model, arguments_.run.out);
    const auto counted =
        heed::examples::NgramModel(heed::examples::joined(corpus_.training), kOrder)
            .bits_per_character(heed::examples::joined(corpus_.held_out));
    fmt::print("wrote the model and its losses to {}\n", arguments_.run.out);
    fmt::print("held out: {:.3f} bits per character (loss {:.3f}); a {}-gram model: {:.3f}\n",
               bits(loss), loss, kOrder, counted);
  }

 private:
  Arguments& arguments_;
  heed::examples::Corpus corpus_;
};

}  // namespace

int main(int argc, char** argv) {
  heed::reuse_memory();
  Arguments arguments;
  arguments.run.out = "gpt";
  heed::examples::CommandLine app(
      "Trains a small GPT on a text, character by character, and evaluates it on a tenth of the\n"
      "text that it is not trained on. examples/generate writes text with the model.\n"
      "Several processes: torchrun --no-python --standalone --nproc-per-node 2 train_gpt ...",
      "train_gpt");
  heed::examples::add_run_options(
      app, arguments.run,
      "a file, or a folder with all files below it; by default heed's own sources");
  auto& model = arguments.model;
  app.whole_number("--layers", model.layers, "number of transformer blocks", 1);
  app.whole_number("--width", model.width, "size of a token's vector", 1);
  app.whole_number("--heads", model.heads, "number of query heads", 1);
  app.whole_number("--groups", model.groups, "number of key/value heads", 1);
  app.whole_number("--context", model.context, "number of characters that the model sees at once",
                   1);
  app.add("--dropout", arguments.dropout, "dropout of embeddings, attention weights and layers",
          heed::examples::share());
  auto& sizes = arguments.team;
  app.whole_number("--data-parallel", sizes.data,
                   "processes that share each batch; 0 means all that torchrun has started", 0);
  app.whole_number("--context-parallel", sizes.context, "processes that share each sequence", 1);
  app.whole_number("--tensor-parallel", sizes.tensor, "processes that share the weights", 1);
  return app.run(argc, argv, [&] {
    try {
      TrainGpt task(arguments);
      const auto team = heed::examples::make_team(arguments.team);
      return run_training(task, arguments.run, app, *team);
    } catch (const heed::examples::OtherFailed&) {
      return 1;
    }
  });
}
