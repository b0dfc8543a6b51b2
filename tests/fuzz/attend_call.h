// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attend_case.h"

namespace heed::fuzz {

using Shape = std::vector<int64_t>;
using Integers = std::vector<int64_t>;

/// The arguments of attend or, with offsets, of attend_varlen.
struct Call {
  at::Tensor query, key, value;
  AttendOptions options;
  at::Tensor query_offsets, key_offsets;
};

/// Draws values from LibTorch's generator, as all that makes tensors here does.
Call make_call(const Case& c);

/// Values in [-1, 1), those of kValue about the case's mean, in a layout of support/layouts.h;
/// spoiled if the case wants it.
at::Tensor make_values(const Case& c, Victim victim, Shape shape, at::ScalarType dtype,
                       int64_t layout);

std::optional<at::Tensor> make_mask(const Case& c);

/// The value that stands where nobody may look, if any does.
std::optional<double> poison_of(const Case& c);

/// 0 to n - 1.
int64_t draw_below(int64_t n);

inline bool one_in(int64_t n) { return draw_below(n) == 0; }

/// Lengths of B sequences: `length`, or anything up to it where they are ragged.
std::vector<int64_t> draw_lengths(const Case& c, int64_t length);

/// Scores' options, mask, bias, documents, what each head has and what a query reaches.
AttendOptions make_options(const Case& c);

/// int64 [N + 1]: where each sequence ends. The mistakes of kOffsets, if it may have some.
at::Tensor make_offsets(const Case& c, const std::vector<int64_t>& lengths, bool may_be_spoiled);

/// The values that the case's indices stand for.
at::ScalarType dtype_of(int64_t index);
std::optional<int64_t> window_of(const Case& c);
/// How many keys a query sees on its left and its right.
std::optional<int64_t> left_of(const Case& c);
std::optional<int64_t> right_of(const Case& c);
/// R of a relative bias.
int64_t reach_of(const Case& c);
std::optional<double> scale_of(const Case& c);
std::optional<double> softcap_of(const Case& c);
double dropout_of(const Case& c);
double mean_of(const Case& c);

/// Sets the options that AttendOptions and modules' options share.
template <typename Options>
void set_score_options(const Case& c, Options& options) {
  options.causal(c.causal != 0).window(window_of(c)).scale(scale_of(c));
  options.left_window(left_of(c)).right_window(right_of(c)).top_left(c.top_left != 0);
  options.softcap(softcap_of(c)).dropout(dropout_of(c));
}

/// Shapes, dtypes and options, for reports.
std::string describe(const Call& call);

}  // namespace heed::fuzz
