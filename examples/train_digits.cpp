// Trains a classifier of handwritten digits: attention over the eight rows of each image.
#include <ATen/Functions.h>
#include <fmt/core.h>
#include <heed/heed.h>
#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "support/digits.h"
#include "support/heat_map.h"
#include "support/output_file.h"
#include "support/progress.h"
#include "support/run_main.h"

namespace {

using heed::examples::Digits;
using heed::examples::Progress;

constexpr int64_t kSide = 8;    // of an image, in pixels
constexpr int64_t kWidth = 64;  // of a token
constexpr int64_t kHeads = 4;
constexpr int64_t kGroups = 2;

struct Arguments {
  std::string data;
  std::string attention = "multi_head";
  int64_t epochs = 20;
  int64_t batch_size = 32;
  double learning_rate = 3e-3;
  uint64_t seed = 0;
  std::string device = "cpu";
  std::string heat_map;
  int64_t digit = 0;
  std::string save;
};

/// A classifier of images, whichever attention it holds.
class DigitClassifier : public torch::nn::Module {
 public:
  /// images [B, 8, 8]; returns scores [B, 10].
  virtual at::Tensor forward(const at::Tensor& images) = 0;

  /// The second block's weights [B, H, 8, 8].
  virtual at::Tensor attention_weights(const at::Tensor& images) = 0;
};

torch::nn::LayerNorm layer_norm() {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
}

/// A pre-norm transformer block: x + attention(norm(x)), then x + mlp(x).
template <typename Attention>
class Block : public torch::nn::Module {
 public:
  template <typename Options>
  explicit Block(const Options& options)
      : attention(register_module("attention", Attention(options))),
        norm(register_module("norm", layer_norm())),
        mlp(register_module("mlp", torch::nn::Sequential(
                                       layer_norm(), torch::nn::Linear(kWidth, 2 * kWidth),
                                       torch::nn::GELU(), torch::nn::Linear(2 * kWidth, kWidth)))) {
  }

  at::Tensor forward(const at::Tensor& input) {
    const auto x = input + attention(norm(input));
    return x + mlp->forward(x);
  }

  /// [B, H, L, L]
  at::Tensor weights(const at::Tensor& x) {
    const auto weights = std::get<1>(attention->forward_with_weights(norm(x)));
    return weights.dim() == 3 ? weights.unsqueeze(1) : weights;  // one head has no head axis
  }

 private:
  Attention attention;
  torch::nn::LayerNorm norm;
  torch::nn::Sequential mlp;
};

/// Rows as tokens, with learned positions -> two blocks -> mean over the rows -> scores.
template <typename Attention>
class RowClassifier : public DigitClassifier {
 public:
  template <typename Options>
  explicit RowClassifier(const Options& options)
      : embed(register_module("embed", torch::nn::Linear(kSide, kWidth))),
        position(register_parameter("position", at::randn({kSide, kWidth}) / 2)),
        first(register_module("first", std::make_shared<Block<Attention>>(options))),
        second(register_module("second", std::make_shared<Block<Attention>>(options))),
        classify(register_module(
            "classify", torch::nn::Sequential(layer_norm(), torch::nn::Linear(kWidth, 10)))) {}

  at::Tensor forward(const at::Tensor& images) override {
    const auto rows = second->forward(first->forward(embed(images) + position));  // [B, 8, kWidth]
    return classify->forward(rows.mean(1));
  }

  at::Tensor attention_weights(const at::Tensor& images) override {
    return second->weights(first->forward(embed(images) + position));
  }

 private:
  torch::nn::Linear embed;
  at::Tensor position;
  std::shared_ptr<Block<Attention>> first, second;
  torch::nn::Sequential classify;
};

std::shared_ptr<DigitClassifier> make_classifier(const std::string& attention) {
  using namespace heed;
  if (attention == "attention") {
    return std::make_shared<RowClassifier<Attention>>(AttentionOptions(kWidth));
  }
  if (attention == "attention_v1") {
    return std::make_shared<RowClassifier<AttentionV1>>(AttentionOptions(kWidth));
  }
  if (attention == "multi_head") {
    return std::make_shared<RowClassifier<MultiHeadAttention>>(
        MultiHeadAttentionOptions(kWidth, kHeads));
  }
  return std::make_shared<RowClassifier<GroupQueryAttention>>(
      GroupQueryAttentionOptions(kWidth, kHeads, kGroups));
}

/// The share of images, in percent, whose highest score is the right digit's.
double accuracy(DigitClassifier& model, const Digits& digits) {
  torch::NoGradGuard no_grad;
  model.eval();
  const auto right = model.forward(digits.images).argmax(1).eq(digits.labels);
  return 100 * right.to(at::kDouble).mean().item<double>();
}

/// Returns the batch's mean loss.
double train_batch(DigitClassifier& model, torch::optim::Optimizer& optimizer,
                   const Digits& batch) {
  optimizer.zero_grad();
  const auto loss = at::cross_entropy_loss(model.forward(batch.images), batch.labels);
  loss.backward();
  optimizer.step();
  const auto value = loss.item<double>();
  if (!std::isfinite(value)) {
    throw std::runtime_error("the loss is no longer finite: try a smaller --learning-rate");
  }
  return value;
}

void train(DigitClassifier& model, const Digits& training, const Digits& held_out,
           const Arguments& arguments) {
  torch::optim::AdamW optimizer(model.parameters(), arguments.learning_rate);
  const auto batches = (training.size() + arguments.batch_size - 1) / arguments.batch_size;
  Progress progress(arguments.epochs * batches);
  auto held_out_accuracy = accuracy(model, held_out);
  for (int64_t epoch = 0; epoch < arguments.epochs; ++epoch) {
    // Cosine decay to nearly 0.
    const auto done = static_cast<double>(epoch) / static_cast<double>(arguments.epochs);
    optimizer.param_groups()[0].options().set_lr(arguments.learning_rate *
                                                 (1 + std::cos(M_PI * done)) / 2);
    double loss_sum = 0;
    int64_t seen = 0;
    const auto status = [&] {
      return fmt::format("epoch {:2}/{}  loss {:.3f}  accuracy {:.1f} %", epoch + 1,
                         arguments.epochs, loss_sum / static_cast<double>(seen), held_out_accuracy);
    };
    model.train();
    const auto order = at::randperm(training.size()).to(training.labels.device());
    for (const auto& rows : order.split(arguments.batch_size)) {
      const Digits batch{training.images.index({rows}), training.labels.index({rows})};
      loss_sum += train_batch(model, optimizer, batch) * static_cast<double>(batch.size());
      seen += batch.size();
      progress.advance(status());
    }
    held_out_accuracy = accuracy(model, held_out);
    progress.milestone(status());
  }
}

/// The index of the first image of `digit`.
int64_t first_of(const Digits& digits, int64_t digit) {
  const auto found = digits.labels.eq(digit).nonzero();  // [N, 1]
  if (found.size(0) == 0) {
    throw std::runtime_error("no held-out image shows a " + std::to_string(digit));
  }
  return found[0].item<int64_t>();
}

/// An image and, beside it, the attention weights of its rows.
void draw_heat_map(DigitClassifier& model, const at::Tensor& image, int64_t digit,
                   const std::string& path) {
  torch::NoGradGuard no_grad;
  model.eval();
  const auto weights = model.attention_weights(image.unsqueeze(0));  // [1, H, 8, 8]
  heed::examples::HeatMapOptions options;
  options.query_name = "query row";
  options.key_name = "key row";
  options.query_labels = options.key_labels = {"1", "2", "3", "4", "5", "6", "7", "8"};
  options.picture = image;
  options.picture_title = "digit " + std::to_string(digit);
  heed::examples::write_heat_map(path, weights[0], options);
}

/// What would fail after the training fails before it.
void check_arguments(const Arguments& arguments) {
  if (arguments.device == "cuda" && !torch::cuda::is_available()) {
    throw std::runtime_error("no CUDA device was found: use --device cpu");
  }
  for (const auto& path : {arguments.heat_map, arguments.save}) {
    if (!path.empty()) heed::examples::check_writable(path);
  }
}

int run(const Arguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  check_arguments(arguments);
  const at::Device device(arguments.device);
  const auto digits = heed::examples::read_digits(arguments.data).to(device);
  const auto [training, held_out] = heed::examples::hold_out_fifth(digits);
  at::Tensor drawn;
  if (!arguments.heat_map.empty()) {
    drawn = held_out.images[first_of(held_out, arguments.digit)];
  }

  torch::manual_seed(arguments.seed);
  const auto model = make_classifier(arguments.attention);
  model->to(device);
  fmt::print("{}: {} images to train on, {} held out\n", arguments.attention, training.size(),
             held_out.size());
  const auto untrained = accuracy(*model, held_out);
  train(*model, training, held_out, arguments);
  const auto trained = accuracy(*model, held_out);

  if (drawn.defined()) {
    draw_heat_map(*model, drawn, arguments.digit, arguments.heat_map);
    fmt::print("wrote the attention weights to {}\n", arguments.heat_map);
  }
  if (!arguments.save.empty()) {
    torch::save(model, arguments.save);
    fmt::print("wrote the model to {}\n", arguments.save);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("held-out accuracy: {:.1f} % trained, {:.1f} % untrained ({:.1f} s)\n", trained,
             untrained, seconds.count());
  return 0;
}

void add_options(CLI::App& app, Arguments& arguments) {
  const CLI::Validator positive(
      [](const std::string& text) {
        return std::strtod(text.c_str(), nullptr) > 0 ? "" : "must be above 0, not " + text;
      },
      "POSITIVE");
  app.add_option("--data", arguments.data, "images, as scripts/export_digits.py writes them")
      ->type_name("FILE")
      ->required();
  app.add_option("--attention", arguments.attention, "the attention to train")
      ->check(CLI::IsMember({"attention", "attention_v1", "multi_head", "group_query"}));
  app.add_option("--epochs", arguments.epochs, "passes over the training images")->check(positive);
  app.add_option("--batch-size", arguments.batch_size, "images in each step")->check(positive);
  app.add_option("--learning-rate", arguments.learning_rate, "of AdamW, at the start")
      ->check(positive);
  app.add_option("--seed", arguments.seed, "the same seed gives the same numbers");
  app.add_option("--device", arguments.device, "where to train")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--heat-map", arguments.heat_map,
                 "draw a held-out image and the attention weights of its rows, as PNG")
      ->type_name("FILE");
  app.add_option("--digit", arguments.digit, "which digit to draw")
      ->check(CLI::Range(0, 9).description("0-9"));
  app.add_option("--save", arguments.save, "write the trained model with torch::save")
      ->type_name("FILE");
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Trains a classifier of handwritten digits: attention over the rows of each image.",
               "train_digits");
  app.option_defaults()->always_capture_default();
  app.get_formatter()->column_width(34);
  add_options(app, arguments);
  CLI11_PARSE(app, argc, argv);
  return heed::examples::run_main("train_digits", [&] { return run(arguments); });
}
