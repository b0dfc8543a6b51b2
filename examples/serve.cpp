// SPDX-License-Identifier: BSD-3-Clause
// Continues many prompts at once with a language model.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <istream>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "language/batch_generator.h"
#include "language/generation_config.h"
#include "language/json_request.h"
#include "language/ordered_answers.h"
#include "language/published.h"
#include "language/sampling_arguments.h"
#include "language/weights_argument.h"
#include "support/checks.h"
#include "support/command_line.h"
#include "support/files.h"
#include "support/interrupt.h"
#include "support/progress.h"

namespace {

using heed::examples::BatchGenerator;
using heed::examples::Prompt;

struct Arguments {
  std::string model = "gpt", adapter;
  std::string prompts;
  bool json = false;
  std::optional<int64_t> tokens;
  heed::examples::BatchOptions batch;
  heed::examples::SamplingArguments sampling;
  std::string device = "cpu";
  heed::examples::WeightsArgument weights;
};

constexpr size_t kLongestLine = size_t{1} << 22, kMostPrompts = 1'000'000;
constexpr int64_t kMostTokens = 1'000'000'000;

/// The prompts of a file: those that can be answered, and how many there are with the others.
struct Prompts {
  std::vector<Prompt> good;
  size_t count = 0;

  /// Calls use(prompt) for each of the good ones. Where it throws, the prompt is good no longer,
  /// which is told with its number.
  template <typename Use>
  void keep_if(const Use& use) {
    std::vector<Prompt> kept;
    for (auto& prompt : good) {
      try {
        use(prompt);
        kept.push_back(std::move(prompt));
      } catch (const std::runtime_error& error) {
        refuse(prompt.number, error.what());
      }
    }
    good = std::move(kept);
  }

  static void refuse(size_t number, const std::string& reason) {
    fmt::print(stderr, "serve: prompt {}: {}\n", number, reason);
  }
};

/// The next line, without its end; nothing of one that is longer than `buffer` has room for.
std::optional<std::string> read_line(std::istream& file, std::vector<char>& buffer) {
  file.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  auto count = static_cast<size_t>(file.gcount());
  if (file.fail() && count > 0) {
    file.clear();
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    return std::nullopt;
  }
  if (count > 0 && !file.eof()) --count;  // the end
  return std::string(buffer.data(), count);
}

/// The lines of a file, without empty ones.
Prompts read_prompts(const std::string& path) {
  auto file = heed::examples::open_input(path);
  std::vector<char> buffer(kLongestLine + 1);
  Prompts prompts;
  while (file) {
    auto line = read_line(file, buffer);
    if (line && line->empty()) continue;
    if (++prompts.count > kMostPrompts) {
      throw std::runtime_error(fmt::format("{} has more than {} prompts", path, kMostPrompts));
    }
    if (line) {
      prompts.good.push_back({prompts.count, *std::move(line)});
    } else {
      Prompts::refuse(prompts.count, fmt::format("it has more than {} bytes", kLongestLine));
    }
  }
  if (prompts.count == 0) throw std::runtime_error(path + " has no prompts");
  return prompts;
}

using Requests = std::map<size_t, heed::examples::GenerationRequest>;  // by their numbers

/// The request of a line, which may have options of its own; seeds count up from the program's.
heed::examples::GenerationRequest request_of(const Prompt& line, const Arguments& arguments,
                                             const heed::examples::LanguageModel& model) {
  heed::examples::JsonRequest asked{line.text, {}, {}, arguments.sampling};
  if (arguments.json) {
    asked = heed::examples::read_json_request(line.text, arguments.sampling);
  }
  const auto most = std::min(model.defaults.tokens.value_or(200), kMostTokens);
  heed::examples::GenerationRequest request;
  request.prompt = asked.prompt;
  request.tokens = asked.tokens.value_or(arguments.tokens.value_or(most));
  request.stops = asked.sampling.stops;
  request.sampling = asked.sampling.chosen(model);
  request.seed = asked.seed.value_or(arguments.sampling.seed + line.number - 1);
  request.raw = asked.sampling.raw;
  return request;
}

/// The requests of the lines whose prompts the model can read; the others are refused.
Requests read_requests(Prompts& prompts, const Arguments& arguments,
                       const heed::examples::LanguageModel& model) {
  Requests requests;
  prompts.keep_if([&](const Prompt& line) {
    auto request = request_of(line, arguments, model);
    static_cast<void>(model.window_of(model.codec->tokens_of(request.prompt, request.raw)));
    requests.emplace(line.number, std::move(request));
  });
  return requests;
}

/// Tokens of a prompt and its answer.
int64_t longest_of(const Requests& requests, const heed::examples::LanguageModel& model) {
  int64_t longest = 1;
  for (const auto& [number, request] : requests) {
    const auto prompt = model.window_of(model.codec->tokens_of(request.prompt, request.raw));
    longest = std::max(longest, static_cast<int64_t>(prompt.size()) + request.tokens);
  }
  return longest;
}

struct Done {
  int64_t tokens = 0;
  size_t answers = 0;
};

/// Prints the answers while they are made, until all are whole or Ctrl-C.
Done serve(BatchGenerator& generator, const std::vector<Prompt>& prompts, std::vector<int64_t> left,
           const heed::examples::Interrupt& interrupt, heed::examples::Progress& progress) {
  heed::examples::OrderedAnswers answers(prompts);
  Done done;
  while (!generator.done() && !interrupt.asked()) {
    int64_t steps = 0;  // with the tokens that an answer does not need
    for (const auto& token : generator.step()) {
      answers.append(token.request, token.text, token.last);
      ++done.tokens;
      if (token.last) ++done.answers;
      steps += token.last ? left[token.request] : 1;
      --left[token.request];
    }
    const auto lines = answers.take_lines();
    if (!lines.empty()) {
      progress.hide();
      heed::examples::print_now(lines);
    }
    progress.advance(fmt::format("{} running  {} waiting  {} pages free  {:.0f} tokens/s",
                                 generator.running(), generator.waiting(), generator.pages_free(),
                                 static_cast<double>(done.tokens) / progress.seconds()),
                     steps);
  }
  progress.hide();
  heed::examples::print_now(answers.take_rest());
  return done;
}

int run(Arguments arguments) {
  heed::examples::check_device(arguments.device);
  auto prompts = read_prompts(arguments.prompts);
  if (heed::examples::is_encoder_decoder(arguments.model)) {
    throw std::runtime_error(arguments.model +
                             " is an encoder-decoder, whose texts generate writes, one at a time");
  }
  auto model = heed::examples::load_language_model(
      arguments.model, heed::PretrainedOptions().weights(arguments.weights.chosen()),
      arguments.adapter);
  if (!model.codec) throw std::runtime_error(arguments.model + " has no tokenizer.json");
  model.model->to(at::Device(arguments.device));
  const auto note = heed::examples::left_out(arguments.model, arguments.sampling.chosen(model));
  if (!note.empty()) fmt::print(stderr, "serve: {}\n", note);
  const auto requests = read_requests(prompts, arguments, model);
  const auto at_once = std::max<size_t>(prompts.good.size(), 1);
  arguments.batch.at_once = std::min(arguments.batch.at_once, static_cast<int64_t>(at_once));
  arguments.batch.longest = longest_of(requests, model);
  BatchGenerator generator(model, arguments.batch);
  std::vector<int64_t> left;  // tokens of each answer, at most
  int64_t all = 0;
  prompts.keep_if([&](Prompt& prompt) {
    const auto& request = requests.at(prompt.number);
    generator.add(request);
    prompt.text = request.prompt;
    left.push_back(request.tokens);
    all += request.tokens;
  });
  const heed::examples::Interrupt interrupt;
  heed::examples::Progress progress(all, 0, stderr);
  const auto done = serve(generator, prompts.good, std::move(left), interrupt, progress);
  const auto seconds = progress.seconds();
  fmt::print(stderr, "{} of {} answers, {} tokens in {:.2f} s: {:.0f} tokens/s, {} preemptions\n",
             done.answers, prompts.count, done.tokens, seconds,
             static_cast<double>(done.tokens) / seconds, generator.preemptions());
  if (!generator.done()) return interrupt.exit_status();
  return prompts.good.size() == prompts.count ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  heed::examples::CommandLine app(
      "Continues many prompts at once with a model that train_gpt or finetune trained, or with a\n"
      "published one. Prints the answers in the order of their prompts. The seed of the first is\n"
      "--seed, that of the next one more. A prompt that cannot be answered is told with "
      "its number,\nand makes the exit status 1.\n" +
          heed::examples::about_defaults(),
      "serve", 38);
  auto& batch = arguments.batch;
  app.folder("--model", arguments.model,
             "a folder that train_gpt wrote, or one in Hugging Face's format");
  app.folder(
      "--adapter", arguments.adapter,
      "a folder that finetune --lora or Hugging Face's PEFT wrote, to change --model's answers");
  app.file("--prompts", arguments.prompts, "a file with a prompt on each line")->required();
  app.add_flag("--json", arguments.json,
               "each line is a JSON object, with a \"prompt\" and options of its own: \"tokens\", "
               "\"seed\", \"stop\", \"greedy\", \"raw\", \"temperature\", \"top_k\" and others");
  app.whole_number("--tokens", arguments.tokens,
                   "tokens of an answer, at most; 200, or that of generation_config.json", 1,
                   kMostTokens);
  heed::examples::add_text_options(app, arguments.sampling);
  app.whole_number("--at-once", batch.at_once, "answers that are made at the same time, at most", 1,
                   4096);
  app.whole_number("--pages", batch.pages,
                   "pages of the cache; 0 means as many as --at-once answers can need", 0);
  app.whole_number("--page-size", batch.page_size, "tokens in a page, a multiple of 16", 16);
  heed::examples::add_sampling_options(app, arguments.sampling);
  app.device(arguments.device, "where to compute");
  heed::examples::add_packing_options(app, arguments.weights);
  return app.run(argc, argv, [&] { return run(arguments); });
}
