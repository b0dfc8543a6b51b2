// SPDX-License-Identifier: BSD-3-Clause
// Writes text with a language model.
#include <fmt/core.h>
#include <heed/beam_search.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "language/generation_config.h"
#include "language/sampling_arguments.h"
#include "language/text_generator.h"
#include "language/weights_argument.h"
#include "support/checks.h"
#include "support/command_line.h"
#include "text/stop_strings.h"

namespace {

using heed::examples::LanguageModel;
using heed::examples::TextGenerator;

struct Arguments {
  std::string model = "gpt", adapter;
  std::string prompt, tokens;
  std::optional<int64_t> count, beams;
  std::optional<double> length_penalty;
  std::optional<std::string> early_stopping;
  heed::examples::SamplingArguments sampling;
  std::string device = "cpu";
  std::string dtype = "auto";
  heed::examples::WeightsArgument weights;
};

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  return std::nullopt;
}

/// The codec that reads the prompt and writes the answer: that of numbers with --tokens, and where
/// there is no tokenizer.
std::shared_ptr<const heed::examples::Codec> codec_for(const LanguageModel& model,
                                                       const Arguments& arguments) {
  const bool numbers = !arguments.tokens.empty() || (!model.codec && arguments.prompt.empty());
  if (numbers) return heed::examples::number_codec(model.vocabulary());
  if (model.codec) return model.codec;
  throw std::runtime_error(
      arguments.model +
      " has no tokenizer.json, which --prompt needs: give the prompt's token ids with --tokens");
}

/// The end of a generated text.
struct Written {
  int64_t tokens = 0;    ///< how many it has
  bool stopped = false;  ///< at one of the texts of --stop
};

/// Prints the text while it is made: `next()` returns its tokens, and then nothing.
template <typename Next>
Written write_text(const Next& next, const heed::examples::Speller& speller,
                   const std::vector<std::string>& stops, int64_t most) {
  heed::examples::StopStrings until(stops);
  int64_t written = 0;
  for (; written < most && !until.found(); ++written) {
    const std::optional<int64_t> token = next();
    if (!token) break;
    heed::examples::print_now(until.push(speller.push(*token)));
  }
  auto rest = until.push(speller.finish());
  rest += until.finish();
  heed::examples::print_now(rest + '\n');
  return {written, until.found()};
}

/// Why fewer tokens were written than asked for.
std::string why_ended(const Written& written, bool is_full, const LanguageModel& model) {
  if (written.stopped) return "; the text has reached a stop";
  if (!is_full) return "; the text has ended";
  return fmt::format("; the model's context of {} tokens is full", model.context);
}

heed::EarlyStopping early_stopping_of(const LanguageModel& model, const Arguments& arguments) {
  const auto& name = arguments.early_stopping;
  if (!name) return model.defaults.early_stopping;
  if (*name == "never") return heed::EarlyStopping::never;
  return *name == "true" ? heed::EarlyStopping::immediate : heed::EarlyStopping::estimated;
}

/// The search for the likeliest text, if there is one: with as many beams as the command line says,
/// or else the folder, unless one of them chooses single tokens.
std::optional<heed::BeamSearchOptions> search_of(const LanguageModel& model,
                                                 const Arguments& arguments, int64_t most) {
  const auto& sampling = arguments.sampling;
  const bool samples =
      sampling.temperature || sampling.top_k || sampling.top_p || sampling.min_p || sampling.greedy;
  if (arguments.beams && samples) {
    throw std::runtime_error(
        "--beams cannot be combined with --greedy, --temperature, --top-k, --top-p and --min-p: no "
        "token is drawn");
  }
  const auto& defaults = model.defaults;
  const auto beams = arguments.beams.value_or(samples || !defaults.greedy ? 1 : defaults.beams);
  if (!arguments.beams && beams == 1) {
    if (arguments.length_penalty) throw std::runtime_error("--length-penalty needs --beams");
    if (arguments.early_stopping) throw std::runtime_error("--early-stopping needs --beams");
    return std::nullopt;
  }
  return heed::BeamSearchOptions(beams, most)
      .length_penalty(arguments.length_penalty.value_or(defaults.length_penalty))
      .early_stopping(early_stopping_of(model, arguments))
      .end_tokens(model.ends)
      .first_token(defaults.first_token)
      .last_token(defaults.last_token);
}

/// The likeliest of the texts that beams find, without the token that ends it.
std::vector<int64_t> likeliest_text(const LanguageModel& model, const std::vector<int64_t>& prompt,
                                    const heed::SamplingOptions& sampling,
                                    heed::BeamSearchOptions search) {
  model.whole().eval();
  const auto penalties = heed::SamplingOptions(sampling)
                             .temperature(1.0)
                             .top_k(0)
                             .top_p(1.0)
                             .min_p(0.0)
                             .min_new_tokens(0)
                             .end_tokens({});
  search.min_new_tokens(sampling.min_new_tokens()).penalties(penalties);
  const std::vector<std::vector<int64_t>> begun = {model.text_before(prompt)};
  const auto found = model.has_encoder() ? heed::beam_search(model.encoder_decoder,
                                                             model.to_tensor(prompt), begun, search)
                                         : heed::beam_search(model.model, begun, search);
  if (found[0].empty()) return {};
  auto text = found[0][0].tokens;
  if (!text.empty() && model.is_end(text.back())) text.pop_back();
  return text;
}

/// Writes the text that follows the prompt, or the target of it. Returns its end, and whether the
/// context is full.
std::pair<Written, bool> write_answer(const LanguageModel& model,
                                      const std::vector<int64_t>& prompt,
                                      const heed::examples::Speller& speller,
                                      const heed::SamplingOptions& sampling,
                                      std::optional<heed::BeamSearchOptions> search,
                                      const std::vector<std::string>& stops, int64_t most) {
  const auto print_prompt = [&] {
    if (model.has_encoder()) return;
    for (const auto token : prompt) heed::examples::print_now(speller.push(token));
  };
  if (!search) {
    TextGenerator generator(model, prompt, most);
    print_prompt();
    const auto written = write_text([&] { return generator.next(sampling); }, speller, stops, most);
    return {written, generator.is_full()};
  }
  const auto window = model.window_of(prompt);
  const auto room = model.room_after(model.text_before(window));
  search->max_new_tokens(std::min(most, room));
  const auto text = likeliest_text(model, window, sampling, *search);
  print_prompt();
  auto token = text.begin();
  const auto next = [&] { return token == text.end() ? std::nullopt : std::optional(*token++); };
  const auto written = write_text(next, speller, stops, most);
  return {written, written.tokens == room};
}

int run(const Arguments& arguments) {
  heed::examples::check_device(arguments.device);
  const auto options = heed::PretrainedOptions()
                           .dtype(dtype_of(arguments.dtype))
                           .weights(arguments.weights.chosen());
  auto model = heed::examples::load_language_model(arguments.model, options, arguments.adapter);
  model.whole().to(at::Device(arguments.device));
  const auto sampling = arguments.sampling.chosen(model);
  const auto most = arguments.count.value_or(model.defaults.tokens.value_or(500));
  const auto search = search_of(model, arguments, most);
  const auto note = heed::examples::left_out(arguments.model, sampling,
                                             {search.has_value(), model.has_encoder()});
  if (!note.empty()) fmt::print(stderr, "generate: {}\n", note);
  const auto codec = codec_for(model, arguments);
  const auto prompt = codec->tokens_of(arguments.prompt + arguments.tokens, arguments.sampling.raw);
  torch::manual_seed(arguments.sampling.seed);
  const auto speller = codec->speller();
  const auto start = std::chrono::steady_clock::now();
  const auto [written, is_full] =
      write_answer(model, prompt, speller, sampling, search, arguments.sampling.stops, most);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto count = written.tokens;
  auto ended = fmt::format("{} token{} in {:.2f} s: {:.0f} tokens/s", count, count == 1 ? "" : "s",
                           seconds.count(), static_cast<double>(count) / seconds.count());
  if (written.stopped || count < most) ended += why_ended(written, is_full, model);
  fmt::print(stderr, "{}\n", ended);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  heed::examples::CommandLine app(
      "Writes text with a model that train_gpt or finetune trained, or with a published one. An\n"
      "encoder-decoder, such as T5, reads the prompt and writes another text: a translation.\n" +
          heed::examples::about_defaults(),
      "generate", 38);
  app.folder("--model", arguments.model,
             "a folder that train_gpt wrote, or one in Hugging Face's format: config.json, "
             "model.safetensors and, for text, tokenizer.json");
  app.folder(
      "--adapter", arguments.adapter,
      "a folder that finetune --lora or Hugging Face's PEFT wrote, to change --model's text");
  auto* prompt = app.add_option("--prompt", arguments.prompt,
                                "the beginning of the text, or what an encoder-decoder reads");
  app.add_option("--tokens", arguments.tokens,
                 "the same as token ids, such as \"1 2 3\"; prints ids, too")
      ->excludes(prompt);
  app.whole_number("--count", arguments.count,
                   "number of tokens to write, at most; 500, or that of generation_config.json", 1);
  app.whole_number("--beams", arguments.beams,
                   "search with so many beams for the likeliest text, in place of sampling; none, "
                   "or that of generation_config.json",
                   1);
  app.add("--length-penalty", arguments.length_penalty,
          "with --beams: above 0, longer texts are preferred; 1, or that of generation_config.json",
          heed::examples::finite());
  app.add("--early-stopping", arguments.early_stopping,
          "with --beams: end with as many texts as beams (true), once no better one is expected "
          "(false), or once none is possible (never); false, or that of generation_config.json",
          CLI::IsMember(std::vector<std::string>{"true", "false", "never"}));
  heed::examples::add_text_options(app, arguments.sampling);
  heed::examples::add_sampling_options(app, arguments.sampling);
  app.device(arguments.device, "where to compute");
  app.choice("--dtype", arguments.dtype, "dtype of the model; auto: that of its file",
             {"auto", "float32", "bfloat16"});
  heed::examples::add_packing_options(app, arguments.weights);
  return app.run(argc, argv, [&] { return run(arguments); });
}
