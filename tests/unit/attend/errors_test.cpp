// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>

#include <limits>
#include <string>
#include <vector>

#include "support/expect.h"

namespace heed::test {
namespace {

at::Tensor a_query() { return at::zeros({2, 4, 5, 8}); }
at::Tensor a_key() { return at::zeros({2, 2, 7, 8}); }

std::string error_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttendOptions& options = {}) {
  return value_error([&] { attend(query, key, value, options); });
}

std::string error_of(const AttendOptions& options) {
  return error_of(a_query(), a_key(), a_key(), options);
}

std::string mask_error(at::IntArrayRef shape) {
  return error_of(AttendOptions().mask(at::ones(shape, at::kBool)));
}

TEST(AttendErrors, NameTheTensorThatDisagrees) {
  EXPECT_EQ(error_of({}, a_key(), a_key()), "attend: query must be defined");
  EXPECT_EQ(error_of(a_query(), a_key(), {}), "attend: value must be defined");
  EXPECT_EQ(error_of(at::zeros({4, 5, 8}), a_key(), a_key()),
            "attend: query rank (3) must equal 4; query [4, 5, 8]");
  EXPECT_EQ(error_of(a_query(), at::zeros({7, 8}), a_key()),
            "attend: key rank (2) must equal 4; key [7, 8]");
  EXPECT_EQ(error_of(a_query().to(at::kLong), a_key(), a_key()),
            "attend: query dtype (Long) must be Float, Double, BFloat16 or Half");
  EXPECT_EQ(error_of(a_query(), a_key().to(at::kDouble), a_key()),
            "attend: key dtype (Double) must equal query dtype (Float)");
  EXPECT_EQ(error_of(a_query(), a_key(), a_key().to(at::kHalf)),
            "attend: value dtype (Half) must equal query dtype (Float)");
  EXPECT_EQ(error_of(a_query(), a_key().to(at::kMeta), a_key()),
            "attend: key device (meta) must equal query device (cpu)");
  EXPECT_EQ(error_of(a_query().to_sparse(), a_key(), a_key()),
            "attend: query layout (Sparse) must be Strided");
}

TEST(AttendErrors, NameTheDocumentsThatDoNotFit) {
  const auto ids = [](at::IntArrayRef shape) { return at::zeros(shape, at::kLong); };
  const auto error = [&](const at::Tensor& documents, const std::optional<at::Tensor>& keys) {
    return error_of(AttendOptions().documents(documents).key_documents(keys));
  };
  EXPECT_EQ(error(ids({5}), {}), "attend: key_documents must be given if L (5) differs from S (7)");
  EXPECT_EQ(error(ids({4}), ids({7})),
            "attend: documents [4] must have the shape [L] or [B, L]; query [2, 4, 5, 8], key "
            "[2, 2, 7, 8]");
  EXPECT_EQ(error(ids({2, 5}), ids({3, 7})),
            "attend: key_documents [3, 7] must have the shape [S] or [B, S]; query [2, 4, 5, 8], "
            "key [2, 2, 7, 8]");
  EXPECT_EQ(error(at::zeros({5}), ids({7})), "attend: documents dtype (Float) must be an integer");
  EXPECT_EQ(error(ids({5}), ids({7}).to(at::kMeta)),
            "attend: key_documents device (meta) must equal query device (cpu)");
  EXPECT_EQ(error_of(AttendOptions().key_documents(ids({7}))),
            "attend: key_documents needs documents");
}

TEST(AttendErrors, NameTheDimensionThatDisagrees) {
  EXPECT_EQ(error_of(a_query(), at::zeros({3, 2, 7, 8}), a_key()),
            "attend: key dim 0 (3) must equal query dim 0 (2); query [2, 4, 5, 8], "
            "key [3, 2, 7, 8]");
  EXPECT_EQ(error_of(a_query(), a_key(), at::zeros({1, 2, 7, 8})),
            "attend: value dim 0 (1) must equal key dim 0 (2); key [2, 2, 7, 8], "
            "value [1, 2, 7, 8]");
  EXPECT_EQ(error_of(a_query(), a_key(), at::zeros({2, 4, 7, 8})),
            "attend: value dim 1 (4) must equal key dim 1 (2); key [2, 2, 7, 8], "
            "value [2, 4, 7, 8]");
  EXPECT_EQ(error_of(a_query(), a_key(), at::zeros({2, 2, 6, 8})),
            "attend: value dim 2 (6) must equal key dim 2 (7); key [2, 2, 7, 8], "
            "value [2, 2, 6, 8]");
  EXPECT_EQ(error_of(a_query(), at::zeros({2, 2, 7, 9}), a_key()),
            "attend: key dim 3 (9) must equal query dim 3 (8); query [2, 4, 5, 8], "
            "key [2, 2, 7, 9]");
  EXPECT_EQ(error_of(a_query(), at::zeros({2, 3, 7, 8}), at::zeros({2, 3, 7, 8})),
            "attend: query dim 1 (4) must be a positive multiple of key dim 1 (3); "
            "query [2, 4, 5, 8], key [2, 3, 7, 8]");
  EXPECT_EQ(error_of(a_query(), at::zeros({2, 0, 7, 8}), at::zeros({2, 0, 7, 8})),
            "attend: key dim 1 (0) must be at least 1; key [2, 0, 7, 8]");
  const auto no_dims = at::zeros({2, 2, 5, 0});
  EXPECT_EQ(error_of(no_dims, no_dims, no_dims),
            "attend: query dim 3 (0) must be at least 1; query [2, 2, 5, 0]");
}

TEST(AttendErrors, RefuseAMaskOfTheWrongKindOrShape) {
  EXPECT_EQ(error_of(AttendOptions().mask(at::ones({5, 7}))),
            "attend: mask dtype (Float) must be Bool or an integer; it holds 0 and 1: pass mask != "
            "0, or from_hidden(mask) if 1 hides");
  EXPECT_EQ(mask_error({7}),
            "attend: mask rank (1) must be 2 [L, S], 3 [B, L, S] or 4 [B, H, L, S]; mask [7]");
  EXPECT_EQ(mask_error({5, 6}),
            "attend: mask dim 1 (6) must equal S (7); mask [5, 6], query [2, 4, 5, 8], "
            "key [2, 2, 7, 8]");
  EXPECT_EQ(mask_error({1, 7}),
            "attend: mask dim 0 (1) must equal L (5); mask [1, 7], query [2, 4, 5, 8], "
            "key [2, 2, 7, 8]");
  EXPECT_EQ(mask_error({4, 5, 7}),
            "attend: mask dim 0 (4) must equal B (2) or 1; mask [4, 5, 7], query [2, 4, 5, 8], "
            "key [2, 2, 7, 8]; pass mask.unsqueeze(0) if it is [H, L, S]");
  EXPECT_EQ(mask_error({2, 3, 7}),
            "attend: mask dim 1 (3) must equal L (5) or 1; mask [2, 3, 7], query [2, 4, 5, 8], "
            "key [2, 2, 7, 8]");
  EXPECT_EQ(mask_error({2, 7}),
            "attend: mask dim 0 (2) must equal L (5); mask [2, 7], query [2, 4, 5, 8], "
            "key [2, 2, 7, 8]; if it is [B, S], pass key_padding_mask(mask) or, where nonzero "
            "hides, key_padding_mask(from_hidden(mask))");
  EXPECT_EQ(mask_error({2, 2, 5, 7}),
            "attend: mask dim 1 (2) must equal H (4) or 1; mask [2, 2, 5, 7], "
            "query [2, 4, 5, 8], key [2, 2, 7, 8]");
  EXPECT_EQ(mask_error({2, 4, 3, 7}),
            "attend: mask dim 2 (3) must equal L (5) or 1; mask [2, 4, 3, 7], "
            "query [2, 4, 5, 8], key [2, 2, 7, 8]");
  EXPECT_EQ(mask_error({2, 4, 5, 1}),
            "attend: mask dim 3 (1) must equal S (7); mask [2, 4, 5, 1], query [2, 4, 5, 8], "
            "key [2, 2, 7, 8]");
  EXPECT_EQ(error_of(AttendOptions().mask(at::Tensor())), "attend: mask must be defined");
  EXPECT_EQ(error_of(AttendOptions().mask(at::ones({5, 7}, at::kBool).to(at::kMeta))),
            "attend: mask device (meta) must equal query device (cpu)");
}

TEST(AttendErrors, RefuseABiasOfTheWrongKindOrShape) {
  EXPECT_EQ(error_of(AttendOptions().bias(at::ones({5, 7}, at::kBool))),
            "attend: bias dtype (Bool) must be Float, Double, BFloat16 or Half; pass it as mask if "
            "true shows, or from_hidden(bias) as mask if true hides");
  EXPECT_EQ(error_of(AttendOptions().bias(at::ones({5, 8}))),
            "attend: bias dim 1 (8) must equal S (7); bias [5, 8], query [2, 4, 5, 8], "
            "key [2, 2, 7, 8]");
}

TEST(AttendErrors, RefuseOptionsOutOfRange) {
  EXPECT_EQ(error_of(AttendOptions().window(0)), "attend: window (0) must be at least 1");
  EXPECT_EQ(error_of(AttendOptions().window(-3)), "attend: window (-3) must be at least 1");
  EXPECT_EQ(error_of(AttendOptions().dropout(1.0)), "attend: dropout (1) must be in [0, 1)");
  EXPECT_EQ(error_of(AttendOptions().dropout(-0.1)), "attend: dropout (-0.1) must be in [0, 1)");
  EXPECT_EQ(error_of(AttendOptions().dropout(std::numeric_limits<double>::quiet_NaN())),
            "attend: dropout (nan) must be in [0, 1)");
  EXPECT_EQ(error_of(AttendOptions().scale(std::numeric_limits<double>::infinity())),
            "attend: scale (inf) must be finite and not 0");
  EXPECT_EQ(error_of(AttendOptions().scale(0.0)), "attend: scale (0) must be finite and not 0");
}

TEST(AttendErrors, NameTheWindowThatIsWrong) {
  EXPECT_EQ(error_of(AttendOptions().left_window(-1)),
            "attend: left_window (-1) must be at least 0");
  EXPECT_EQ(error_of(AttendOptions().right_window(-2)),
            "attend: right_window (-2) must be at least 0");
  EXPECT_EQ(error_of(AttendOptions().window(3).left_window(2)),
            "attend: left_window (2) must be absent with window (3), which sets both sides");
  EXPECT_EQ(error_of(AttendOptions().window(3).right_window(0)),
            "attend: right_window (0) must be absent with window (3), which sets both sides");
}

TEST(AttendErrors, NameTheLengthThatIsWrong) {
  const auto lengths = [](std::vector<int64_t> numbers) { return at::tensor(numbers, at::kLong); };
  const auto of_queries = [](const at::Tensor& numbers) {
    return error_of(AttendOptions().query_lengths(numbers));
  };
  const auto of_keys = [](const at::Tensor& numbers) {
    return error_of(AttendOptions().key_lengths(numbers));
  };
  const std::string sizes = "; query [2, 4, 5, 8], key [2, 2, 7, 8]";
  EXPECT_EQ(of_queries(at::Tensor()), "attend: query_lengths must be defined");
  EXPECT_EQ(of_keys(at::zeros({2}, at::kInt)), "attend: key_lengths dtype (Int) must be Long");
  EXPECT_EQ(of_keys(at::zeros({2}, at::device(at::kMeta).dtype(at::kLong))),
            "attend: key_lengths device (meta) must equal query device (cpu)");
  EXPECT_EQ(of_queries(lengths({1})), "attend: query_lengths [1] must have the shape [B]" + sizes);
  EXPECT_EQ(of_keys(lengths({1, 2, 3})), "attend: key_lengths [3] must have the shape [B]" + sizes);
  EXPECT_EQ(of_queries(lengths({5, 6})),
            "attend: query_lengths[1] (6) must be at least 0 and at most L (5)" + sizes);
  EXPECT_EQ(of_keys(lengths({-1, 7})),
            "attend: key_lengths[0] (-1) must be at least 0 and at most S (7)" + sizes);
}

TEST(AttendErrors, NameTheGlobalTokensThatDoNotFit) {
  const auto error = [](const at::Tensor& tokens) {
    return error_of(AttendOptions().window(2).global_tokens(tokens));
  };
  EXPECT_EQ(error(at::Tensor()), "attend: global_tokens must be defined");
  EXPECT_EQ(error(at::zeros({7}, at::kLong)), "attend: global_tokens dtype (Long) must be Bool");
  EXPECT_EQ(error(at::zeros({5}, at::kBool)),
            "attend: global_tokens [5] must have the shape [S] or [B, S]; query [2, 4, 5, 8], key "
            "[2, 2, 7, 8]");
  EXPECT_EQ(error(at::zeros({1, 7}, at::kBool)),
            "attend: global_tokens [1, 7] must have the shape [S] or [B, S]; query [2, 4, 5, 8], "
            "key [2, 2, 7, 8]");
  EXPECT_EQ(error(at::zeros({7}, at::device(at::kMeta).dtype(at::kBool))),
            "attend: global_tokens device (meta) must equal query device (cpu)");
}

TEST(AttendErrors, NameWhatIsWrongInARelativeBias) {
  const auto bias_error = [](const at::Tensor& bias) {
    return error_of(AttendOptions().relative_bias(bias));
  };
  EXPECT_EQ(bias_error(at::Tensor()), "attend: relative_bias must be defined");
  EXPECT_EQ(bias_error(at::zeros({9})),
            "attend: relative_bias rank (1) must equal 2; relative_bias [9]");
  EXPECT_EQ(bias_error(at::zeros({4, 9}, at::kLong)),
            "attend: relative_bias dtype (Long) must be Float, Double, BFloat16 or Half");
  EXPECT_EQ(bias_error(at::zeros({3, 9})),
            "attend: relative_bias dim 0 (3) must equal query dim 1 (4); query [2, 4, 5, 8]");
  EXPECT_EQ(bias_error(at::zeros({4, 8})),
            "attend: relative_bias dim 1 (8) must be odd: 2 R + 1 numbers for distances from -R "
            "to R; relative_bias [4, 8]");
  EXPECT_EQ(bias_error(at::zeros({4, 0})),
            "attend: relative_bias dim 1 (0) must be odd: 2 R + 1 numbers for distances from -R "
            "to R; relative_bias [4, 0]");
  const auto error = [](const at::Tensor& positions) {
    return error_of(AttendOptions().relative_bias(at::zeros({4, 3})).relative_positions(positions));
  };
  EXPECT_EQ(error_of(AttendOptions().relative_positions(at::zeros({7}, at::kLong))),
            "attend: relative_positions needs relative_bias");
  EXPECT_EQ(error(at::Tensor()), "attend: relative_positions must be defined");
  EXPECT_EQ(error(at::zeros({7}, at::kInt)), "attend: relative_positions dtype (Int) must be Long");
  EXPECT_EQ(error(at::zeros({5}, at::kLong)),
            "attend: relative_positions [5] must have the shape [S] or [B, S]; query [2, 4, 5, "
            "8], key [2, 2, 7, 8]");
}

/// Queries before the first key, or behind the last one.
TEST(AttendErrors, NameThePositionsThatAreNone) {
  const auto error = [](int64_t length, const AttendOptions& options) {
    return error_of(at::zeros({2, 4, length, 8}), a_key(), a_key(),
                    AttendOptions(options)
                        .relative_bias(at::zeros({4, 3}))
                        .relative_positions(at::zeros({7}, at::kLong)));
  };
  EXPECT_EQ(error(9, {}),
            "attend: relative_positions must have an element for the position of each query, "
            "which are -2 to 6; S 7");
  EXPECT_EQ(error(9, AttendOptions().top_left(true)),
            "attend: relative_positions must have an element for the position of each query, "
            "which are 0 to 8; S 7");
  const auto keys = at::tensor({7, 2}, at::kLong), queries = at::tensor({5, 3}, at::kLong);
  EXPECT_EQ(error(5, AttendOptions().key_lengths(keys).query_lengths(queries)),
            "attend: relative_positions must have an element for the position of each query, "
            "which are -1 to 6; S 7");
  // Queries that do not exist need no position.
  attend(at::zeros({2, 4, 9, 8}), a_key(), a_key(),
         AttendOptions()
             .relative_bias(at::zeros({4, 3}))
             .relative_positions(at::zeros({7}, at::kLong))
             .top_left(true)
             .query_lengths(at::tensor({7, 0}, at::kLong)));
}

TEST(AttendErrors, NameTheBatchesOfAMaskThatDoNotDivide) {
  const auto error = [](at::IntArrayRef shape) {
    return error_of(AttendOptions().mask(at::ones(shape, at::kBool)).mask_batch(MaskBatch::cycled));
  };
  EXPECT_EQ(error({3, 5, 7}),
            "attend: mask dim 0 (3) must divide B (2) with mask_batch; mask [3, 5, 7], query [2, "
            "4, 5, 8], key [2, 2, 7, 8]");
  EXPECT_EQ(error({0, 1, 5, 7}),
            "attend: mask dim 0 (0) must divide B (2) with mask_batch; mask [0, 1, 5, 7], query "
            "[2, 4, 5, 8], key [2, 2, 7, 8]");
  EXPECT_EQ(
      error_of(AttendOptions().bias(at::zeros({4, 1, 5, 7})).mask_batch(MaskBatch::repeated)),
      "attend: bias dim 0 (4) must divide B (2) with mask_batch; bias [4, 1, 5, 7], query [2, 4, "
      "5, 8], key [2, 2, 7, 8]");
}

TEST(AttendErrors, NameTheFunctionThatWasCalled) {
  EXPECT_ERROR("attend_with_weights: query rank (1) must equal 4; query [1]",
               attend_with_weights(at::zeros({1}), a_key(), a_key()));
  EXPECT_ERROR("attend_path: query rank (1) must equal 4; query [1]",
               attend_path(at::zeros({1}), a_key(), a_key()));
}

}  // namespace
}  // namespace heed::test
