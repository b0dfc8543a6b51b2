// SPDX-License-Identifier: BSD-3-Clause
// Trains a classifier of handwritten digits with attention over each image's rows or patches.
#include <ATen/Functions.h>
#include <fmt/core.h>
#include <heed/fused_adamw.h>
#include <heed/memory.h>
#include <heed/weights.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>

#include "digits/digit_classifier.h"
#include "support/checks.h"
#include "support/command_line.h"
#include "support/digits.h"
#include "support/files.h"
#include "support/heat_map.h"
#include "support/progress.h"
#include "support/threads.h"

namespace {

using heed::examples::DigitClassifier;
using heed::examples::Digits;

struct Arguments {
  std::string data;
  std::string attention = "multi_head";
  int64_t epochs = 20;
  bool shift = false;
  int64_t batch_size = 32;
  double learning_rate = 3e-3;
  uint64_t seed = 0;
  std::string device = "cpu";
  std::string heat_map;
  int64_t digit = 0;
  std::string save;
};

/// The percentage of images for which the correct digit has the highest score. Throws
/// std::runtime_error when the loss is not finite.
double accuracy(DigitClassifier& model, const Digits& digits) {
  torch::NoGradGuard no_grad;
  model.eval();
  const auto scores = model.forward(digits.images);
  heed::examples::check_loss(at::cross_entropy_loss(scores, digits.labels).item<double>());
  const auto right = scores.argmax(1).eq(digits.labels);
  return 100 * right.to(at::kDouble).mean().item<double>();
}

/// Moves each image at random by up to one pixel in each direction: [B, 8, 8] to [B, 8, 8].
at::Tensor shifted(const at::Tensor& images) {
  const auto count = images.size(0), side = images.size(1);
  const auto whole = at::device(images.device()).dtype(at::kLong);
  const auto places = at::arange(side, whole);
  const auto rows = at::randint(3, {count, 1}, whole) + places;  // [B, 8]
  const auto columns = at::randint(3, {count, 1}, whole) + places;
  return at::constant_pad_nd(images, {1, 1, 1, 1})
      .index({at::arange(count, whole).view({-1, 1, 1}), rows.unsqueeze(2), columns.unsqueeze(1)});
}

/// Trains on one batch and returns its mean loss.
double train_batch(DigitClassifier& model, heed::FusedAdamW& optimizer, const Digits& batch) {
  optimizer.zero_grad();
  const auto loss = at::cross_entropy_loss(model.forward(batch.images), batch.labels);
  loss.backward();
  optimizer.step();
  const auto value = loss.item<double>();
  heed::examples::check_loss(value);
  return value;
}

void train(DigitClassifier& model, const Digits& training, const Digits& held_out,
           const Arguments& arguments) {
  heed::FusedAdamW optimizer(model.parameters(), arguments.learning_rate);
  const auto batches = (training.size() + arguments.batch_size - 1) / arguments.batch_size;
  heed::examples::Progress progress(arguments.epochs * batches);
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
      const auto images = training.images.index({rows});
      const Digits batch{arguments.shift ? shifted(images) : images, training.labels.index({rows})};
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

/// Draws an image and, beside it, which parts of it the model attends to.
void draw_heat_map(DigitClassifier& model, const at::Tensor& image, int64_t digit,
                   const std::string& path) {
  torch::NoGradGuard no_grad;
  model.eval();
  const auto maps = model.attention_maps(image.unsqueeze(0));  // [1, H, 8, 8]
  heed::examples::HeatMapOptions options;
  options.query_name = model.map_rows();
  options.key_name = model.map_columns();
  options.query_labels = options.key_labels = {"1", "2", "3", "4", "5", "6", "7", "8"};
  options.picture = image;
  options.picture_title = "digit " + std::to_string(digit);
  heed::examples::write_heat_map(path, maps[0], options);
}

int run(const Arguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  heed::examples::use_one_thread();
  // A bad argument ends the program before the training, not after it.
  heed::examples::check_device(arguments.device);
  heed::examples::check_writable(arguments.heat_map);
  heed::examples::check_writable(arguments.save);
  const at::Device device(arguments.device);
  const auto digits = heed::examples::read_digits(arguments.data).to(device);
  const auto [training, held_out] = heed::examples::hold_out_fifth(digits);
  at::Tensor drawn;
  if (!arguments.heat_map.empty()) {
    drawn = held_out.images[first_of(held_out, arguments.digit)];
  }

  torch::manual_seed(arguments.seed);
  const auto model = heed::examples::make_digit_classifier(arguments.attention);
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
    heed::save_weights(*model, arguments.save,
                       heed::SaveOptions().format(heed::WeightFormat::torchscript));
    fmt::print("wrote the model to {}\n", arguments.save);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("held-out accuracy: {:.1f} % trained, {:.1f} % untrained ({:.1f} s)\n", trained,
             untrained, seconds.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  heed::reuse_memory();
  Arguments arguments;
  heed::examples::CommandLine app(
      "Trains a classifier of handwritten digits with attention over each image's rows or\n"
      "patches.",
      "train_digits");
  app.file("--data", arguments.data,
           "the images, a file that examples/digits/export_digits.py wrote")
      ->required();
  app.choice("--attention", arguments.attention,
             "the attention over an image's rows, or a vision transformer over its patches",
             {"attention", "attention_v1", "multi_head", "group_query", "vision_transformer"});
  app.whole_number("--epochs", arguments.epochs, "number of passes over the training images", 1);
  app.add_flag("--shift", arguments.shift,
               "move training images at random by up to one pixel, for more variety");
  app.whole_number("--batch-size", arguments.batch_size, "number of images in each step", 1);
  app.add("--learning-rate", arguments.learning_rate, "AdamW's learning rate at the start",
          heed::examples::learning_rate());
  app.add("--seed", arguments.seed, "the same seed gives the same numbers", heed::examples::seed());
  app.device(arguments.device, "where to train");
  app.file("--heat-map", arguments.heat_map,
           "draw a held-out image and its attention weights, as PNG");
  app.whole_number("--digit", arguments.digit, "which digit to draw", 0, 9);
  app.file("--save", arguments.save, "write the trained model; torch::load reads it");
  return app.run(argc, argv, [&] { return run(arguments); });
}
