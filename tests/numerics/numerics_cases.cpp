// SPDX-License-Identifier: BSD-3-Clause
#include "numerics_cases.h"

#include <ATen/ops/full_like.h>

#include <cmath>

namespace heed::test {

namespace {

Inputs times(const Inputs& inputs, double query_and_key, double value) {
  return {inputs.query * query_and_key, inputs.key * query_and_key, inputs.value * value};
}

Inputs small(const Sizes& sizes, at::ScalarType dtype) { return make_inputs(sizes, dtype); }

Inputs large_scores(const Sizes& sizes, at::ScalarType dtype) {
  return times(make_inputs(sizes, dtype), 32, 1);
}

Inputs outlier(const Sizes& sizes, at::ScalarType dtype) {
  auto inputs = make_inputs(sizes, dtype);
  inputs.key.select(2, sizes.S / 2).mul_(1e4);
  inputs.value.select(2, sizes.S / 2).mul_(1e4);
  return inputs;
}

Inputs huge_scores(const Sizes& sizes, at::ScalarType dtype) {
  const double root = dtype == at::kHalf ? huge(dtype) : std::sqrt(huge(dtype));
  return times(make_inputs(sizes, dtype), root, 1);
}

/// Powers of two, so that all products and sums are exact.
Inputs huge_equal_scores(const Sizes& sizes, at::ScalarType dtype) {
  const double root = dtype == at::kHalf ? 0x1p15 : 0x1p49;
  const auto inputs = make_inputs(sizes, dtype);
  return {at::full_like(inputs.query, root), at::full_like(inputs.key, root), inputs.value};
}

Inputs huge_values(const Sizes& sizes, at::ScalarType dtype) {
  const auto inputs = make_inputs(sizes, dtype);
  return {inputs.query, inputs.key, inputs.value.sign() * huge(dtype)};
}

/// All values the largest number: no sum of rounded weights may pass 1.
Inputs huge_equal_values(const Sizes& sizes, at::ScalarType dtype) {
  const auto inputs = make_inputs(sizes, dtype);
  return {inputs.query, inputs.key, at::full_like(inputs.value, huge(dtype))};
}

Inputs positive_values(const Sizes& sizes, at::ScalarType dtype) {
  const auto inputs = make_inputs(sizes, dtype);
  return {inputs.query, inputs.key, inputs.value.abs()};
}

Inputs subnormal(const Sizes& sizes, at::ScalarType dtype) {
  const double size = dtype == at::kDouble ? 1e-308 : dtype == at::kHalf ? 6e-5 : 1e-38;
  return times(make_inputs(sizes, dtype), size, size);
}

constexpr Sizes kShort{2, 4, 2, 33, 70, 16, 16};
constexpr Sizes kLong{1, 1, 1, 2, 100'000, 8, 8};

}  // namespace

const std::vector<Bound>& bounds() {
  // The roundings of a sum of S terms of one sign are a random walk: in steps of 16 keys, the
  // smallest tiles, its standard deviation is sqrt(2 S / 16) / 3 roundoffs for the sum of terms and
  // that of weights. 0.5 sqrt(S) is four of them; the largest of 40 seeds was 0.3.
  static const std::vector<Bound> all = {{at::kDouble, at::kDouble, 16, 32, 0.5},
                                         {at::kFloat, at::kFloat, 16, 32, 0.5},
                                         {at::kBFloat16, at::kFloat, 2, 4, 0.5},
                                         {at::kHalf, at::kFloat, 2, 4, 0.5}};
  return all;
}

const std::vector<NumericsCase>& numerics_cases() {
  static const std::vector<NumericsCase> all = {
      {"numbers in [-1, 1)", kShort, false, small},
      {"scores up to 4,000", kShort, false, large_scores},
      {"scores up to 1e30 (1e10 in float16)", kShort, true, huge_scores},
      {"the same, all equal", kShort, true, huge_equal_scores},
      {"a key and its value 10,000 times the others", kShort, false, outlier},
      {"values ±1e30 (±65,504 in float16)", kShort, false, huge_values, 0x1p-10},
      {"values all 1e30 (65,504 in float16)", kShort, false, huge_equal_values, 0x1p-10},
      {"subnormal numbers", kShort, false, subnormal},
      {"100,000 keys", kLong, false, small},
      {"100,000 keys, values of one sign", kLong, false, positive_values}};
  return all;
}

double huge(at::ScalarType dtype) { return dtype == at::kHalf ? 65504 : 1e30; }

}  // namespace heed::test
