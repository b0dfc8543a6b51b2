// Writes text with a model that train_gpt trained.
#include <fmt/core.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "language/sampling_arguments.h"
#include "language/text_generator.h"
#include "support/device.h"
#include "support/run_app.h"
#include "support/validators.h"

namespace {

struct Arguments {
  std::string model = "gpt";
  std::string prompt;
  int64_t count = 500;
  heed::examples::SamplingArguments sampling;
  std::string device = "cpu";
};

int run(const Arguments& arguments) {
  heed::examples::check_device(arguments.device);
  auto model = heed::examples::load_language_model(arguments.model);
  model.model->to(at::Device(arguments.device));
  torch::manual_seed(arguments.sampling.seed);
  const auto sampling = arguments.sampling.chosen();
  heed::examples::TextGenerator generator(model, arguments.prompt);
  std::fputs(arguments.prompt.c_str(), stdout);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < arguments.count; ++i) {
    std::putchar(generator.next(sampling));
    if (std::fflush(stdout) != 0) throw std::runtime_error("cannot write to standard output");
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::putchar('\n');
  std::fflush(stdout);
  fmt::print(stderr, "{} tokens in {:.2f} s: {:.0f} tokens/s\n", arguments.count, seconds.count(),
             static_cast<double>(arguments.count) / seconds.count());
  return 0;
}

void add_options(CLI::App& app, Arguments& arguments) {
  app.add_option("--model", arguments.model,
                 "a folder that train_gpt wrote, with model.safetensors and model.json")
      ->type_name("DIR")
      ->check(heed::examples::path());
  app.add_option("--prompt", arguments.prompt, "the beginning of the text");
  app.add_option("--count", arguments.count, "number of characters to write")
      ->check(heed::examples::whole_number(1));
  heed::examples::add_sampling_options(app, arguments.sampling);
  app.add_option("--device", arguments.device, "where to compute")
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Writes text with a model that train_gpt trained.", "generate");
  app.option_defaults()->always_capture_default();
  app.get_formatter()->column_width(34);
  add_options(app, arguments);
  return heed::examples::run_app(app, argc, argv, [&] { return run(arguments); });
}
