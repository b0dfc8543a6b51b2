// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attend_call.h"
#include "attend_case.h"

namespace heed::fuzz {

/// A fault that the library showed.
class Find : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(const ::testing::AssertionResult& result, const std::string& what) {
  if (!result) throw Find(what + ": " + result.message());
}

inline void expect(bool holds, const std::string& what) {
  if (!holds) throw Find(what);
}

/// Counts that a run reports of all its calls: neither may be rare.
struct Tally {
  int64_t taken = 0, refused = 0;
};
inline Tally tally;

using Names = std::vector<std::string_view>;

/// A refusal says which function refuses what: "<name>: ...".
inline void expect_our_wording(const std::string& error, const Names& names) {
  const bool named = std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    return error.rfind(std::string(name) + ": ", 0) == 0;
  });
  const bool internal = error.find("INTERNAL ASSERT") != std::string::npos ||
                        error.find("report a bug") != std::string::npos;
  expect(named && !internal, "refused in other words than ours: " + error);
}

/// Returns the result of `call`; none if it is refused in the name of one of `names`, with the
/// reason in `refusal`.
template <typename F>
auto attempt(const Names& names, F&& call, std::string& refusal)
    -> std::optional<decltype(call())> {
  std::optional<decltype(call())> result;
  try {
    result = call();
  } catch (const Find&) {
    throw;
  } catch (const c10::ValueError& error) {
    refusal = error.what_without_backtrace();
    expect_our_wording(refusal, names);
    ++tally.refused;
    return std::nullopt;
  } catch (const c10::Error& error) {
    throw Find(std::string("threw c10::Error: ") + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Find(std::string("threw another exception: ") + error.what());
  }
  ++tally.taken;
  return result;
}

/// Returns the result of a valid `call`; none if it is rightly refused, in the name of one of
/// `names`.
template <typename F>
auto outcome(bool valid, const Names& names, F&& call) -> std::optional<decltype(call())> {
  std::string refusal;
  auto result = attempt(names, std::forward<F>(call), refusal);
  expect(result || !valid, "refused a valid call: " + refusal);
  expect(!result || valid, "took an invalid call");
  return result;
}

/// On the CPU, dense, and of that rank.
bool is_dense(const at::Tensor& tensor, int64_t rank);

/// Whether `attend`, or `attend_varlen` where there are offsets, must take it. The numbers in
/// lengths are not looked at on a device where nobody reads them.
bool is_valid(const Call& call, bool reads_numbers = true);
bool is_valid_varlen(const Call& call);

/// Whether options are such that they do not depend on lengths, and int64 [N + 1] offsets end at
/// `total`.
bool are_valid_options(const AttendOptions& options, const at::Tensor& query);
bool are_offsets(const at::Tensor& offsets, int64_t total);

/// Whether a floating tensor, the options, and a mask's or a bias's shape are as DESIGN says.
bool has_attention_dtype(const at::Tensor& tensor);
bool are_in_range(const AttendOptions& options);
bool are_representable(const AttendOptions& options, at::ScalarType dtype);
bool fits_scores(const at::Tensor& scores, int64_t B, int64_t H, int64_t L, int64_t S,
                 MaskBatch order = MaskBatch::each);
bool is_mask(const at::Tensor& mask, int64_t B, int64_t H, int64_t L, int64_t S,
             MaskBatch order = MaskBatch::each);

/// Forward error where values are at most 1, from the largest score. In float32 and float64 the
/// products' and sums' roundings add up to a few unit roundoffs, and a score's error, its size
/// times the roundoff, is the relative error of its weight. In half precision, scores are float32,
/// and weights and output are rounded once each. No output is larger than 1: 2 allows everything.
double tolerance(at::ScalarType dtype, double largest_score);

/// The tolerance of a gradient: each of its terms has a few factors with the forward pass's error,
/// and their errors, of either sign, add up to a few times that of the largest sum.
double gradient_tolerance(double forward, const at::Tensor& expected);

/// How large |score| may be for values of at most 1 and keys as far away as `distance`.
double largest_score(const Call& call, int64_t distance);

/// They throw a Find.
void check_attend(const Case& c);  // attend and attend_with_weights
void check_varlen(const Case& c);
void check_meta(const Case& c);  // all three, on the meta device
void check_module(const Case& c);
void check_cached(const Case& c);
void check_masks(const Case& c);
void check_far(const Case& c);
void check_derivative(const Case& c);
void check_training(const Case& c);
void check_kv_cache(const Case& c);
void check_file(const Case& c);
void check_paged(const Case& c);
void check_paged_cache(const Case& c);
void check_rotary(const Case& c);
void check_rotary_cache(const Case& c);
void check_loss(const Case& c);
void check_packed(const Case& c);

}  // namespace heed::fuzz
