// SPDX-License-Identifier: BSD-3-Clause
// Prints, as CSV, how errors grow with the length: heed's, LibTorch's kernel's and those of the
// textbook's operators, each in unit roundoffs times the sum of the terms. See scripts/numerics.sh.
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"

namespace {

constexpr int64_t kHeads = 2, kHeadDim = 64;
const double kScale = 1 / std::sqrt(static_cast<double>(kHeadDim));

using heed::test::Operands;
using heed::test::TermSums;
using Attention =
    std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

const std::vector<std::pair<std::string, Attention>> kContestants = {
    {"heed", [](const auto& query, const auto& key,
                const auto& value) { return heed::attend(query, key, value); }},
    {"SDPA", [](const auto& query, const auto& key,
                const auto& value) { return at::scaled_dot_product_attention(query, key, value); }},
    {"textbook", [](const auto& query, const auto& key, const auto& value) {
       return at::matmul(at::softmax(at::matmul(query, key.transpose(2, 3)) * kScale, -1), value);
     }}};

/// The output and, where it is asked for, the gradients of query, key and value.
std::vector<at::Tensor> results(const Attention& attention, const Operands& operands,
                                at::ScalarType dtype, bool gradients) {
  std::vector<at::Tensor> leaves;
  for (const auto& tensor : {operands.query, operands.key, operands.value}) {
    leaves.push_back(tensor.to(dtype).detach().requires_grad_(gradients));
  }
  std::vector<at::Tensor> all = {attention(leaves[0], leaves[1], leaves[2])};
  if (!gradients) return all;
  for (const auto& gradient :
       torch::autograd::grad(all, leaves, {operands.output_gradient.to(dtype)})) {
    all.push_back(gradient);
  }
  return all;
}

Operands random_operands(int64_t length, int64_t key_length, at::ScalarType dtype) {
  const auto random = [&](int64_t rows) {
    return at::randn({1, kHeads, rows, kHeadDim}).to(dtype);
  };
  // Values of one sign: sums that cancel have errors that fall with the length.
  Operands operands{
      random(length), random(key_length), random(key_length).abs(), random(length), {}, kScale};
  const auto scores =
      at::matmul(operands.query.to(at::kDouble), operands.key.to(at::kDouble).transpose(2, 3)) *
      kScale;
  operands.weights = at::softmax(scores, -1);
  return operands;
}

void print_errors(int64_t length, int64_t key_length, at::ScalarType dtype, bool gradients) {
  torch::manual_seed(1);
  const auto operands = random_operands(length, key_length, dtype);
  const auto exact = results(kContestants.back().second, operands, at::kDouble, gradients);
  const auto sums = heed::test::term_sums(operands);
  for (const auto& [name, attention] : kContestants) {
    const auto actual = results(attention, operands, dtype, gradients);
    auto error = heed::test::roundoffs(actual[0], exact[0], sums.output);
    if (gradients) {
      error = std::max({heed::test::roundoffs(actual[1], exact[1], sums.query_grad),
                        heed::test::roundoffs(actual[2], exact[2], sums.key_grad),
                        heed::test::roundoffs(actual[3], exact[3], sums.value_grad)});
    }
    std::cout << c10::toString(dtype) << ',' << (gradients ? "gradients" : "output") << ',' << name
              << ',' << key_length << ',' << error << '\n';
  }
}

}  // namespace

int main() {
  std::cout << "dtype,quantity,contestant,length,roundoffs\n";
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (int64_t length = 64; length <= 131'072; length *= 2)
      print_errors(16, length, dtype, false);
    for (int64_t length = 64; length <= 4096; length *= 2)
      print_errors(length, length, dtype, true);
  }
}
