// SPDX-License-Identifier: BSD-3-Clause
// Runs a language model that Python exported: as TorchScript and compiled by AOTInductor, with
// heed's attention and with LibTorch's. Such files are programs: run only those that you trust.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <fmt/core.h>
#include <heed/weights.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/command_line.h"
#include "support/files.h"

namespace {

constexpr double kTolerance = 1e-4;
constexpr const char* kWriter = "examples/exported/export_language_model.py --out DIR";

/// tokens [B, L] -> logits [B, L, V]
using Model = std::function<at::Tensor(const at::Tensor&)>;

struct Program {
  std::string name;
  Model model;
  double difference = 0;  ///< the largest from Python's logits
  std::vector<double> milliseconds{};

  double median() const {
    auto sorted = milliseconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// The path of a file that must exist.
std::string file_in(const std::string& folder, const std::string& name) {
  const auto path = folder + "/" + name;
  heed::examples::open_input(path, kWriter);
  return path;
}

/// The results of Python: tokens [B, L] and logits [B, L, V].
heed::NamedTensors read_expected(const std::string& folder) {
  const auto path = file_in(folder, "expected.pt");
  auto tensors = heed::read_weights(path);
  for (const char* name : {"tokens", "logits"}) {
    if (tensors.count(name) == 0) throw std::runtime_error(path + " holds no " + name);
  }
  return tensors;
}

Model load_script(const std::string& path) {
  auto module = torch::jit::load(path);
  return [module](const at::Tensor& tokens) mutable { return module.forward({tokens}).toTensor(); };
}

Model load_package(const std::string& path) {
  auto loader = std::make_shared<torch::inductor::AOTIModelPackageLoader>(path);
  return [loader](const at::Tensor& tokens) { return loader->run({tokens}).at(0); };
}

Program load(const std::string& name, const std::string& path,
             Model (*load_model)(const std::string&)) {
  try {
    return {name, load_model(path)};
  } catch (const c10::Error& error) {
    throw std::runtime_error(
        fmt::format("cannot load {}: {}", path, error.what_without_backtrace()));
  }
}

/// heed's programs, then that of LibTorch.
std::vector<Program> load_programs(const std::string& folder) {
  return {
      load("TorchScript, heed::attend", file_in(folder, "heed.pt"), load_script),
      load("AOTInductor, heed::attend", file_in(folder, "heed.pt2"), load_package),
      load("AOTInductor, after use_heed_attention.py", file_in(folder, "changed.pt2"),
           load_package),
      load("AOTInductor, scaled_dot_product_attention", file_in(folder, "sdpa.pt2"), load_package),
  };
}

/// Infinite if the shapes differ, NaN if a number is NaN.
double largest_difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  return (actual - expected).abs().max().item<double>();
}

/// Also warms up: TorchScript optimizes a program during its first two runs.
void compare(std::vector<Program>& programs, const at::Tensor& tokens, const at::Tensor& logits) {
  for (auto& program : programs) {
    program.model(tokens);
    program.difference = largest_difference(program.model(tokens), logits);
  }
}

/// The programs take turns, so that a machine that slows down slows all of them.
void measure(std::vector<Program>& programs, const at::Tensor& tokens, int64_t repeats) {
  for (int64_t i = 0; i < repeats; ++i) {
    for (auto& program : programs) {
      const auto start = std::chrono::steady_clock::now();
      program.model(tokens);
      const std::chrono::duration<double, std::milli> time =
          std::chrono::steady_clock::now() - start;
      program.milliseconds.push_back(time.count());
    }
  }
}

void print_table(const std::vector<Program>& programs, const at::Tensor& tokens, int64_t repeats) {
  fmt::print("{} x {} tokens, {} thread{}, median of {} run{} in turns\n\n", tokens.size(0),
             tokens.size(1), at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s", repeats,
             repeats == 1 ? "" : "s");
  fmt::print("{:43}{:>14}{:>13}{:>10}\n", "", "from Python", "time", "speed");
  const double slowest = programs.back().median();
  for (const auto& program : programs) {
    fmt::print("{:43}{:>14.1e}{:>10.1f} ms{:>10.2f}\n", program.name, program.difference,
               program.median(), slowest / program.median());
  }
}

int run(const std::string& folder, int64_t repeats) {
  const c10::InferenceMode no_gradients;
  const auto expected = read_expected(folder);
  auto programs = load_programs(folder);
  const auto& tokens = expected.at("tokens");
  compare(programs, tokens, expected.at("logits"));
  measure(programs, tokens, repeats);
  print_table(programs, tokens, repeats);
  const bool agree = std::all_of(programs.begin(), programs.end(), [](const Program& program) {
    return program.difference <= kTolerance;
  });
  fmt::print("\n{} with Python: the tolerance is {}\n", agree ? "All agree" : "They do not agree",
             kTolerance);
  return agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder;
  int64_t repeats = 15;
  heed::examples::CommandLine app(
      "Runs a language model that Python exported, compares it with Python's results, and "
      "shows how\nmuch faster it is with heed's attention. Exit status 1 if the results differ.",
      "run_exported", /*column=*/30);
  app.folder("folder", folder, std::string("folder that ") + kWriter + " wrote")->required();
  app.whole_number("--repeats", repeats, "number of timed runs of each program", 1);
  return app.run(argc, argv, [&] { return run(folder, repeats); });
}
