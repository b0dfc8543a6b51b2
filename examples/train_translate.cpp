// SPDX-License-Identifier: BSD-3-Clause
// Trains an encoder-decoder model to translate dates in words to ISO dates.
#include <ATen/Functions.h>
#include <fmt/core.h>
#include <heed/autocast.h>
#include <heed/fused_adamw.h>
#include <heed/memory.h>
#include <heed/weights.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/checks.h"
#include "support/command_line.h"
#include "support/files.h"
#include "support/heat_map.h"
#include "support/progress.h"
#include "support/threads.h"
#include "translate/dates.h"
#include "translate/translator.h"

namespace {

using heed::examples::Date;
using heed::examples::to_texts;
using heed::examples::to_tokens;
using heed::examples::Translator;

constexpr int64_t kMaxLength = 12;   // tokens of an ISO date, with those that begin and end it
constexpr int64_t kMilestones = 10;  // how often held-out dates are translated
constexpr size_t kGlance = 250;      // number of held-out dates at a milestone
constexpr double kWarmUp = 0.05;     // as a share of all steps
constexpr double kMaxNorm = 1.0;     // largest norm of the gradients
constexpr size_t kLongestDate = 64;  // characters for which a heat map has room
constexpr int kCell = 24;            // pixels of a heat map's cell: room for a letter

struct Arguments {
  int64_t steps = 1500;
  int64_t batch_size = 64;
  double learning_rate = 2e-3;
  size_t styles = heed::examples::date_styles();
  uint64_t seed = 0;
  std::string device = "cpu";
  std::string dtype = "float32";
  std::string date;
  std::string heat_map;
  std::string save;
  std::string load;
};

/// Dates in words, and the same dates in ISO format.
struct Pairs {
  std::vector<std::string> words, iso;

  size_t size() const { return words.size(); }
};

void add(Pairs& pairs, const Date& date, size_t styles, std::mt19937_64& random) {
  pairs.words.push_back(in_words(date, styles, random));
  pairs.iso.push_back(date.iso());
}

/// Random dates from the training days.
Pairs draw_batch(const std::vector<Date>& dates, const Arguments& arguments,
                 std::mt19937_64& random) {
  Pairs batch;
  for (int64_t i = 0; i < arguments.batch_size; ++i) {
    add(batch, dates[random() % dates.size()], arguments.styles, random);
  }
  return batch;
}

/// Every held-out day once, in a random order that does not depend on the seed of the training.
Pairs make_held_out(std::vector<Date> dates, size_t styles) {
  std::mt19937_64 random(0);
  std::shuffle(dates.begin(), dates.end(), random);
  Pairs pairs;
  for (const auto& date : dates) add(pairs, date, styles, random);
  return pairs;
}

std::vector<std::string> translate(Translator& model, const std::vector<std::string>& words,
                                   at::Device device) {
  model->eval();
  return to_texts(model->translate(to_tokens(words).to(device), kMaxLength));
}

/// The percentage of the first `count` pairs whose translation is correct in every character.
double exact_match(Translator& model, const Pairs& pairs, size_t count, at::Device device) {
  constexpr size_t kBatch = 250;
  count = std::min(count, pairs.size());
  size_t right = 0;
  for (size_t begin = 0; begin < count; begin += kBatch) {
    const auto end = std::min(begin + kBatch, count);
    const auto words = pairs.words.begin();
    const auto translated = translate(
        model, {words + static_cast<int64_t>(begin), words + static_cast<int64_t>(end)}, device);
    for (size_t i = begin; i < end; ++i) right += translated[i - begin] == pairs.iso[i] ? 1 : 0;
  }
  return 100 * static_cast<double>(right) / static_cast<double>(count);
}

/// The factor on the learning rate: linear warm-up, then cosine decay to 0.
double schedule(int64_t step, int64_t steps) {
  const auto done = static_cast<double>(step) / static_cast<double>(steps);
  if (done < kWarmUp)
    return static_cast<double>(step + 1) / (kWarmUp * static_cast<double>(steps) + 1);
  return (1 + std::cos(M_PI * (done - kWarmUp) / (1 - kWarmUp))) / 2;
}

/// The mean loss of a batch.
at::Tensor loss_of(Translator& model, const at::Tensor& source, const at::Tensor& target,
                   at::ScalarType dtype) {
  const heed::Autocast autocast(source.device().type(), dtype);
  const auto scores = model->forward(source, target.slice(1, 0, -1));  // [B, L - 1, V]
  return at::cross_entropy_loss(scores.flatten(0, 1), target.slice(1, 1).flatten(), {},
                                at::Reduction::Mean, /*ignore_index=*/heed::examples::kPadding);
}

/// Trains on one batch and returns its mean loss.
double train_batch(Translator& model, heed::FusedAdamW& optimizer, const at::Tensor& source,
                   const at::Tensor& target, at::ScalarType dtype) {
  optimizer.zero_grad();
  const auto loss = loss_of(model, source, target, dtype);
  loss.backward();
  optimizer.step_clipped(kMaxNorm);
  const auto value = loss.item<double>();
  heed::examples::check_loss(value);
  return value;
}

/// Throws std::runtime_error when the loss of held-out dates is not finite. The loss of the last
/// step cannot tell this, because it was computed before the weights changed.
void check_trained(Translator& model, const Pairs& held_out, at::Device device) {
  const at::NoGradGuard no_grad;
  model->eval();
  const auto source = to_tokens({held_out.words.begin(), held_out.words.begin() + kGlance});
  const auto target = to_tokens({held_out.iso.begin(), held_out.iso.begin() + kGlance});
  heed::examples::check_loss(
      loss_of(model, source.to(device), target.to(device), at::kFloat).item<double>());
}

void train(Translator& model, const std::vector<Date>& dates, const Pairs& held_out,
           const Arguments& arguments) {
  const at::Device device(arguments.device);
  const auto dtype = arguments.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  std::mt19937_64 random(arguments.seed);
  heed::FusedAdamW optimizer(model->parameters(), arguments.learning_rate);
  heed::examples::Progress progress(arguments.steps);
  int64_t tokens = 0;
  double right = 0, loss = 0;
  for (int64_t step = 1; step <= arguments.steps; ++step) {
    optimizer.param_groups()[0].options().set_lr(arguments.learning_rate *
                                                 schedule(step - 1, arguments.steps));
    const auto batch = draw_batch(dates, arguments, random);
    const auto source = to_tokens(batch.words), target = to_tokens(batch.iso);
    tokens += source.count_nonzero().item<int64_t>() + target.count_nonzero().item<int64_t>();
    model->train();
    loss = train_batch(model, optimizer, source.to(device), target.to(device), dtype);
    const auto status = [&] {
      return fmt::format("step {}/{}  loss {:.4f}  exact match {:.1f} %  {:.0f} tokens/s", step,
                         arguments.steps, loss, right,
                         static_cast<double>(tokens) / progress.seconds());
    };
    progress.advance(status());
    // The last milestone is the last step.
    if (step * kMilestones / arguments.steps > (step - 1) * kMilestones / arguments.steps) {
      right = exact_match(model, held_out, kGlance, device);
      progress.milestone(status());
    }
  }
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> result;
  for (const char c : text) result.emplace_back(1, c);
  return result;
}

/// Draws which input characters each block attended to for each output character, as the mean of
/// its heads.
void draw_heat_map(Translator& model, const std::string& words, const std::string& translated,
                   const Arguments& arguments) {
  model->eval();
  const at::Device device(arguments.device);
  const auto source = to_tokens({words}).to(device), target = to_tokens({translated}).to(device);
  // Row i predicts the character after token i; kEnd comes after the last character.
  const auto weights =
      model->cross_attention_weights(source, target)[0].mean(1).slice(1, 0, -2);  // [N, L, S]
  heed::examples::HeatMapOptions options;
  for (int64_t i = 0; i < weights.size(0); ++i) {
    options.titles.push_back("block " + std::to_string(i + 1));
  }
  options.query_labels = characters(translated);
  options.key_labels = characters('<' + words + '>');  // with marks for its beginning and end
  options.query_name = "output";
  options.key_name = "input";
  options.panel = kCell * static_cast<int>(std::max(weights.size(1), weights.size(2)));
  heed::examples::write_heat_map(arguments.heat_map, weights, options);
}

int run(const Arguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  heed::examples::use_one_thread();
  // A bad argument ends the program before the training, not after it.
  heed::examples::check_device(arguments.device);
  to_tokens({arguments.date});
  if (arguments.date.size() > kLongestDate) {
    throw std::runtime_error(fmt::format("--date ({} characters) must have at most {}",
                                         arguments.date.size(), kLongestDate));
  }
  heed::examples::check_writable(arguments.heat_map);
  heed::examples::check_writable(arguments.save);
  const at::Device device(arguments.device);
  const auto calendar = heed::examples::make_calendar();
  const auto held_out = make_held_out(calendar.held_out, arguments.styles);

  torch::manual_seed(arguments.seed);
  Translator model;
  model->to(device);
  if (!arguments.load.empty()) heed::load_weights(*model, arguments.load);
  fmt::print("{} days to train on, {} held out\n", calendar.training.size(), held_out.size());
  train(model, calendar.training, held_out, arguments);
  check_trained(model, held_out, device);
  const auto right = exact_match(model, held_out, held_out.size(), device);

  const auto words = arguments.date.empty() ? held_out.words.front() : arguments.date;
  const auto translated = translate(model, {words}, device).front();
  if (!arguments.heat_map.empty()) {
    draw_heat_map(model, words, translated, arguments);
    fmt::print("wrote the cross-attention weights to {}\n", arguments.heat_map);
  }
  if (!arguments.save.empty()) {
    heed::save_weights(*model, arguments.save);
    fmt::print("wrote the weights to {}\n", arguments.save);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("{} -> {}\n", words, translated);
  fmt::print("exact match: {:.1f} % of the held-out dates ({:.1f} s)\n", right, seconds.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  heed::reuse_memory();
  Arguments arguments;
  heed::examples::CommandLine app(
      "Trains an encoder-decoder model to translate dates in words to ISO dates.",
      "train_translate");
  app.whole_number("--steps", arguments.steps, "number of batches to train on; 0 only translates",
                   0);
  app.whole_number("--batch-size", arguments.batch_size, "number of dates in each step", 1);
  app.add("--learning-rate", arguments.learning_rate, "AdamW's highest learning rate",
          heed::examples::learning_rate());
  app.whole_number("--styles", arguments.styles,
                   "number of ways to write a date; fewer are easier to learn", 1,
                   static_cast<int64_t>(heed::examples::date_styles()));
  app.add("--seed", arguments.seed, "the same seed gives the same numbers", heed::examples::seed());
  app.device(arguments.device, "where to train");
  app.choice("--dtype", arguments.dtype, "dtype of the matrix products in training",
             {"float32", "bfloat16"});
  app.add_option("--date", arguments.date, "a date to translate, such as 'Tue 3 Mar 1998'")
      ->type_name("TEXT");
  app.file("--heat-map", arguments.heat_map,
           "draw, as PNG, which input characters each output character attends to; the input "
           "is --date or a held-out date");
  app.file("--save", arguments.save, "write the trained weights, as safetensors");
  app.file("--load", arguments.load, "start from weights that --save wrote");
  return app.run(argc, argv, [&] { return run(arguments); });
}
