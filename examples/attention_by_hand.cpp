// SPDX-License-Identifier: BSD-3-Clause
// The formula of attention step by step: why scores are divided by sqrt(d_k), what softmax does,
// and that heed computes the same as the formula. Numbers are compared with those of the text that
// the example follows.
#include <ATen/ATen.h>
#include <fmt/core.h>
#include <heed/heed.h>
#include <torch/utils.h>

#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "support/command_line.h"
#include "support/files.h"
#include "support/heat_map.h"

namespace {

void print_header(const std::string& title) {
  // A line break at the front of the title takes no column.
  fmt::print("{:<{}}{:>12}{:>12}\n", title, title.front() == '\n' ? 47 : 46, "here", "text");
}

void print_beside(const char* what, double here, double there) {
  fmt::print("  {:<44}{:>12.6f}{:>12.6f}\n", what, here, there);
}

/// A dot product of d_k terms has variance d_k; after division by sqrt(d_k), it has variance 1.
void show_variance() {
  constexpr int64_t kPairs = 100'000;
  constexpr int64_t kDim = 64;
  torch::manual_seed(0);
  const auto queries = at::randn({kPairs, kDim});
  const auto keys = at::randn({kPairs, kDim});
  const auto products = (queries * keys).sum(1);
  const auto variance = [](const at::Tensor& x) {
    return x.var(/*unbiased=*/false).item<double>();
  };
  print_header(fmt::format("Variance of {} dot products of {} terms", kPairs, kDim));
  print_beside("divided by sqrt(d_k)", variance(products / std::sqrt(double{kDim})),
               0.997921884059906);
  print_beside("as they are", variance(products), 63.867000579833984);
}

/// The text's three weights are estimates; unlike these, softmax gives the first key more weight
/// than the last.
void show_softmax() {
  const auto weights = at::softmax(at::tensor({2.3, 9.1, 0.5}), 0);
  const double text[] = {0.002, 0.995, 0.003};
  print_header("\nSoftmax of three scores");
  const char* const scores[] = {"2.3", "9.1", "0.5"};
  for (int i = 0; i < 3; ++i) print_beside(scores[i], weights[i].item<double>(), text[i]);
}

struct Heads {
  at::Tensor query, key, value;  // [L, D]
};

/// softmax(Q K^T / sqrt(D)) V, written out.
at::Tensor formula(const Heads& heads) {
  const auto scores = heads.query.matmul(heads.key.t()) / std::sqrt(double(heads.query.size(1)));
  return at::softmax(scores, -1).matmul(heads.value);
}

void show_formula() {
  const auto x =
      at::tensor({0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.5, 0.2, 0.4}).view({4, 3});
  const auto projected = [&] { return x.matmul(at::randn({3, 3}, at::kDouble)); };
  const Heads heads = {projected(), projected(), projected()};
  const auto by_hand = formula(heads);
  const auto with_axes = [](const at::Tensor& rows) { return rows.unsqueeze(0).unsqueeze(0); };
  const auto attended =
      heed::attend(with_axes(heads.query), with_axes(heads.key), with_axes(heads.value))[0][0];
  fmt::print("\nThe formula on four tokens\n");
  for (int64_t i = 0; i < 4; ++i) {
    const auto row = by_hand[i];
    fmt::print("  {:>9.6f} {:>9.6f} {:>9.6f}\n", row[0].item<double>(), row[1].item<double>(),
               row[2].item<double>());
  }
  fmt::print("  largest difference from heed::attend: {:.0e}\n",
             (by_hand - attended).abs().max().item<double>());
}

/// The weights are random: the picture shows the form of causal attention, not a trained model.
void show_sentence(const std::string& heat_map) {
  const std::vector<std::string> tokens = {"The", "cat", "sat", "on", "the", "mat", "."};
  const auto length = static_cast<int64_t>(tokens.size());
  constexpr int64_t kWidth = 64;
  heed::MultiHeadAttention attention(
      heed::MultiHeadAttentionOptions(kWidth, 4).causal(true).scale(1.0));
  attention->eval();
  const at::NoGradGuard no_grad;
  const auto weights =
      std::get<1>(attention->forward_with_weights(at::randn({1, length, kWidth})))[0];
  fmt::print("\nWhat MultiHeadAttention(64, 4) costs for the {} tokens of a sentence\n", length);
  std::cout << heed::attention_cost(*attention, 1, length) << std::flush;
  if (heat_map.empty()) return;
  heed::examples::HeatMapOptions options;
  options.query_labels = tokens;
  options.key_labels = tokens;
  heed::examples::write_heat_map(heat_map, weights, options);
  fmt::print("attention of its 4 heads: {}\n", heat_map);
}

}  // namespace

int main(int argc, char** argv) {
  heed::examples::CommandLine app(
      "The formula of attention step by step, next to the numbers in the text.",
      "attention_by_hand", /*column=*/30);
  std::string heat_map;
  app.file("--heat-map", heat_map, "draw the attention over a sentence, as PNG");
  return app.run(argc, argv, [&] {
    heed::examples::check_writable(heat_map);
    show_variance();
    show_softmax();
    show_formula();
    show_sentence(heat_map);
    return 0;
  });
}
