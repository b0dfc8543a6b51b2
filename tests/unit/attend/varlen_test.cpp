// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "support/dense.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/reference_cases.h"
#include "unit/routes.h"

namespace heed::test::of_varlen {
namespace {

using Lengths = std::vector<int64_t>;

at::Tensor offsets(const Lengths& lengths) {
  Lengths ends = {0};
  for (const auto length : lengths) ends.push_back(ends.back() + length);
  return at::tensor(ends);
}

struct PackedCase {
  const char* name;
  Lengths query_lengths, key_lengths;
  AttendOptions options;
};

constexpr int64_t kHeads = 4;

/// Runs of equal lengths, single sequences, empty ones, and L != S; each with and without what
/// counts distances.
std::vector<PackedCase> packed_cases(at::Device device) {
  const auto floats = at::device(device).dtype(at::kFloat);
  const auto table = [&](int64_t reach) {
    return uniform({kHeads, 2 * reach + 1}, floats).requires_grad_();
  };
  const auto slopes = (uniform({kHeads}, floats) * 0.3).detach().requires_grad_();
  const auto relative = [&](int64_t reach) { return AttendOptions().relative_bias(table(reach)); };
  return {{"one", {5}, {5}, {}},
          {"equal lengths", {4, 4, 4}, {4, 4, 4}, AttendOptions().causal(true)},
          {"mixed lengths", {1, 7, 7, 3}, {1, 7, 7, 3}, AttendOptions().causal(true)},
          {"window", {6, 2, 9}, {6, 2, 9}, AttendOptions().causal(true).window(3)},
          {"cross", {2, 5, 1, 1}, {6, 3, 4, 4}, AttendOptions().scale(0.5)},
          {"empty sequences", {0, 3, 0, 2}, {2, 3, 0, 0}, {}},
          {"none", {}, {}, {}},
          {"two sides", {6, 2, 9}, {6, 4, 5}, AttendOptions().left_window(2).right_window(1)},
          {"right", {6, 2, 9}, {6, 2, 9}, AttendOptions().right_window(3)},
          {"right 0", {1, 1, 1}, {3, 1, 4}, AttendOptions().right_window(0)},
          {"left, causal", {5, 5, 2}, {7, 5, 9}, AttendOptions().left_window(1).causal(true)},
          {"top left", {5, 2, 3}, {3, 6, 3}, AttendOptions().top_left(true).causal(true)},
          {"top left, window", {5, 2, 3}, {2, 8, 0}, AttendOptions().top_left(true).window(2)},
          {"relative", {6, 2, 9}, {6, 2, 9}, relative(3)},
          {"relative, causal", {3, 8}, {8, 8}, relative(20).causal(true)},
          {"relative, top left", {5, 2}, {3, 6}, relative(1).top_left(true).left_window(3)},
          {"relative, empty", {0, 3, 0}, {2, 0, 0}, relative(2)},
          {"relative, none", {}, {}, relative(2)},
          {"slopes", {6, 2, 9}, {6, 4, 9}, AttendOptions().alibi_slopes(slopes).causal(true)},
          {"all", {6, 9}, {8, 9}, relative(4).alibi_slopes(slopes).window(5).softcap(2.0)}};
}

/// [T, H, D] to [1, H, length, D] from row `start`.
at::Tensor sequence(const at::Tensor& packed, int64_t start, int64_t length) {
  return packed.narrow(0, start, length).unsqueeze(0).transpose(1, 2);
}

at::Tensor as_rows(const at::Tensor& heads) { return heads.transpose(1, 2).squeeze(0); }

/// Packed tensors, and their reference: each sequence alone.
struct PackedCall {
  PackedCall(const PackedCase& c, at::Device device, at::ScalarType dtype)
      : query_offsets(offsets(c.query_lengths)), key_offsets(offsets(c.key_lengths)) {
    const auto options = at::device(device).dtype(dtype);
    const auto computed_in = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto T = query_offsets[-1].item<int64_t>(), U = key_offsets[-1].item<int64_t>();
    query = uniform({T, kHeads, 6}, options).requires_grad_();
    key = uniform({U, 2, 6}, options).requires_grad_();
    value = uniform({U, 2, 5}, options).requires_grad_();
    leaves = {query, key, value};
    for (const auto& tensor : {c.options.relative_bias(), c.options.alibi_slopes()}) {
      if (tensor) leaves.push_back(*tensor);
    }
    output_gradient = uniform({T, kHeads, 5}, options);
    lse_gradient = uniform({T, kHeads}, options.dtype(computed_in));
  }

  at::Tensor query, key, value, query_offsets, key_offsets;
  std::vector<at::Tensor> leaves;
  at::Tensor output_gradient, lse_gradient;
};

struct PackedResult {
  at::Tensor output, lse;
  std::vector<at::Tensor> gradients;
};

PackedResult expected_of(const PackedCase& c, const PackedCall& call, bool with_lse) {
  std::vector<at::Tensor> outputs = {at::zeros({0, kHeads, 5}, at::kDouble)};
  std::vector<at::Tensor> lses = {at::zeros({0, kHeads}, at::kDouble)};
  std::vector<std::vector<at::Tensor>> rows = {{at::zeros({0, kHeads, 6}, at::kDouble)},
                                               {at::zeros({0, 2, 6}, at::kDouble)},
                                               {at::zeros({0, 2, 5}, at::kDouble)}};
  std::vector<at::Tensor> sums;
  for (size_t i = 3; i < call.leaves.size(); ++i) {
    sums.push_back(at::zeros(call.leaves[i].sizes(), at::kDouble));
  }
  int64_t t = 0, u = 0;
  for (size_t n = 0; n < c.query_lengths.size(); ++n) {
    const auto L = c.query_lengths[n], S = c.key_lengths[n];
    const Inputs inputs = {sequence(call.query, t, L), sequence(call.key, u, S),
                           sequence(call.value, u, S)};
    ReferenceExtras extras{sequence(call.output_gradient, t, L)};
    if (with_lse) {
      extras.lse_gradient = call.lse_gradient.narrow(0, t, L).transpose(0, 1).unsqueeze(0);
    }
    const auto result = dense_reference(inputs, c.options, extras);
    outputs.push_back(as_rows(result.output));
    lses.push_back(result.lse.squeeze(0).transpose(0, 1));
    rows[0].push_back(as_rows(result.query_grad));
    rows[1].push_back(as_rows(result.key_grad));
    rows[2].push_back(as_rows(result.value_grad));
    size_t i = 0;
    if (c.options.relative_bias()) sums[i++] += result.relative_bias_grad;
    if (c.options.alibi_slopes()) sums[i] += result.alibi_slopes_grad;
    t += L;
    u += S;
  }
  PackedResult result = {at::cat(outputs), at::cat(lses), {}};
  for (const auto& parts : rows) result.gradients.push_back(at::cat(parts));
  result.gradients.insert(result.gradients.end(), sums.begin(), sums.end());
  return result;
}

/// Output, gradients and, with the lse, that.
PackedResult computed(const PackedCase& c, const PackedCall& call, bool with_lse,
                      const at::Tensor& query_offsets, const at::Tensor& key_offsets) {
  PackedResult result;
  std::vector<at::Tensor> outputs, gradients = {call.output_gradient};
  if (with_lse) {
    std::tie(result.output, result.lse) = attend_varlen_with_lse(
        call.query, call.key, call.value, query_offsets, key_offsets, c.options);
    outputs = {result.output, result.lse};
    gradients.push_back(call.lse_gradient);
  } else {
    result.output =
        attend_varlen(call.query, call.key, call.value, query_offsets, key_offsets, c.options);
    outputs = {result.output};
  }
  // Without a sequence, a bias has no gradient.
  result.gradients = torch::autograd::grad(outputs, call.leaves, gradients, std::nullopt,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  return result;
}

class AttendVarlen : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void expect_reference(const PackedCase& c, at::Device device, bool with_lse) const {
    const auto name = std::string(c.name) + (with_lse ? ", with lse" : "");
    // As attend's own tests: a few roundoffs; gradients sum up to 9 * H / G products, and those of
    // slopes times distances.
    const double forward = forward_tolerance(GetParam(), /*largest_score=*/8);
    const PackedCall call(c, device, GetParam());
    const auto expected = expected_of(c, call, with_lse);
    const auto actual = computed(c, call, with_lse, call.query_offsets, call.key_offsets);
    ASSERT_EQ(actual.output.scalar_type(), GetParam()) << name;
    EXPECT_TRUE(is_close(actual.output, expected.output, forward)) << name;
    if (with_lse) {
      const auto none = expected.lse.isinf();
      const auto computed_in = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
      EXPECT_EQ(actual.lse.scalar_type(), computed_in) << name;
      ASSERT_EQ(actual.lse.sizes(), expected.lse.sizes()) << name;
      EXPECT_TRUE(actual.lse.isinf().cpu().equal(none)) << name;
      EXPECT_TRUE(is_close(actual.lse.masked_fill(none.to(device), 0.0),
                           expected.lse.masked_fill(none, 0.0), 4 * forward))
          << name;
    }
    for (size_t i = 0; i < call.leaves.size(); ++i) {
      const auto& gradient = actual.gradients[i];
      if (!gradient.defined()) {
        EXPECT_TRUE(c.query_lengths.empty()) << name << ", leaf " << i;
        continue;
      }
      // Biases and slopes are float32, to which their gradients are rounded.
      const double tolerance =
          i < 3 ? 16 * forward : 64 * std::max(forward, forward_tolerance(at::kFloat, 8));
      EXPECT_TRUE(is_close(gradient, expected.gradients[i], tolerance)) << name << ", leaf " << i;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, AttendVarlen, kDtypes, kNamed);

TEST_P(AttendVarlen, EqualsTheReferenceOfEachSequence) {
  torch::manual_seed(moved(1));
  for (const auto device : devices()) {
    for (const auto& c : packed_cases(device)) {
      for (const bool with_lse : {false, true}) {
        ASSERT_NO_FATAL_FAILURE(expect_reference(c, device, with_lse));
      }
    }
  }
}

TEST_P(AttendVarlen, TakesOffsetsOf32Bits) {
  torch::manual_seed(moved(2));
  for (const auto device : devices()) {
    for (const auto& c : packed_cases(device)) {
      const PackedCall call(c, device, GetParam());
      const auto &queries = call.query_offsets, &keys = call.key_offsets;
      const auto expected = computed(c, call, /*with_lse=*/true, queries, keys);
      const auto actual =
          computed(c, call, /*with_lse=*/true, queries.to(at::kInt), keys.to(device, at::kInt));
      EXPECT_TRUE(actual.output.equal(expected.output)) << c.name;
      EXPECT_TRUE(actual.lse.equal(expected.lse)) << c.name;
      // On CUDA, gradients of biases are sums in an order that changes.
      EXPECT_TRUE(device.is_cpu() ? are_equal(actual.gradients, expected.gradients)
                                  : are_alike(actual.gradients, expected.gradients, 1e-6))
          << c.name;
    }
  }
}

TEST(AttendVarlenWithLse, TakesTheLongestLengths) {
  torch::manual_seed(moved(3));
  for (const auto device : devices()) {
    const PackedCase c = {"", {6, 2, 9}, {6, 4, 9}, AttendOptions().causal(true).left_window(4)};
    const PackedCall call(c, device, at::kFloat);
    const auto [output, lse] =
        attend_varlen_with_lse(call.query, call.key, call.value, call.query_offsets,
                               call.key_offsets, /*longest_query=*/9, /*longest_key=*/9, c.options);
    const auto expected = expected_of(c, call, /*with_lse=*/true);
    EXPECT_TRUE(is_close(output, expected.output, forward_tolerance(at::kFloat)));
    EXPECT_TRUE(is_close(lse, expected.lse, 4 * forward_tolerance(at::kFloat)));
  }
}

TEST(AttendVarlen, NoSequenceHasGradientsOfNoElement) {
  const auto query = at::zeros({0, 4, 6}).requires_grad_();
  const auto key = at::zeros({0, 2, 6}).requires_grad_();
  const auto output = attend_varlen(query, key, key, offsets({}), offsets({}));
  const auto gradients = torch::autograd::grad({output}, {query, key}, {at::zeros({0, 4, 6})});
  EXPECT_EQ(gradients[0].sizes(), query.sizes());
  EXPECT_EQ(gradients[1].sizes(), key.sizes());
}

TEST(AttendVarlenErrors, NameTheOffsetThatIsWrong) {
  const auto query = at::zeros({5, 4, 8});
  const auto key = at::zeros({7, 2, 8});
  const auto error = [&](const at::Tensor& query_offsets, const at::Tensor& key_offsets,
                         const AttendOptions& options = {}) {
    return value_error(
        [&] { attend_varlen(query, key, key, query_offsets, key_offsets, options); });
  };
  const auto q = offsets({2, 3});
  const auto k = offsets({4, 3});
  EXPECT_EQ(error({}, k), "attend_varlen: query_offsets must be defined");
  EXPECT_EQ(error(q.to(at::kShort), k),
            "attend_varlen: query_offsets dtype (Short) must be Long or Int");
  EXPECT_EQ(error(q.to_sparse(), k),
            "attend_varlen: query_offsets layout (Sparse) must be Strided");
  EXPECT_EQ(error(q.to(at::kMeta), k),
            "attend_varlen: query_offsets device (meta) must hold values");
  EXPECT_EQ(error(q.unsqueeze(0), k),
            "attend_varlen: query_offsets must be a vector of at least 1 element; query_offsets "
            "[1, 3]");
  EXPECT_EQ(error(q + 1, k), "attend_varlen: query_offsets[0] (1) must equal 0");
  EXPECT_EQ(error(at::tensor(Lengths{0, 6, 5}), k),
            "attend_varlen: query_offsets[2] (5) must be at least query_offsets[1] (6)");
  EXPECT_EQ(error(q, offsets({4, 4})),
            "attend_varlen: key_offsets[2] (8) must equal the packed length (7)");
  EXPECT_EQ(error(q, offsets({3, 3, 1})),
            "attend_varlen: key_offsets dim 0 (4) must equal query_offsets dim 0 (3)");
  EXPECT_EQ(error(q, k, AttendOptions().mask(at::zeros({5, 7}, at::kBool))),
            "attend_varlen: mask must be absent: the offsets say what a query may see");
  EXPECT_EQ(error(q, k, AttendOptions().documents(at::zeros({5}, at::kLong))),
            "attend_varlen: documents must be absent: the offsets say what a query may see");
  EXPECT_EQ(error(q, k, AttendOptions().bias(at::zeros({5, 7}))),
            "attend_varlen: bias must be absent: sequences differ in shape");
  const auto numbers = at::zeros({2}, at::kLong);
  for (const auto& options :
       {AttendOptions().query_lengths(numbers), AttendOptions().key_lengths(numbers)}) {
    EXPECT_EQ(error(q, k, options),
              "attend_varlen: query_lengths and key_lengths must be absent: the offsets say what a "
              "query may see");
  }
  EXPECT_EQ(error(q, k, AttendOptions().global_tokens(at::zeros({7}, at::kBool))),
            "attend_varlen: global_tokens must be absent: sequences differ in shape");
  EXPECT_EQ(error(q, k, AttendOptions().relative_positions(numbers)),
            "attend_varlen: relative_positions must be absent: sequences differ in shape");
  EXPECT_EQ(error(q, k, AttendOptions().relative_bias(at::zeros({2, 3}))),
            "attend_varlen: relative_bias dim 0 (2) must equal query dim 1 (4); query [5, 4, 8]");
  EXPECT_EQ(error(q, k, AttendOptions().alibi_slopes(at::zeros({2, 4}))),
            "attend_varlen: alibi_slopes rank (2) must equal 1; alibi_slopes [2, 4]");
  EXPECT_EQ(error(q, k, AttendOptions().left_window(-1)),
            "attend_varlen: left_window (-1) must be at least 0");
  EXPECT_ERROR("attend_varlen_with_lse: query_offsets[0] (1) must equal 0",
               attend_varlen_with_lse(query, key, key, q + 1, k));
  EXPECT_EQ(error(q, k, AttendOptions().window(0)), "attend_varlen: window (0) must be at least 1");
  EXPECT_ERROR("attend_varlen: key rank (4) must equal 3; key [1, 7, 2, 8]",
               attend_varlen(query, key.unsqueeze(0), key, q, k));
  EXPECT_ERROR(
      "attend_varlen: value dim 0 (6) must equal key dim 0 (7); key [7, 2, 8], value [6, 2, 8]",
      attend_varlen(query, key, key.narrow(0, 0, 6), q, k));
  EXPECT_ERROR(
      "attend_varlen: key dim 2 (4) must equal query dim 2 (8); query [5, 4, 8], key [7, 2, 4]",
      attend_varlen(query, key.narrow(2, 0, 4), key, q, k));
}

}  // namespace
}  // namespace heed::test::of_varlen
