// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/alibi.h>
#include <heed/attend.h>
#include <heed/attend_paged.h>
#include <heed/autocast.h>
#include <heed/masks.h>
#include <heed/quantize.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/memory.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "unit/routes.h"

namespace heed::test::of_int8 {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();

/// The numbers that int8 numbers stand for, in float64.
at::Tensor widened(const at::Tensor& numbers, const at::Tensor& scales) {
  return numbers.to(at::kDouble) * scales.to(at::kDouble).unsqueeze(-1);
}

/// Queries, and keys and values as int8.
struct Int8 {
  Int8(const Sizes& sizes, const at::TensorOptions& options)
      : inputs(make_inputs(sizes, options.dtype(at::kDouble))) {
    std::tie(key, key_scales) = quantize_int8(inputs.key);
    std::tie(value, value_scales) = quantize_int8(inputs.value);
    inputs = {inputs.query.to(options.dtype()), widened(key, key_scales),
              widened(value, value_scales)};
  }

  AttendOptions with_scales(AttendOptions options) const {
    return options.key_scales(key_scales).value_scales(value_scales);
  }
  at::Tensor attend(const AttendOptions& options = {}) const {
    return heed::attend(inputs.query, key, value, with_scales(options));
  }
  at::Tensor expected(const AttendOptions& options = {}) const {
    return reference(inputs, options).output;
  }

  Inputs inputs;  // of keys and values, what int8 numbers stand for
  at::Tensor key, value, key_scales, value_scales;
};

/// The tolerance of a result with queries of this dtype. Where keys are not read as they are, they
/// are rounded to it: by a roundoff each, of both keys and values.
double tolerance(at::ScalarType dtype) {
  return (dtype == at::kFloat || dtype == at::kDouble ? 32 : 8) * unit_roundoff(dtype);
}

TEST(QuantizeInt8, IsWithinHalfAScale) {
  torch::manual_seed(moved(1));
  for (const auto device : devices()) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const auto heads = uniform({3, 2, 7, 9}, at::device(device).dtype(dtype));
      const auto [numbers, scales] = quantize_int8(heads);
      ASSERT_EQ(numbers.scalar_type(), at::kChar);
      ASSERT_EQ(scales.scalar_type(), at::kFloat);
      ASSERT_EQ(scales.sizes(), at::IntArrayRef({3, 2, 7}));
      const auto error = (widened(numbers, scales) - heads).abs();
      // Half a scale, and float32's roundoff of 127 scales.
      const auto bound = scales.to(at::kDouble).unsqueeze(-1) * 0.5001;
      EXPECT_TRUE(error.le(bound).all().item<bool>());
      EXPECT_EQ(numbers.abs().max().item<int>(), 127);
    }
  }
}

TEST(QuantizeInt8, KeepsZerosAndShowsNan) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto heads = at::tensor({0.0, 0.0, 254.0, -1.0, kNan, 1.0, 1.0, -infinity}).view({4, 2});
  const auto [numbers, scales] = quantize_int8(heads);
  EXPECT_TRUE(is_close(scales.narrow(0, 0, 2), at::tensor({0.0, 2.0}), 0.0));
  EXPECT_TRUE(scales.narrow(0, 2, 2).isnan().all().item<bool>());
  EXPECT_TRUE(
      is_close(numbers.narrow(0, 0, 2), at::tensor({0, 0, 127, 0}, at::kChar).view({2, 2}), 0.0));
  EXPECT_EQ(std::get<0>(quantize_int8(at::zeros({2, 3, 0}))).sizes(), at::IntArrayRef({2, 3, 0}));
  EXPECT_EQ(std::get<1>(quantize_int8(at::zeros({2, 0, 3}))).sizes(), at::IntArrayRef({2, 0}));
}

TEST(QuantizeInt8, NamesWhatItDoesNotTake) {
  EXPECT_ERROR("quantize_int8: heads must be defined", quantize_int8({}));
  EXPECT_ERROR("quantize_int8: heads rank (0) must be at least 1", quantize_int8(at::zeros({})));
  EXPECT_ERROR("quantize_int8: heads dtype (Long) must be Float, Double, BFloat16 or Half",
               quantize_int8(at::zeros({2}, at::kLong)));
}

std::vector<std::pair<const char*, AttendOptions>> variants(const Sizes& sizes) {
  const auto sinks = uniform({sizes.H}, at::kFloat);
  return {
      {"plain", {}},
      {"causal", AttendOptions().causal(true)},
      {"causal, window", AttendOptions().causal(true).window(20)},
      {"mask", AttendOptions().mask(random_mask({sizes.B, sizes.H, sizes.L, sizes.S}))},
      {"bias, scale", AttendOptions().bias(uniform({sizes.L, sizes.S}, at::kFloat)).scale(0.4)},
      {"softcap, ALiBi, sinks",
       AttendOptions().causal(true).softcap(1.5).alibi_slopes(alibi_slopes(sizes.H)).sinks(sinks)},
      {"documents", AttendOptions()
                        .documents(at::arange(sizes.L).remainder(2))
                        .key_documents(at::arange(sizes.S).remainder(2))}};
}

AttendOptions on_device(AttendOptions options, at::Device device) {
  for (auto* tensor : {&options.mask(), &options.bias(), &options.alibi_slopes(), &options.sinks(),
                       &options.documents(), &options.key_documents()}) {
    if (*tensor) *tensor = (*tensor)->to(device);
  }
  return options;
}

std::vector<Route> quantized_routes() {
  auto result = routes();
  if (!devices().front().is_cpu()) return result;
  for (const auto* set : detail::instruction_sets()) {
    result.push_back({std::string("decode_") + set->name, AttendPath::decode, set, {}});
  }
  return result;
}

class AttendInt8 : public ::testing::TestWithParam<std::tuple<Route, at::ScalarType>> {};

INSTANTIATE_TEST_SUITE_P(Routes, AttendInt8,
                         ::testing::Combine(::testing::ValuesIn(quantized_routes()), kDtypes),
                         kNamed);

/// Few queries and many, groups of every size, and dims and lengths around those of the kernels.
TEST_P(AttendInt8, EqualsTheReference) {
  torch::manual_seed(moved(1));
  const auto& [route, dtype] = GetParam();
  const ScopedRoute in_force(route);
  for (const auto device : devices()) {
    for (const auto& sizes :
         {Sizes{2, 4, 2, 1, 70, 40, 33}, Sizes{1, 8, 1, 1, 130, 64, 64}, Sizes{2, 3, 3, 2, 5, 3, 2},
          Sizes{1, 2, 1, 37, 90, 16, 8}, Sizes{1, 2, 1, 80, 90, 16, 8}, Sizes{1, 1, 1, 1, 1, 1, 1},
          Sizes{0, 2, 1, 3, 4, 5, 6}}) {
      const Int8 call(sizes, at::device(device).dtype(dtype));
      for (const auto& [name, options] : variants(sizes)) {
        const auto output = call.attend(on_device(options, device));
        ASSERT_EQ(output.scalar_type(), dtype);
        EXPECT_TRUE(is_close(output, call.expected(options), tolerance(dtype)))
            << name << ", L " << sizes.L << ", S " << sizes.S;
      }
    }
  }
}

/// As caches keep them, and views of them.
TEST_P(AttendInt8, TakesAnyStrides) {
  torch::manual_seed(moved(1));
  const auto& [route, dtype] = GetParam();
  const ScopedRoute in_force(route);
  for (const auto device : devices()) {
    Int8 call({2, 4, 2, 1, 70, 8, 8}, at::device(device).dtype(dtype));
    for (auto* tensor : {&call.key, &call.key_scales, &call.value_scales}) {
      *tensor = tensor->transpose(1, 2).contiguous().transpose(1, 2);
    }
    call.value = call.value.transpose(2, 3).contiguous().transpose(2, 3);
    EXPECT_TRUE(is_close(call.attend(), call.expected(), tolerance(dtype)));
    call.key_scales = call.key_scales.contiguous();
    call.value_scales = call.value_scales.contiguous();
    call.value = call.value.contiguous();
    EXPECT_TRUE(is_close(call.attend(), call.expected(), tolerance(dtype)));
  }
}

TEST_P(AttendInt8, HidesNanAndShowsIt) {
  torch::manual_seed(moved(1));
  const auto& [route, dtype] = GetParam();
  if (!devices().front().is_cpu()) GTEST_SKIP() << "only the CPU hides NaN";
  const ScopedRoute in_force(route);
  for (const int64_t length : {1, 30}) {
    Int8 call({1, 4, 2, length, 70, 8, 8}, dtype);
    const auto mask = at::arange(70).ne(69).unsqueeze(0).expand({length, 70});
    const auto options = AttendOptions().mask(mask);
    const auto expected = call.attend(options);
    call.key_scales.select(2, 69).fill_(kNan);
    call.value_scales.select(2, 69).fill_(kNan);
    EXPECT_TRUE(is_close(call.attend(options), expected.to(at::kDouble), tolerance(dtype)));
    EXPECT_TRUE(call.attend().isnan().all().item<bool>());
  }
}

TEST_P(AttendInt8, ReadsPages) {
  torch::manual_seed(moved(1));
  const auto& [route, dtype] = GetParam();
  const ScopedRoute in_force(route);
  const at::NoGradGuard no_grad;
  constexpr int64_t kPages = 50, kPage = 16;
  for (const auto device : devices()) {
    const auto on = at::device(device).dtype(dtype);
    const auto [keys, key_scales] = quantize_int8(uniform({kPages, 2, kPage, 8}, on));
    const auto [values, value_scales] = quantize_int8(uniform({kPages, 2, kPage, 5}, on));
    // Sequences of 600, 610, 310 and 25 keys, of which the first three begin with the same 18
    // pages, and two of these with the same 36.
    auto table = at::zeros({4, 39}, at::kLong);
    const auto order = at::randperm(kPages, at::kLong);
    table[0].narrow(0, 0, 38).copy_(order.narrow(0, 0, 38));
    table[1].narrow(0, 0, 36).copy_(order.narrow(0, 0, 36));
    table[1].narrow(0, 36, 3).copy_(order.narrow(0, 38, 3));
    table[2].narrow(0, 0, 18).copy_(order.narrow(0, 0, 18));
    table[2].narrow(0, 18, 2).copy_(order.narrow(0, 41, 2));
    table[3].narrow(0, 0, 2).copy_(order.narrow(0, 43, 2));
    const auto lengths = at::tensor({600, 610, 310, 25}, at::kLong);
    const auto offsets = at::tensor({0, 1, 2, 14, 34}, at::kLong);
    const auto query = uniform({34, 4, 8}, on);
    const auto options = AttendOptions().causal(true);
    const auto output =
        attend_paged(query, keys, values, table, offsets, lengths,
                     AttendOptions(options).key_scales(key_scales).value_scales(value_scales));
    ASSERT_EQ(output.scalar_type(), dtype);
    const auto expected =
        attend_paged(query.to(at::kDouble), widened(keys, key_scales),
                     widened(values, value_scales), table, offsets, lengths, options);
    EXPECT_TRUE(is_close(output, expected, tolerance(dtype)));
  }
}

TEST(AttendInt8Results, HaveWeightsLseAndGradientsOfTheQuery) {
  torch::manual_seed(moved(1));
  const Sizes sizes{2, 4, 2, 9, 20, 8, 8};
  const Int8 call(sizes, at::kFloat);
  const auto options = AttendOptions().causal(true);
  auto reference = reference_input(call.inputs, options);
  reference.output_gradient = uniform({2, 4, 9, 8}, at::kDouble);
  const auto expected = reference_attention(reference);
  const auto query = call.inputs.query.clone().requires_grad_();
  const auto of = call.with_scales(options);
  const auto close = [](const at::Tensor& actual, const at::Tensor& exact) {
    return is_close(actual.detach(), exact, 64 * unit_roundoff(at::kFloat));
  };
  EXPECT_TRUE(
      close(std::get<1>(attend_with_weights(query, call.key, call.value, of)), expected.weights));
  EXPECT_TRUE(close(std::get<1>(attend_with_lse(query, call.key, call.value, of)), expected.lse));
  attend(query, call.key, call.value, of).backward(reference.output_gradient.to(at::kFloat));
  EXPECT_TRUE(close(query.grad(), expected.query_grad));
}

TEST(AttendInt8Results, AreAutocastsDtype) {
  const Int8 call({1, 2, 2, 3, 4, 8, 8}, at::kFloat);
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const auto output = call.attend();
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(is_close(output, call.expected(), tolerance(at::kBFloat16)));
}

TEST(AttendInt8Paths, ReadKeysAsTheyAre) {
  if (!detail::has_kernels()) GTEST_SKIP() << kNoKernels;
  if (!devices().front().is_cpu()) GTEST_SKIP() << "paths of the CPU";
  const at::NoGradGuard no_grad;
  const Int8 call({1, 8, 2, 1, 16384, 64, 64}, at::kFloat);
  const auto options = call.with_scales(AttendOptions().causal(true));
  for (const auto& [length, path] :
       {std::pair<int64_t, AttendPath>(1, AttendPath::decode), {300, AttendPath::block}}) {
    const auto query = at::zeros({1, 8, length, 64});
    EXPECT_EQ(attend_path(query, call.key, call.value, options), path);
    attend(query, call.key, call.value, options);
    const AllocationCounter counter;
    attend(query, call.key, call.value, options);
    EXPECT_LT(counter.peak(), 3'000'000);  // keys and values are 17 MB as floats
  }
  const auto query = at::zeros({1, 8, 300, 64}).requires_grad_();
  const at::AutoGradMode grad(true);
  EXPECT_EQ(attend_path(query, call.key, call.value, options), AttendPath::block);
}

/// The bound of docs/numerics.md.
TEST(AttendInt8Results, AreWithinTheirBound) {
  torch::manual_seed(moved(1));
  for (const int64_t head_dim : {8, 64, 128}) {
    for (const double size : {0.1, 1.0, 3.0}) {
      const Sizes sizes{1, 2, 2, 3, 40, head_dim, head_dim};
      const auto exact = make_inputs(sizes, at::kDouble);
      const Inputs inputs{exact.query * size, exact.key, exact.value};
      const auto [key, key_scales] = quantize_int8(inputs.key);
      const auto [value, value_scales] = quantize_int8(inputs.value);
      const auto output = attend(inputs.query.to(at::kFloat), key, value,
                                 AttendOptions().key_scales(key_scales).value_scales(value_scales));
      const auto change = (output - reference(inputs, {}).output).abs();
      const auto queries = inputs.query.abs().sum(3).max().item<double>();
      const auto largest_key = inputs.key.abs().max().item<double>();
      const auto largest_value = inputs.value.abs().max().item<double>();
      const auto e = queries * largest_key / std::sqrt(static_cast<double>(head_dim)) / 254.0;
      EXPECT_LT(change.max().item<double>(),
                (1.0 / 254.0 + std::exp(2.0 * e) - 1.0) * largest_value);
      EXPECT_GT(change.max().item<double>(), 1e-4);
    }
  }
}

class AttendInt8Errors : public ::testing::Test {
 protected:
  std::string error(const AttendOptions& options) const {
    return value_error([&] { attend(query, key, value, options); });
  }
  AttendOptions scaled() const {
    return AttendOptions().key_scales(at::zeros({2, 1, 5})).value_scales(at::zeros({2, 1, 5}));
  }

  at::Tensor query = at::zeros({2, 3, 4, 8});
  at::Tensor key = at::zeros({2, 1, 5, 8}, at::kChar), value = at::zeros({2, 1, 5, 6}, at::kChar);
};

TEST_F(AttendInt8Errors, NameWhatIsWrong) {
  EXPECT_EQ(error({}), "attend: key dtype (Char) must equal query dtype (Float)");
  EXPECT_EQ(error(AttendOptions().key_scales(at::zeros({2, 1, 5}))),
            "attend: value_scales must be given with the other scales");
  EXPECT_EQ(error(AttendOptions().value_scales(at::zeros({2, 1, 5}))),
            "attend: key_scales must be given with the other scales");
  EXPECT_EQ(error(scaled().key_scales(at::Tensor())), "attend: key_scales must be defined");
  EXPECT_EQ(error(scaled().key_scales(at::zeros({2, 1, 5}, at::kHalf))),
            "attend: key_scales dtype (Half) must be Float");
  EXPECT_EQ(error(scaled().value_scales(at::zeros({2, 1, 6}))),
            "attend: value_scales [2, 1, 6] must be value without its last dim [2, 1, 5, 6]");
  EXPECT_EQ(error(scaled().key_scales(at::zeros({2, 1, 5}).requires_grad_())),
            "attend: key_scales must not require grad");
  value = value.to(at::kFloat);
  EXPECT_EQ(error(scaled()), "attend: value dtype (Float) must be Char with value_scales");
}

TEST_F(AttendInt8Errors, RefuseScalesWhereTheyHaveNoMeaning) {
  const auto rows = at::zeros({5, 3, 8});
  const auto offsets = at::tensor({0, 5}, at::kLong);
  EXPECT_ERROR(
      "attend_varlen: key_scales and value_scales must be absent: pass key * "
      "key_scales.unsqueeze(-1), and value likewise",
      attend_varlen(rows, rows, rows, offsets, offsets, scaled()));
}

}  // namespace
}  // namespace heed::test::of_int8
