// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/linear.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_unpack_dual.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <heed/autocast.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/capability.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/layouts.h"
#include "support/seeds.h"
#include "unit/modules/layers/linear_cases.h"

namespace heed::test::of_linear {
namespace {

using detail::linear;
using detail::linear_product;
using detail::LinearProduct;

std::vector<at::Tensor> defined(const Tensors& tensors) {
  std::vector<at::Tensor> result = {tensors.input, tensors.weight};
  if (tensors.bias.defined()) result.push_back(tensors.bias);
  return result;
}

/// The tolerance of sums of `depth` products of numbers up to 1, rounded to `dtype`.
double tolerance(at::ScalarType dtype, int64_t depth) {
  const auto terms = static_cast<double>(depth);
  const auto accumulated = std::min(unit_roundoff(dtype), unit_roundoff(at::kFloat));
  return 4 * unit_roundoff(dtype) * std::sqrt(terms) + 2 * accumulated * terms;
}

TEST(Linear, IsItsDefinition) {
  torch::manual_seed(moved(1));
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const auto& size : kSizes) {
      for (const bool with_bias : {false, true}) {
        SCOPED_TRACE(c10::str(dtype, " ", size.input, " to ", size.outputs, " ", with_bias));
        const auto given = make_tensors(size, dtype, with_bias);
        const auto [input, weight, bias] = as_leaves(given, dtype);
        const auto wide = as_leaves(given, at::kDouble);
        const auto output = linear(input, weight, bias);
        const auto expected = at::linear(wide.input, wide.weight, wide.bias);
        EXPECT_EQ(output.scalar_type(), dtype);
        EXPECT_TRUE(is_close(output, expected, tolerance(dtype, size.depth())));

        const auto gradient = uniform(output.sizes(), dtype);
        const auto gradients =
            torch::autograd::grad({output}, defined({input, weight, bias}), {gradient});
        const auto expected_gradients =
            torch::autograd::grad({expected}, defined(wide), {gradient.to(at::kDouble)});
        const auto rows = output.numel() / size.outputs;
        const int64_t depths[] = {size.outputs, rows, rows};
        for (size_t i = 0; i < gradients.size(); ++i) {
          EXPECT_EQ(gradients[i].scalar_type(), dtype);
          EXPECT_TRUE(is_close(gradients[i], expected_gradients[i], tolerance(dtype, depths[i])))
              << i;
        }
        // So that a parameter keeps it without a copy.
        EXPECT_TRUE(gradients[1].is_contiguous());
      }
    }
  }
}

TEST(Linear, HasSecondDerivatives) {
  torch::manual_seed(moved(2));
  for (const auto& size : kProducts) {
    const auto dtype = at::kFloat;
    const auto given = make_tensors(size, dtype);
    const auto gradient = uniform(linear(given.input, given.weight, given.bias).sizes(), dtype);
    const auto derivatives = [&](const auto& function, at::ScalarType type) {
      const auto leaves = as_leaves(given, type);
      const auto of_output = gradient.to(type, false, /*copy=*/true).requires_grad_();
      const auto output = function(leaves.input, leaves.weight, leaves.bias);
      const auto first = torch::autograd::grad({output}, defined(leaves), {of_output},
                                               /*retain_graph=*/true, /*create_graph=*/true);
      const auto sum = (first[0] * first[0]).mean() + (first[1] * first[1]).mean() +
                       (first[2] * first[2]).mean();
      return torch::autograd::grad({sum}, {leaves.input, leaves.weight, of_output});
    };
    const auto actual = derivatives(
        [](const auto& x, const auto& w, const auto& b) { return linear(x, w, b); }, dtype);
    const auto expected =
        derivatives([](const auto& x, const auto& w, const auto& b) { return at::linear(x, w, b); },
                    at::kDouble);
    EXPECT_TRUE(are_alike(actual, expected, 64 * unit_roundoff(dtype))) << size.input;
  }
}

TEST(Linear, TakesAnyLayout) {
  torch::manual_seed(moved(3));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& size : {Size{{40, 520}, 518}, Size{{130, 257}, 259}, Size{{3, 640}, 320}}) {
      for (int64_t layout = 0; layout < kLayouts; ++layout) {
        for (const bool of_weight : {false, true}) {
          SCOPED_TRACE(c10::str(dtype, " ", size.input, " layout ", layout, " ", of_weight));
          auto [input, weight, bias] = make_tensors(size, dtype);
          auto& changed = of_weight ? weight : input;
          changed = lay_out(changed, layout);
          const auto expected =
              at::linear(input.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble));
          const auto close = tolerance(dtype, size.depth());
          EXPECT_TRUE(is_close(linear(input, weight, bias), expected, close));
          EXPECT_TRUE(
              is_close(linear(input, weight, lay_out(bias, kEverySecond)), expected, close));
        }
      }
    }
  }
}

TEST(Linear, TakesAnyGradient) {
  torch::manual_seed(moved(4));
  for (const auto& size : {Size{{40, 520}, 518}, Size{{130, 257}, 259}, Size{{3, 640}, 320}}) {
    for (int64_t layout = 0; layout < kLayouts; ++layout) {
      const auto leaves = as_leaves(make_tensors(size, at::kFloat), at::kFloat);
      const auto wide = as_leaves(leaves, at::kDouble);
      const auto output = linear(leaves.input, leaves.weight, leaves.bias);
      const auto gradient = lay_out(uniform(output.sizes(), at::kFloat), layout);
      const auto actual = torch::autograd::grad({output}, defined(leaves), {gradient});
      const auto expected = torch::autograd::grad({at::linear(wide.input, wide.weight, wide.bias)},
                                                  defined(wide), {gradient.to(at::kDouble)});
      EXPECT_TRUE(are_close(actual, expected, 2 * tolerance(at::kFloat, size.outputs)))
          << size.input << " layout " << layout;
    }
  }
}

TEST(Linear, ComputesOnlyTheGradientsThatAreAskedFor) {
  for (const int asked : {0, 1, 2}) {
    auto leaves = as_leaves(make_tensors({{130, 257}, 259}, at::kFloat), at::kFloat);
    auto tensors = defined(leaves);
    for (int i = 0; i < 3; ++i) tensors[static_cast<size_t>(i)].requires_grad_(i == asked);
    const auto output = linear(leaves.input, leaves.weight, leaves.bias);
    EXPECT_TRUE(output.requires_grad());
    output.sum().backward();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(tensors[static_cast<size_t>(i)].grad().defined(), i == asked) << asked;
    }
  }
}

/// As at::linear: what no gradient needs may change before the backward pass.
TEST(Linear, SavesOnlyWhatItsGradientsNeed) {
  auto [input, weight, bias] = as_leaves(make_tensors({{130, 257}, 259}, at::kFloat), at::kFloat);
  const auto change = [](const at::Tensor& tensor) {
    const at::NoGradGuard no_grad;
    tensor.mul_(2);
  };
  input.requires_grad_(false);
  auto output = linear(input, weight, bias);
  change(weight);
  output.sum().backward();
  output = linear(input, weight, bias);
  change(input);
  EXPECT_THROW(output.sum().backward(), c10::Error);
  weight.requires_grad_(false);
  input.requires_grad_(true);
  output = linear(input, weight, bias);
  change(weight);
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

TEST(Linear, SeesWeightsThatChangeWithoutAVersion) {
  for (const auto& size : kSizes) {
    const at::NoGradGuard no_grad;
    auto [input, weight, bias] = make_tensors(size, at::kFloat);
    const auto before = linear(input, weight, bias);
    weight.data().copy_(weight * 2);
    bias.data().copy_(bias * 2);
    EXPECT_TRUE(at::equal(linear(input, weight, bias), before * 2)) << size.input;
  }
}

TEST(Linear, KeepsItsResultsWhateverTheThreads) {
  const auto threads = at::get_num_threads();
  torch::manual_seed(moved(5));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& size : kSizes) {
      const auto given = make_tensors(size, dtype);
      // LibTorch's products promise nothing of the kind.
      if (linear_product(given.input, given.weight, given.bias) == LinearProduct::libtorch)
        continue;
      at::Tensor first;
      for (const int count : {1, 2, 3}) {
        at::set_num_threads(count);
        const auto output = linear(given.input, given.weight, given.bias);
        if (!first.defined()) first = output;
        EXPECT_TRUE(at::equal(output, first)) << dtype << size.input << " " << count;
      }
    }
  }
  at::set_num_threads(threads);
}

TEST(Linear, RecordsOnlyWhereGradientsAreAskedFor) {
  const auto given = make_tensors({{130, 257}, 259}, at::kFloat);
  EXPECT_FALSE(linear(given.input, given.weight, given.bias).requires_grad());
  const auto leaves = as_leaves(given, at::kFloat);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(linear(leaves.input, leaves.weight, leaves.bias).requires_grad());
  }
  const auto expected = linear(given.input, given.weight, given.bias);
  const c10::InferenceMode inference;
  const auto output = linear(leaves.input, leaves.weight, leaves.bias);
  EXPECT_TRUE(output.is_inference());
  EXPECT_TRUE(at::equal(output, expected));
}

TEST(Linear, IsCastByAutocast) {
  const auto given = make_tensors({{130, 257}, 259}, at::kFloat);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Autocast autocast(at::kCPU, dtype);
    const auto leaves = as_leaves(given, at::kFloat), others = as_leaves(given, at::kFloat);
    const auto output = linear(leaves.input, leaves.weight, leaves.bias);
    EXPECT_TRUE(at::equal(output, at::linear(others.input, others.weight, others.bias)));
    EXPECT_EQ(output.scalar_type(), dtype);
    output.sum().backward();
    EXPECT_EQ(leaves.weight.grad().scalar_type(), at::kFloat);
  }
  EXPECT_EQ(linear(given.input, given.weight, given.bias).scalar_type(), at::kFloat);
}

TEST(Linear, PropagatesTangents) {
  const auto [input, weight, bias] = make_tensors({{130, 257}, 259}, at::kFloat);
  const auto tangent = uniform({130, 257}, at::kFloat);
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  const auto dual = at::_make_dual(input, tangent, static_cast<int64_t>(level));
  const auto output = linear(dual, weight, bias);
  const auto [primal, of_output] = at::_unpack_dual(output, static_cast<int64_t>(level));
  torch::autograd::ForwardADLevel::release_idx(level);
  EXPECT_TRUE(is_close(primal, at::linear(input, weight, bias), tolerance(at::kFloat, 257)));
  ASSERT_TRUE(of_output.defined());
  EXPECT_TRUE(is_close(of_output, at::linear(tangent, weight), tolerance(at::kFloat, 257)));
}

/// Errors have the words of at::linear.
TEST(Linear, RefusesWhatLibTorchRefuses) {
  const auto x = at::ones({130, 257}), weight = at::ones({259, 257}), bias = at::ones({259});
  const std::vector<std::tuple<at::Tensor, at::Tensor, at::Tensor>> calls = {
      {x, at::ones({259, 256}), bias},   {x, at::ones({259, 2, 257}), bias},
      {x, weight, at::ones({258})},      {x, weight.to(at::kDouble), bias},
      {x, weight, bias.to(at::kDouble)}, {x.to(at::kBFloat16), weight, bias},
      {x.to(at::kMeta), weight, bias},   {x, weight.to(at::kMeta), bias},
      {at::ones({}), weight, bias},      {{}, weight, bias},
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto message = [&](const auto& function) {
      const auto& [input, own_weight, own_bias] = calls[i];
      try {
        function(input, own_weight, own_bias);
      } catch (const c10::Error& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string();
    };
    const auto expected =
        message([](const auto& x, const auto& w, const auto& b) { at::linear(x, w, b); });
    EXPECT_EQ(message([](const auto& x, const auto& w, const auto& b) { linear(x, w, b); }),
              expected)
        << i;
  }
}

TEST(Linear, TakesEmptyTensorsAndMeta) {
  for (const auto& [shape, outputs] :
       {std::pair(std::vector<int64_t>{0, 257}, 259), {{3, 0}, 4}, {{2, 5}, 0}}) {
    const auto leaves = as_leaves(make_tensors({shape, outputs}, at::kFloat), at::kFloat);
    const auto output = linear(leaves.input, leaves.weight, leaves.bias);
    EXPECT_TRUE(at::equal(output, at::linear(leaves.input, leaves.weight, leaves.bias)));
    output.sum().backward();
    EXPECT_EQ(leaves.weight.grad().sizes(), leaves.weight.sizes());
  }
  const auto [input, weight, bias] =
      make_tensors({{2, 65, 257}, 259}, at::TensorOptions().device(at::kMeta));
  const auto output = linear(input, weight, bias);
  EXPECT_TRUE(output.is_meta());
  EXPECT_EQ(output.sizes(), at::IntArrayRef({2, 65, 259}));
}

TEST(Linear, IsTracedAsOneOperator) {
  const auto given = make_tensors({{130, 257}, 259}, at::kFloat);
  const auto [state, outputs] = torch::jit::tracer::trace(
      {given.input},
      [&](torch::jit::Stack inputs) -> torch::jit::Stack {
        return {linear(inputs[0].toTensor(), given.weight, given.bias)};
      },
      [](const torch::autograd::Variable&) { return std::string(); });
  EXPECT_NE(state->graph->toString().find("aten::linear("), std::string::npos)
      << state->graph->toString();
}

/// The operators that `call` runs in this thread.
template <typename Call>
std::vector<std::string> operators_of(const Call& call) {
  static thread_local std::vector<std::string> names;
  names.clear();
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                                   names.emplace_back(function.name());
                                   return std::unique_ptr<at::ObserverContext>();
                                 }).scopes({at::RecordScope::FUNCTION}));
  call();
  at::removeCallback(handle);
  return names;
}

TEST(Linear, OfSeveralLayersConvertsTheirInputOnceUnderAutocast) {
  torch::manual_seed(moved(8));
  constexpr int64_t kRows = 130, kDepth = 257;
  const int64_t outputs[] = {259, 64, 7};
  const auto given = uniform({kRows, kDepth}, at::kFloat);
  std::vector<detail::LinearParameters> layers;
  for (const auto size : outputs) {
    layers.push_back({uniform({size, kDepth}, at::kFloat).requires_grad_(), {}});
  }
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto leaf = given.detach().clone().requires_grad_();
    const auto input = leaf * 1;  // autocast keeps the conversions of leaves anyway
    std::vector<at::Tensor> actual;
    const Autocast autocast(at::kCPU, dtype);
    const auto names = operators_of([&] { actual = detail::linear_together(input, layers); });
    EXPECT_EQ(std::count(names.begin(), names.end(), "aten::_to_copy"), 1 + layers.size());
    auto expected = at::zeros({kRows, kDepth}, at::kDouble);
    auto sum = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < layers.size(); ++i) {
      EXPECT_TRUE(at::equal(actual[i], at::linear(given, layers[i].weight)));
      const auto gradient = uniform(actual[i].sizes(), dtype).to(at::kDouble);
      sum = sum + (actual[i].to(at::kDouble) * gradient).sum();
      expected = expected + gradient.matmul(layers[i].weight.detach().to(dtype).to(at::kDouble));
    }
    const auto gradient = torch::autograd::grad({sum}, {leaf}).front();
    EXPECT_EQ(gradient.scalar_type(), at::kFloat);
    // The gradients of three layers are rounded to `dtype`, and so are their sums.
    EXPECT_TRUE(is_close(gradient, expected, 5 * tolerance(dtype, outputs[0])));
  }
}

TEST(Linear, ChoosesByProcessorAndSize) {
  const auto product = [](const Tensors& tensors) {
    return linear_product(tensors.input, tensors.weight, tensors.bias);
  };
  const auto large = make_tensors({{256, 520}, 520}, at::kFloat);
  const auto small = make_tensors({{50, 128}, 128}, at::kFloat);
  const auto tiny = make_tensors({{50, 64}, 128}, at::kFloat);
  const auto few = make_tensors({{8, 520}, 520}, at::kFloat);
  const bool foreign = detail::blas_properties().foreign_mkl;
  const bool has_mkl = foreign || detail::blas_properties().wide_vectors;
  const auto libtorch = LinearProduct::libtorch;
  const bool wide = foreign && detail::instruction_sets().back()->vector_bytes >= 64;
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    const auto blocks = set->vector_bytes >= 64 ? LinearProduct::in_blocks : libtorch;
    EXPECT_EQ(product(large), wide ? LinearProduct::pointwise : libtorch) << set->name;
    EXPECT_EQ(product(small), foreign ? blocks : libtorch) << set->name;
    EXPECT_EQ(product(tiny), has_mkl ? blocks : libtorch) << set->name;
    EXPECT_EQ(product(few), has_mkl && set->vector_bytes >= 32 ? LinearProduct::few_rows : libtorch)
        << set->name;
  }
  const auto names = operators_of([&] { linear(large.input, large.weight, large.bias); });
  EXPECT_EQ(std::count(names.begin(), names.end(), "mkldnn::_linear_pointwise"), wide ? 1 : 0);
  EXPECT_EQ(std::count(names.begin(), names.end(), "aten::linear"), wide ? 0 : 1);
  for (const auto& size : kProducts) {
    EXPECT_EQ(product(make_tensors(size, at::kDouble)), libtorch);
  }
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_EQ(product(large), libtorch);
  at::globalContext().setUserEnabledMkldnn(true);
  const Autocast autocast(at::kCPU, at::kBFloat16);
  for (const auto& tensors : {large, small, tiny, few}) EXPECT_EQ(product(tensors), libtorch);
}

/// Beside tiles of bfloat16, more than four rows of a large weight are LibTorch's.
TEST(Linear, LeavesRowsOfBFloat16ToTiles) {
  const auto& blas = detail::blas_properties();
  if (!blas.foreign_mkl && !blas.wide_vectors) return;  // nothing of heed's is chosen
  if (detail::instruction_set().vector_bytes < 32) return;
  const auto product = [](int64_t rows, int64_t width) {
    const auto tensors = make_tensors({{rows, width}, width}, at::kBFloat16);
    return linear_product(tensors.input, tensors.weight, tensors.bias);
  };
  for (const int64_t rows : {1, 4, 5, 8}) {
    EXPECT_EQ(product(rows, 64), LinearProduct::few_rows) << rows;
    EXPECT_EQ(product(rows, 520) == LinearProduct::few_rows, rows <= 4 || !blas.bfloat16_tiles)
        << rows;
  }
}

/// NaN of a row, and after rows, stays out of the other rows. LibTorch's product with AMX reads one
/// element beyond odd rows.
TEST(Linear, KeepsNaNInItsRow) {
  torch::manual_seed(moved(9));
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t depth : {9, 127, 128, 511}) {
      for (const int64_t rows : {3, 33, 512}) {
        SCOPED_TRACE(c10::str(dtype, " ", rows, " x ", depth));
        const auto weight = uniform({65, depth}, dtype);
        const auto memory = at::full({rows, depth + 2}, std::nan(""), weight.options());
        auto apart = memory.narrow(1, 0, depth);
        apart.copy_(uniform({rows, depth}, dtype));
        EXPECT_FALSE(detail::linear(apart, weight).isnan().any().item<bool>());
        auto dense = apart.clone();
        dense[1].fill_(std::nan(""));
        for (const bool records : {false, true}) {
          const auto input = dense.clone().requires_grad_(records);
          const auto found = detail::linear(input, weight).isnan().all(1);
          EXPECT_TRUE(found[1].item<bool>() && found.sum().item<int64_t>() == 1) << records;
        }
      }
    }
  }
}

/// Products of all rows, and of the first one in the same memory.
TEST(Linear, WritesToMemoryThatIsGiven) {
  torch::manual_seed(moved(8));
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const auto& size : kSizes) {
      SCOPED_TRACE(c10::str(dtype, " ", size.input, " to ", size.outputs));
      const auto [input, weight, bias] = make_tensors(size, dtype);
      const auto rows = input.reshape({-1, size.depth()});
      const auto expected = at::linear(rows.to(at::kDouble), weight.to(at::kDouble));
      const auto close = tolerance(dtype, size.depth());
      at::Tensor memory;
      for (const auto count : {rows.size(0), int64_t{1}}) {
        for (const auto& added : {bias, at::Tensor()}) {
          const auto some = rows.narrow(0, 0, count);
          const auto product = detail::linear_in_memory(memory, some, weight, added);
          const auto sum = expected.narrow(0, 0, count);
          EXPECT_TRUE(is_close(product, added.defined() ? sum + bias : sum, close)) << count;
          const bool is_libtorch = linear_product(some, weight, added) == LinearProduct::libtorch;
          EXPECT_EQ(memory.defined() && product.is_alias_of(memory), is_libtorch) << count;
        }
      }
      const auto larger = at::ones({rows.size(0) + 2, size.outputs}, dtype);
      const auto own = larger.narrow(0, 1, rows.size(0));
      detail::write_linear(rows, weight, own);
      EXPECT_TRUE(is_close(own, expected, close));
      detail::add_linear(rows, weight, own);
      EXPECT_TRUE(is_close(own, 2 * expected, 2 * close));
      for (const int64_t row : {int64_t{0}, rows.size(0) + 1}) {
        EXPECT_TRUE(larger[row].eq(1).all().item<bool>()) << row;
      }
    }
  }
}

TEST(Linear, OfFewRowsIsRightInEveryInstructionSet) {
  torch::manual_seed(moved(6));
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t rows : {1, 2, 3, 4, 5, 8}) {
        for (const int64_t depth : {1, 31, 96, 2100}) {
          for (const int64_t outputs : {1, 7, 64, 131}) {
            const auto [input, weight, bias] = make_tensors({{rows, depth}, outputs}, dtype);
            const auto actual = detail::linear_of_few_rows(input, {{weight, bias}, {weight, {}}});
            for (const auto& [output, added] : {std::pair(actual[0], bias), {actual[1], {}}}) {
              const auto expected =
                  at::linear(input.to(at::kDouble), weight.to(at::kDouble),
                             added.defined() ? std::optional(added.to(at::kDouble)) : std::nullopt);
              EXPECT_TRUE(is_close(output, expected, tolerance(dtype, depth)))
                  << set->name << " " << dtype << " " << rows << " " << depth << " " << outputs;
            }
          }
        }
      }
    }
  }
}

TEST(Linear, InBlocksIsRightInEveryInstructionSet) {
  torch::manual_seed(moved(7));
  const auto threads = at::get_num_threads();
  at::set_num_threads(3);  // rows are cut for some sizes, columns for others
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    for (const int64_t rows : {1, 13, 50, 500}) {
      for (const int64_t depth : {1, 31, 100, 530}) {
        for (const int64_t outputs : {1, 7, 64, 131, 400}) {
          SCOPED_TRACE(c10::str(set->name, " ", rows, " ", depth, " ", outputs));
          const auto [input, weight, bias] = make_tensors({{rows, depth}, outputs}, at::kFloat);
          const auto by_columns = weight.t().contiguous().t();
          const auto expected = at::linear(input.to(at::kDouble), weight.to(at::kDouble));
          const auto close = tolerance(at::kFloat, depth);
          for (const auto& given : {input, input.t().contiguous().t()}) {
            const auto actual = detail::linear_in_blocks(given, {{weight, bias}, {by_columns, {}}});
            EXPECT_TRUE(is_close(actual[0], expected + bias.to(at::kDouble), close));
            EXPECT_TRUE(is_close(actual[1], expected, close));
            detail::add_linear_in_blocks(given, by_columns, actual[0]);
            EXPECT_TRUE(is_close(actual[0], 2 * expected + bias.to(at::kDouble), 2 * close));
          }
        }
      }
    }
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace heed::test::of_linear
