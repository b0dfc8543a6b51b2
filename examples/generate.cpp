// Writes text with a language model.
#include <fmt/core.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
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
  std::optional<int64_t> count;
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
  if (numbers) return heed::examples::number_codec(model.model->options.vocab_size());
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

/// Prints the text while it is made.
Written write_text(TextGenerator& generator, const heed::examples::Speller& speller,
                   const heed::SamplingOptions& sampling, const std::vector<std::string>& stops,
                   int64_t most) {
  heed::examples::StopStrings until(stops);
  int64_t written = 0;
  for (; written < most && !until.found(); ++written) {
    const auto token = generator.next(sampling);
    if (!token) break;
    heed::examples::print_now(until.push(speller.push(*token)));
  }
  auto rest = until.push(speller.finish());
  rest += until.finish();
  heed::examples::print_now(rest + '\n');
  return {written, until.found()};
}

/// Why fewer tokens were written than asked for.
std::string why_ended(const Written& written, const TextGenerator& generator,
                      const LanguageModel& model) {
  if (written.stopped) return "; the text has reached a stop";
  if (!generator.is_full()) return "; the text has ended";
  return fmt::format("; the model's context of {} tokens is full", model.context);
}

int run(const Arguments& arguments) {
  heed::examples::check_device(arguments.device);
  const auto options = heed::PretrainedOptions()
                           .dtype(dtype_of(arguments.dtype))
                           .weights(arguments.weights.chosen());
  auto model = heed::examples::load_language_model(arguments.model, options, arguments.adapter);
  model.model->to(at::Device(arguments.device));
  const auto sampling = arguments.sampling.chosen(model);
  const auto note = heed::examples::left_out(arguments.model, sampling);
  if (!note.empty()) fmt::print(stderr, "generate: {}\n", note);
  const auto codec = codec_for(model, arguments);
  const auto prompt = codec->tokens_of(arguments.prompt + arguments.tokens, arguments.sampling.raw);
  const auto most = arguments.count.value_or(model.defaults.tokens.value_or(500));
  torch::manual_seed(arguments.sampling.seed);
  TextGenerator generator(model, prompt, most);
  const auto speller = codec->speller();
  for (const auto token : prompt) heed::examples::print_now(speller.push(token));
  const auto start = std::chrono::steady_clock::now();
  const auto written = write_text(generator, speller, sampling, arguments.sampling.stops, most);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto count = written.tokens;
  auto ended = fmt::format("{} token{} in {:.2f} s: {:.0f} tokens/s", count, count == 1 ? "" : "s",
                           seconds.count(), static_cast<double>(count) / seconds.count());
  if (written.stopped || count < most) ended += why_ended(written, generator, model);
  fmt::print(stderr, "{}\n", ended);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  heed::examples::CommandLine app(
      "Writes text with a model that train_gpt or finetune trained, or with a published one.\n" +
          heed::examples::about_defaults(),
      "generate", 38);
  app.folder("--model", arguments.model,
             "a folder that train_gpt wrote, or one in Hugging Face's format: config.json, "
             "model.safetensors and, for text, tokenizer.json");
  app.folder(
      "--adapter", arguments.adapter,
      "a folder that finetune --lora or Hugging Face's PEFT wrote, to change --model's text");
  auto* prompt = app.add_option("--prompt", arguments.prompt, "the beginning of the text");
  app.add_option("--tokens", arguments.tokens,
                 "the same as token ids, such as \"1 2 3\"; prints ids, too")
      ->excludes(prompt);
  app.whole_number("--count", arguments.count,
                   "number of tokens to write, at most; 500, or that of generation_config.json", 1);
  heed::examples::add_text_options(app, arguments.sampling);
  heed::examples::add_sampling_options(app, arguments.sampling);
  app.device(arguments.device, "where to compute");
  app.choice("--dtype", arguments.dtype, "dtype of the model; auto: that of its file",
             {"auto", "float32", "bfloat16"});
  heed::examples::add_packing_options(app, arguments.weights);
  return app.run(argc, argv, [&] { return run(arguments); });
}
