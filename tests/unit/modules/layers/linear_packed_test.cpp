// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/autocast.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/capability.h"
#include "cpu/layers/packed_weight.h"
#include "modules/layers/linear.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/modules/layers/linear_cases.h"

/// Products with packed weights, and the numbers that packed weights have.

namespace heed::test::of_linear {
namespace {

using detail::PackedFormat;
using detail::PackedLayout;

constexpr PackedFormat kFormats[] = {PackedFormat::float32, PackedFormat::bfloat16,
                                     PackedFormat::float16, PackedFormat::int8, PackedFormat::int4};

PackedLayout layout_of(PackedFormat format) {
  return {format, format == PackedFormat::int4 ? 32 : 0, false};
}

at::Tensor packed(const at::Tensor& weight, const PackedLayout& layout, at::ScalarType dtype) {
  return detail::packed_tensor(
      std::make_shared<const detail::PackedWeight>(detail::pack_weight(weight, layout)), dtype);
}

at::Tensor numbers_of(const at::Tensor& weight, const PackedLayout& layout) {
  return detail::unpack_weight(detail::pack_weight(weight, layout));
}

TEST(PackedWeight, HasTheNumbersOfItsFormat) {
  torch::manual_seed(moved(31));
  for (const int64_t outputs : {1, 64, 131}) {
    const auto weight = uniform({outputs, 96}, at::kFloat);
    const auto as = [&](at::ScalarType dtype) { return weight.to(dtype).to(at::kFloat); };
    EXPECT_TRUE(at::equal(numbers_of(weight, {PackedFormat::float32}), weight));
    EXPECT_TRUE(at::equal(numbers_of(weight, {PackedFormat::bfloat16}), as(at::kBFloat16)));
    EXPECT_TRUE(at::equal(numbers_of(weight, {PackedFormat::float16}), as(at::kHalf)));
  }
}

/// The largest error, as a part of the largest number that shares its scale.
double error_of(const at::Tensor& weight, const PackedLayout& layout, int64_t shared) {
  const auto error = (numbers_of(weight, layout) - weight).abs();
  const auto largest = weight.abs().unflatten(1, {-1, shared}).amax(-1, /*keepdim=*/true);
  return (error.unflatten(1, {-1, shared}) / largest).max().item<double>();
}

TEST(PackedWeight, IsWithinTheBoundOfItsFormat) {
  torch::manual_seed(moved(32));
  // Each output has a size of its own.
  const auto weight = uniform({131, 256}, at::kFloat) * uniform({131, 1}, at::kFloat).exp2();
  EXPECT_LE(error_of(weight, {PackedFormat::int8}, 256), 0.5 / 127 * 1.0001);
  for (const int64_t group : {32, 64, 128}) {
    // A number on the side of the smaller extreme can be a whole step away, and bfloat16 rounds the
    // step, of which there are 7 on that side.
    const auto error = error_of(weight, {PackedFormat::int4, group, false}, group);
    EXPECT_LE(error, (1 + 7 * 0x1p-8) / 8) << group;
    EXPECT_GE(error, 1.0 / 32) << group;
    // (max - min) / 15 / 2, and what bfloat16 rounds.
    EXPECT_LE(error_of(weight, {PackedFormat::int4, group, true}, group), 1.0 / 15 + 0x1p-7);
  }
}

TEST(PackedWeight, KeepsZerosAndExtremes) {
  for (const auto format : kFormats) {
    auto weight = at::zeros({3, 64}, at::kFloat);
    EXPECT_TRUE(at::equal(numbers_of(weight, layout_of(format)), weight));
    weight[1][7] = -0.75;
    weight[2][40] = 1.5;
    // Scales of int8 are rounded.
    EXPECT_TRUE(is_close(numbers_of(weight, layout_of(format)), weight, 1e-6));
  }
}

/// The tolerance of a product: that of its sums, and of weights of int4, which are rounded to
/// bfloat16 beside an input of bfloat16.
double tolerance_of_packed(at::ScalarType dtype, int64_t depth) {
  const auto terms = static_cast<double>(depth);
  return 4 * unit_roundoff(dtype) * std::sqrt(terms) + 2 * unit_roundoff(at::kFloat) * terms;
}

void expect_right(const Size& size, at::ScalarType dtype, const PackedLayout& layout) {
  const auto [input, weight, bias] = make_tensors(size, dtype);
  const auto expected =
      at::linear(input.to(at::kDouble), numbers_of(weight, layout).to(at::kDouble));
  const auto of_packed = packed(weight, layout, dtype);
  const auto close = tolerance_of_packed(dtype, size.depth());
  const auto outputs = detail::linear_together(input, {{of_packed, bias}, {of_packed, {}}});
  EXPECT_TRUE(is_close(outputs[0], expected + bias.to(at::kDouble), close));
  EXPECT_TRUE(is_close(outputs[1], expected, close));
  EXPECT_TRUE(at::equal(detail::linear(input, of_packed, bias), outputs[0]));
  EXPECT_EQ(outputs[0].scalar_type(), dtype);
}

TEST(LinearPacked, IsRightInEveryInstructionSet) {
  torch::manual_seed(moved(33));
  const at::NoGradGuard no_grad;
  auto sets = detail::instruction_sets();
  sets.push_back(&detail::no_kernels());
  for (const auto* set : sets) {
    const detail::ScopedInstructionSet in_force(*set);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const auto format : kFormats) {
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 16, 33}) {
          for (const int64_t outputs : {1, 65, 200}) {
            const bool has_groups = format == PackedFormat::int4;
            const auto depths =
                has_groups ? std::vector<int64_t>{32, 576} : std::vector<int64_t>{1, 96, 545};
            for (const auto depth : depths) {
              SCOPED_TRACE(c10::str(set->name, " ", dtype, " format ", static_cast<int>(format),
                                    " ", rows, " x ", depth, " to ", outputs));
              expect_right({{rows, depth}, outputs}, dtype, layout_of(format));
              if (has_groups) expect_right({{rows, depth}, outputs}, dtype, {format, 32, true});
            }
          }
        }
      }
    }
  }
}

TEST(LinearPacked, TakesManyRowsAndOtherLayouts) {
  torch::manual_seed(moved(34));
  const at::NoGradGuard no_grad;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto format : kFormats) {
      expect_right({{2, 500, 96}, 40}, dtype, layout_of(format));
      expect_right({{96}, 40}, dtype, layout_of(format));
      expect_right({{2, 0, 96}, 40}, dtype, layout_of(format));
      const auto weight = uniform({40, 96}, dtype);
      const auto of_packed = packed(weight.t().contiguous().t(), layout_of(format), dtype);
      const auto input = uniform({96, 7}, dtype).t();
      EXPECT_TRUE(
          at::equal(detail::linear(input, of_packed),
                    detail::linear(input.contiguous(), packed(weight, layout_of(format), dtype))));
      // A view whose elements are negated when they are read.
      EXPECT_TRUE(at::equal(detail::linear(at::_neg_view(input), of_packed),
                            detail::linear(input.neg(), of_packed)));
    }
  }
}

PackedLayout quantizing(PackedLayout layout = {PackedFormat::int8}) {
  layout.quantize_activations = true;
  return layout;
}

/// The numbers that the rows of an input are rounded to, in float64. No row is 0.
at::Tensor rounded_to_bytes(const at::Tensor& input) {
  const auto x = input.to(at::kFloat);
  const auto largest = x.abs().amax(-1, /*keepdim=*/true);
  const auto bytes = (x * (127 / largest)).round();  // half to even, as the kernel
  return bytes.to(at::kDouble) * (largest.to(at::kDouble) / 127);
}

void expect_rounded(const Size& size, at::ScalarType dtype, const PackedLayout& layout) {
  const auto [input, weight, bias] = make_tensors(size, dtype);
  const auto numbers = numbers_of(weight, layout).to(at::kDouble);
  const bool rounds =
      detail::instruction_set().multiplies_bytes && input.numel() / size.depth() > 8;
  const auto exact = input.to(at::kDouble);
  const auto expected = at::linear(rounds ? rounded_to_bytes(input) : exact, numbers);
  const auto of_packed = packed(weight, quantizing(layout), dtype);
  const auto outputs = detail::linear_together(input, {{of_packed, bias}, {of_packed, {}}});
  const auto close = tolerance_of_packed(dtype, size.depth());
  EXPECT_TRUE(is_close(outputs[0], expected + bias.to(at::kDouble), close));
  EXPECT_TRUE(is_close(outputs[1], expected, close));
  if (!rounds) {
    const auto as_it_is = packed(weight, layout, dtype);
    EXPECT_TRUE(at::equal(outputs[0], detail::linear(input, as_it_is, bias)));
    return;
  }
  // The bound that docs/numerics.md states: half a step of each number.
  const auto step = exact.abs().amax(-1, /*keepdim=*/true) / 127;
  const auto bound = (step / 2) * numbers.abs().sum(1) * 1.001 + close;
  EXPECT_LE(((outputs[1].to(at::kDouble) - at::linear(exact, numbers)).abs() - bound)
                .max()
                .item<double>(),
            0.0);
}

TEST(LinearPacked, RoundsManyRowsToBytesInEveryInstructionSet) {
  torch::manual_seed(moved(36));
  const at::NoGradGuard no_grad;
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t rows : {1, 8, 9, 33, 500}) {
        for (const int64_t outputs : {1, 65, 200}) {
          for (const int64_t depth : {1, 15, 96, 545, 1027}) {
            SCOPED_TRACE(c10::str(set->name, " ", dtype, " ", rows, " x ", depth, " to ", outputs));
            expect_rounded({{rows, depth}, outputs}, dtype, {PackedFormat::int8});
          }
        }
      }
    }
  }
}

TEST(LinearPacked, RoundsManyRowsToBytesBesideInt4) {
  torch::manual_seed(moved(38));
  const at::NoGradGuard no_grad;
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t rows : {8, 9, 10, 11, 12, 13, 500}) {
        for (const int64_t outputs : {1, 31, 65, 200}) {
          for (const int64_t group : {32, 64, 128}) {
            for (const int64_t groups : {1, 3, 12, 21}) {
              const auto depth = group * groups;
              SCOPED_TRACE(c10::str(set->name, " ", dtype, " ", rows, " x ", depth, " to ", outputs,
                                    ", groups of ", group));
              const bool zero_point = groups % 2 == 1;
              expect_rounded({{rows, depth}, outputs}, dtype,
                             {PackedFormat::int4, group, zero_point});
            }
          }
        }
      }
    }
  }
}

TEST(LinearPacked, ShowsWhatCannotBeRoundedToBytes) {
  torch::manual_seed(moved(37));
  const at::NoGradGuard no_grad;
  const auto& sets = detail::instruction_sets();
  const auto set = std::find_if(sets.begin(), sets.end(),
                                [](const auto* each) { return each->multiplies_bytes; });
  if (set == sets.end()) GTEST_SKIP() << "the processor has no products of bytes";
  const detail::ScopedInstructionSet in_force(**set);
  for (const auto format : {PackedFormat::int8, PackedFormat::int4}) {
    auto [input, weight, bias] = make_tensors({{20, 96}, 70}, at::kFloat);
    const auto of_packed = packed(weight, quantizing(layout_of(format)), at::kFloat);
    input[3].zero_();
    const auto sound = detail::linear(input, of_packed, bias);
    EXPECT_TRUE(at::equal(sound[3], bias));
    input[3].fill_(1e-42);  // subnormal
    EXPECT_TRUE(is_close(detail::linear(input, of_packed, bias)[3], bias, 1e-6));
    input[5][95] = std::nan("");
    input[7][0] = std::numeric_limits<float>::infinity();
    const auto found = detail::linear(input, of_packed, bias);
    for (const int64_t row : {5, 7}) EXPECT_TRUE(found[row].isnan().all().item<bool>());
    for (const int64_t row : {0, 4, 6, 8, 19}) EXPECT_TRUE(at::equal(found[row], sound[row]));
  }
  // int32 holds the sums of no more numbers than 2^16.
  const auto deep = uniform({16, 65537}, at::kFloat), many = uniform({9, 65537}, at::kFloat);
  EXPECT_TRUE(at::equal(detail::linear(many, packed(deep, quantizing(), at::kFloat)),
                        detail::linear(many, packed(deep, {PackedFormat::int8}, at::kFloat))));
  const auto largest = at::ones({16, 65536}), ones = at::ones({9, 65536});
  EXPECT_TRUE(is_close(detail::linear(ones, packed(largest, quantizing(), at::kFloat)) / 65536,
                       at::ones({9, 16}), 1e-5));
}

/// A function of LibTorch's for each of the kernels'.
const std::vector<std::pair<detail::OutputFunction, at::Tensor (*)(const at::Tensor&)>> kFunctions =
    {{detail::OutputFunction::relu, [](const at::Tensor& x) { return at::relu(x); }},
     {detail::OutputFunction::gelu, [](const at::Tensor& x) { return at::gelu(x); }},
     {detail::OutputFunction::gelu_tanh, [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
     {detail::OutputFunction::gelu_sigmoid,
      [](const at::Tensor& x) { return x * at::sigmoid(x * 1.702); }},
     {detail::OutputFunction::silu, [](const at::Tensor& x) { return at::silu(x); }},
     {detail::OutputFunction::tanh, [](const at::Tensor& x) { return at::tanh(x); }}};

TEST(LinearPacked, AppliesAFunctionInEveryInstructionSet) {
  torch::manual_seed(moved(39));
  const at::NoGradGuard no_grad;
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t rows : {1, 6, 33}) {
        for (const bool quantizes : {false, true}) {
          const auto [input, weight, bias] = make_tensors({{rows, 96}, 77}, dtype);
          auto layout = layout_of(quantizes ? PackedFormat::int8 : PackedFormat::float32);
          layout.quantize_activations = quantizes;
          const auto of_packed = packed(weight, layout, dtype);
          const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
          const auto sums =
              detail::linear(wide(input), packed(weight, layout, at::kFloat), wide(bias));
          for (const auto& [function, of_libtorch] : kFunctions) {
            SCOPED_TRACE(c10::str(set->name, " ", dtype, " function ", static_cast<int>(function)));
            const auto found = detail::linear_with(function, input, of_packed, bias);
            ASSERT_TRUE(found);
            EXPECT_EQ(found->scalar_type(), dtype);
            // A sum has another order in bfloat16, and some functions are less exact there.
            const auto close = 2 * unit_roundoff(dtype) + 64 * unit_roundoff(at::kFloat);
            EXPECT_TRUE(are_alike({*found}, {of_libtorch(sums.to(at::kDouble))}, close));
          }
        }
      }
    }
  }
}

/// Errors relative to each value of gelu, also of small ones, and what is beyond them.
TEST(LinearPacked, AppliesFunctionsToAllNumbers) {
  const at::NoGradGuard no_grad;
  const auto one = packed(at::ones({1, 1}), {PackedFormat::float32}, at::kFloat);
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto of_packed = dtype == at::kFloat ? one : packed(at::ones({1, 1}), {}, dtype);
      const auto x = at::arange(-5.0, 5.0, 0.03, at::kDouble).to(dtype).unsqueeze(1);
      for (const auto& [function, of_libtorch] : kFunctions) {
        SCOPED_TRACE(c10::str(set->name, " ", dtype, " function ", static_cast<int>(function)));
        const auto expected = of_libtorch(x.to(at::kDouble));
        const auto found = detail::linear_with(function, x, of_packed, {});
        const auto error = (found->to(at::kDouble) - expected).abs();
        // A quarter of bfloat16's distance of neighbors beside its rounding; in float32 the
        // exponent's rounding, of which e^x makes as many roundoffs as the exponent is large.
        const auto bound =
            dtype == at::kFloat ? 64 * unit_roundoff(dtype) : 1.6 * unit_roundoff(dtype);
        EXPECT_LE((error - bound * expected.abs()).max().item<double>(), 1e-12);
        const auto ends = at::tensor({-1e30F, 0.0F, 1e30F, INFINITY, std::nanf("")}).to(dtype);
        const auto at_ends = detail::linear_with(function, ends.unsqueeze(1), of_packed, {});
        const auto value = [&](int64_t i) { return (*at_ends)[i].item<float>(); };
        const bool is_tanh = function == detail::OutputFunction::tanh;
        EXPECT_NEAR(value(0), is_tanh ? -1 : 0, 1e-8);  // e^-88 of the number, or less
        EXPECT_EQ(value(1), 0);
        EXPECT_EQ(value(2), is_tanh ? 1 : ends[2].item<float>());
        EXPECT_EQ(value(3), is_tanh ? 1 : INFINITY);
        EXPECT_TRUE(std::isnan(value(4)));
      }
    }
  }
}

/// LibTorch's operators follow where no kernel can apply the function.
TEST(LinearPacked, LeavesFunctionsToOthers) {
  const auto weight = uniform({24, 64}, at::kFloat);
  const auto of_packed = packed(weight, {PackedFormat::float32}, at::kFloat);
  const auto input = uniform({5, 64}, at::kFloat);
  constexpr auto kGelu = detail::OutputFunction::gelu;
  EXPECT_TRUE(detail::linear_with(kGelu, input, of_packed, {}));
  EXPECT_FALSE(detail::linear_with(kGelu, input, weight, {}));
  EXPECT_FALSE(detail::linear_with(kGelu, input.detach().requires_grad_(), of_packed, {}));
  EXPECT_FALSE(
      detail::linear_with(kGelu, input, of_packed, uniform({24}, at::kFloat).requires_grad_()));
  const detail::ScopedInstructionSet in_force(detail::no_kernels());
  EXPECT_FALSE(detail::linear_with(kGelu, input, of_packed, {}));
}

TEST(LinearPacked, IsConvertedByAutocast) {
  torch::manual_seed(moved(35));
  const at::NoGradGuard no_grad;
  const auto [input, weight, bias] = make_tensors({{5, 64}, 24}, at::kFloat);
  const auto of_packed = packed(weight, {PackedFormat::bfloat16}, at::kFloat);
  const auto expected = detail::linear(input.to(at::kBFloat16).to(at::kFloat), of_packed, bias);
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const auto output = detail::linear(input, of_packed, bias);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(is_close(output, expected, tolerance_of_packed(at::kBFloat16, 64)));
}

TEST(LinearPackedErrors, NameWhatIsWrong) {
  const auto weight = packed(uniform({24, 64}, at::kFloat), {PackedFormat::int8}, at::kFloat);
  const auto input = uniform({5, 64}, at::kFloat);
  EXPECT_ERROR("linear: x dim -1 must be in_features (64); x [5, 63]",
               detail::linear(input.narrow(1, 0, 63), weight));
  EXPECT_ERROR("linear: x dtype (Double) must equal weight dtype (Float)",
               detail::linear(input.to(at::kDouble), weight));
  // Autocast leaves these as they are.
  const Autocast autocast(at::kCPU, at::kBFloat16);
  EXPECT_ERROR("linear: x dtype (Double) must equal weight dtype (Float)",
               detail::linear(input.to(at::kDouble), weight));
  EXPECT_ERROR("linear: x dtype (Long) must equal weight dtype (Float)",
               detail::linear(input.to(at::kLong), weight));
}

TEST(LinearPacked, PassesTheGradientsOfInputAndBias) {
  for (const auto format : {PackedFormat::float32, PackedFormat::int8}) {
    const auto weight = packed(uniform({24, 64}, at::kFloat), {format}, at::kFloat);
    const auto numbers = detail::unpack_weight(*detail::packed_weight_of(weight));
    const auto input = uniform({5, 64}, at::kFloat).requires_grad_();
    const auto bias = uniform({24}, at::kFloat).requires_grad_();
    const auto gradient = uniform({5, 24}, at::kFloat);
    detail::linear(input, weight, bias).backward(gradient);
    EXPECT_TRUE(is_close(input.grad(), gradient.matmul(numbers), 1e-5));  // sums of 24 terms
    EXPECT_TRUE(is_close(bias.grad(), gradient.sum(0), 1e-5));
  }
}

TEST(PackedTensor, HasSizesAndNoNumbers) {
  const auto weight = packed(uniform({24, 64}, at::kBFloat16), {PackedFormat::int8}, at::kBFloat16);
  EXPECT_EQ(weight.sizes(), at::IntArrayRef({24, 64}));
  EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(weight.is_cpu() && !weight.has_storage() && !weight.requires_grad());
  EXPECT_EQ(detail::packed_weight_of(weight)->bytes(), 64 * 64 + 4 * 64);
  EXPECT_EQ(detail::packed_weight_of(uniform({2, 2}, at::kFloat)), nullptr);
  const auto words = [](const auto& call) { return error_text<c10::Error>(call); };
  for (const auto& text :
       {words([&] { weight.clone(); }), words([&] { weight.to(at::kFloat); }),
        words([&] { weight.data_ptr(); }), words([&] { weight + 1; }), words([&] {
          at::linear(uniform({2, 64}, at::kBFloat16), weight);
        })}) {
    EXPECT_EQ(text.rfind("the weight is packed by heed::pack_weights: its numbers cannot be read, "
                         "saved or converted; multiply by it with heed::linear(fc, x)",
                         0),
              0U)
        << text;
  }
}

}  // namespace
}  // namespace heed::test::of_linear
