// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace heed::test {

/// Passes when shapes agree and |actual - expected| <= tolerance everywhere (both in float64), with
/// NaN nowhere; the message holds the largest difference and its place.
::testing::AssertionResult is_close(const at::Tensor& actual, const at::Tensor& expected,
                                    double tolerance);

/// Compares tensors in pairs by is_close; the message says which pair differs.
::testing::AssertionResult are_close(const std::vector<at::Tensor>& actual,
                                     const std::vector<at::Tensor>& expected, double tolerance);

/// Compares tensors in pairs; the tolerance is a share of each expected tensor's largest value.
::testing::AssertionResult are_alike(const std::vector<at::Tensor>& actual,
                                     const std::vector<at::Tensor>& expected, double tolerance);

/// Passes when tensors in pairs are equal to the bit, or undefined both.
::testing::AssertionResult are_equal(const std::vector<at::Tensor>& actual,
                                     const std::vector<at::Tensor>& expected);

/// Passes when `actual` holds no NaN and no infinity.
::testing::AssertionResult is_finite(const at::Tensor& actual);

/// The text of the error of LibTorch's of this class that `call` throws; any other outcome is a
/// failure.
template <typename Error, typename Call>
std::string error_text(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected " << c10::demangle_type<Error>() << ", got: " << error.what();
    return "";
  }
  ADD_FAILURE() << "expected " << c10::demangle_type<Error>() << ", got none";
  return "";
}

template <typename Call>
std::string value_error(Call&& call) {
  return error_text<c10::ValueError>(call);
}

/// EXPECT_ERROR(text, statement): the statement throws a c10::ValueError that says `text`. It comes
/// last, since a macro takes commas between braces for its own.
#define EXPECT_ERROR(text, ...) EXPECT_EQ(::heed::test::value_error([&] { __VA_ARGS__; }), text)

/// The CPU, and the first CUDA device where there is one; or what the variable HEED_TEST_DEVICES
/// names, such as "cuda". A test's report holds the property "devices".
std::vector<at::Device> devices();

/// Unit roundoff of a dtype: 2^-53, 2^-24, 2^-8 or 2^-11.
double unit_roundoff(at::ScalarType dtype);

}  // namespace heed::test
