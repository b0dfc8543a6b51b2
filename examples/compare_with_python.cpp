// SPDX-License-Identifier: BSD-3-Clause
// Compares heed's modules with the Python classes whose weights they load, and with
// at::scaled_dot_product_attention on the same projections.
#include <ATen/Functions.h>
#include <fmt/core.h>
#include <heed/heed.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/command_line.h"
#include "support/files.h"

namespace {

constexpr double kOutputTolerance = 1e-5;
constexpr double kGradientTolerance = 1e-4;

using Mask = std::optional<at::Tensor>;

/// The results of Python, under the names that scripts/export_model.py documents.
class Fixture {
 public:
  explicit Fixture(const std::string& path) : path_(path) {
    if (!heed::examples::exists(path)) {
      throw std::runtime_error("cannot read " + path + " (scripts/export_model.py " +
                               "--originals heads --fixture --out DIR writes it)");
    }
    tensors_ = heed::read_weights(path);
  }

  at::Tensor operator[](const std::string& name) const {
    const auto found = find(name);
    if (!found) throw std::runtime_error(path_ + " holds no " + name);
    return *found;
  }

  std::optional<at::Tensor> find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? std::nullopt : std::make_optional(found->second);
  }

  int64_t argument(const std::string& name) const { return (*this)["arg." + name].item<int64_t>(); }

  /// "<case>." of every <case>.output.
  std::vector<std::string> cases() const {
    std::vector<std::string> prefixes;
    for (const auto& [name, tensor] : tensors_) {
      const auto dot = name.rfind('.');
      if (dot != std::string::npos && name.substr(dot + 1) == "output") {
        prefixes.push_back(name.substr(0, dot + 1));
      }
    }
    if (prefixes.empty()) throw std::runtime_error(path_ + " holds no output");
    return prefixes;
  }

 private:
  std::string path_;
  std::map<std::string, at::Tensor> tensors_;
};

/// [B, L, H * D] -> [B, H, L, D]
at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, -1}).transpose(1, 2);
}

/// LibTorch's own attention, with a mask as in heed.
at::Tensor sdpa(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                int64_t heads, int64_t groups, Mask mask) {
  if (mask) mask = mask->ne(0);
  if (mask && mask->dim() == 3) mask = mask->unsqueeze(1);
  return at::scaled_dot_product_attention(split_heads(query, heads), split_heads(key, groups),
                                          split_heads(value, groups), mask, /*dropout_p=*/0.0,
                                          /*is_causal=*/false, /*scale=*/std::nullopt,
                                          /*enable_gqa=*/heads != groups)
      .transpose(1, 2)
      .flatten(2);  // [B, L, H * D]
}

at::Tensor forward_with_sdpa(heed::AttentionImpl& module, const at::Tensor& x, const Mask& mask) {
  return sdpa(module.fc_q(x), module.fc_k(x), module.fc_v(x), 1, 1, mask);
}

at::Tensor forward_with_sdpa(heed::AttentionV1Impl& module, const at::Tensor& x, const Mask& mask) {
  const auto packed = module.qkv(x).chunk(3, -1);
  return sdpa(packed[0], packed[1], packed[2], 1, 1, mask);
}

at::Tensor forward_with_sdpa(heed::MultiHeadAttentionImpl& module, const at::Tensor& x,
                             const Mask& mask) {
  const auto heads = module.options.head_nums();
  return module.fc_out(sdpa(module.fc_q(x), module.fc_k(x), module.fc_v(x), heads, heads, mask));
}

at::Tensor forward_with_sdpa(heed::GroupQueryAttentionImpl& module, const at::Tensor& x,
                             const Mask& mask) {
  return module.fc_o(sdpa(module.fc_q(x), module.fc_k(x), module.fc_v(x), module.options.head_num(),
                          module.options.group_num(), mask));
}

/// Raises `largest` to the largest difference; to NaN if a difference is NaN.
void note_difference(double& largest, const at::Tensor& actual, const at::Tensor& expected) {
  const double difference = actual.sizes() == expected.sizes()
                                ? (actual - expected).abs().max().item<double>()
                                : std::numeric_limits<double>::infinity();
  if (!std::isnan(largest) && !(difference <= largest)) largest = difference;
}

/// A row of the table: the largest differences over all cases.
struct Parity {
  std::string name;
  int64_t parameters = 0;
  size_t cases = 0;
  double output = 0, weights = 0, gradients = 0;  // from Python
  double sdpa = 0;                                // output, from at::scaled_dot_product_attention

  bool within_tolerance() const {
    return output <= kOutputTolerance && weights <= kOutputTolerance && sdpa <= kOutputTolerance &&
           gradients <= kGradientTolerance;
  }
};

/// Adds the differences of one case. `prefix` is the fixture's "<case>." before each name.
template <typename Module>
void compare_case(Module& module, const Fixture& fixture, const std::string& prefix,
                  Parity& parity) {
  const auto x = fixture["x"].detach().requires_grad_();
  const auto mask = fixture.find(prefix + "mask");
  const auto output = module.forward(x, mask);
  note_difference(parity.output, output, fixture[prefix + "output"]);
  note_difference(parity.sdpa, output, forward_with_sdpa(module, x, mask));
  const auto weights = std::get<1>(module.forward_with_weights(x, mask));
  note_difference(parity.weights, weights, fixture[prefix + "weights"]);

  std::vector<std::string> names = {"x"};
  std::vector<at::Tensor> inputs = {x};
  for (const auto& parameter : module.named_parameters()) {
    names.push_back(parameter.key());
    inputs.push_back(parameter.value());
  }
  const auto loss = (output * fixture["loss_weight"]).sum();
  const auto gradients = torch::autograd::grad({loss}, inputs);
  for (size_t i = 0; i < names.size(); ++i) {
    note_difference(parity.gradients, gradients[i], fixture[prefix + "grad." + names[i]]);
  }
}

/// The module is built from the arguments of these names, which the fixture holds.
template <typename Module, typename... Names>
Parity compare(const std::string& directory, const std::string& name, const Names&... arguments) {
  const auto path = directory + "/" + name;
  const Fixture fixture(path + ".fixture.pt");
  Module module(fixture.argument(arguments)...);
  heed::load_weights(*module, path + ".pt");
  module->eval();
  Parity parity{name};
  for (const auto& parameter : module->parameters()) parity.parameters += parameter.numel();
  for (const auto& prefix : fixture.cases()) {
    compare_case(*module, fixture, prefix, parity);
    ++parity.cases;
  }
  return parity;
}

std::vector<Parity> compare_all(const std::string& directory) {
  return {
      compare<heed::Attention>(directory, "Attention", "emb_dim"),
      compare<heed::AttentionV1>(directory, "AttentionV1", "emb_dim"),
      compare<heed::MultiHeadAttention>(directory, "MultiHeadAttention", "emb_dim", "head_nums"),
      compare<heed::GroupQueryAttention>(directory, "GroupQueryAttention", "emb_dim", "head_num",
                                         "group_num")};
}

void print_table(const std::vector<Parity>& rows) {
  fmt::print("{:38}largest difference from Python       from SDPA\n", "");
  fmt::print("{:20}{:>10}{:>7} {:>10}{:>11}{:>11}{:>12}\n", "class", "parameters", "cases",
             "output", "weights", "gradients", "output");
  for (const auto& row : rows) {
    fmt::print("{:20}{:>10}{:>7} {:>10.1e}{:>11.1e}{:>11.1e}{:>12.1e}\n", row.name, row.parameters,
               row.cases, row.output, row.weights, row.gradients, row.sdpa);
  }
}

int run(const std::string& directory) {
  const auto rows = compare_all(directory);
  print_table(rows);
  bool agree = true;
  for (const auto& row : rows) agree = agree && row.within_tolerance();
  fmt::print("{}: the tolerance is {} for outputs and weights, {} for gradients\n",
             agree ? "All agree" : "They do not agree", kOutputTolerance, kGradientTolerance);
  return agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  heed::examples::CommandLine app(
      "Compares heed's modules with the Python classes whose weights they load, and with\n"
      "at::scaled_dot_product_attention on the same projections. Exit status 1 if they differ.",
      "compare_with_python", /*column=*/30);
  std::string directory;
  app.add_option("directory", directory,
                 "folder that scripts/export_model.py --originals heads --fixture --out DIR wrote")
      ->type_name("DIR")
      ->required();
  return app.run(argc, argv, [&] { return run(directory); });
}
