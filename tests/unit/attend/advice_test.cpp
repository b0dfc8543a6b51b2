// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <heed/quantize.h>
#include <torch/utils.h>

#include <limits>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/reference.h"
#include "support/seeds.h"

// Each sentence of advice in an error of attend is followed, and gives the numbers that were meant.

namespace heed::test::advice {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The mask and bias that a caller means: bool [B, H, L, S] and floating, 4-D.
struct Meant {
  at::Tensor mask, bias;
};

class AttendAdvice : public ::testing::Test {
 protected:
  std::string error(const AttendOptions& options) const {
    return value_error([&] { attend(inputs, options); });
  }
  /// Whether attend computes with these options what is meant.
  void follow(const AttendOptions& options, const Meant& meant) const {
    const auto output = attend(inputs, options);
    EXPECT_TRUE(is_close(output, reference(meant), 1e-6));
  }
  at::Tensor reference(const Meant& meant) const {
    auto input = inputs_of_reference();
    input.mask = meant.mask;
    input.bias = meant.bias;
    return reference_attention(input).output;
  }
  ReferenceInput inputs_of_reference() const {
    ReferenceInput input;
    input.query = inputs.query;
    input.key = inputs.key;
    input.value = inputs.value;
    return input;
  }

  const Sizes sizes = {2, 4, 2, 5, 7, 8, 8};  // all differ that a shape could mix up
  const Inputs inputs = [this] {
    torch::manual_seed(moved(1));
    return make_inputs(sizes, at::kFloat);
  }();
  const at::Tensor seen =
      random_mask({2, 4, 5, 7})
          .index_fill(3, at::zeros({1}, at::kLong), true);  // each query sees a key
};

TEST_F(AttendAdvice, OnAMaskToAdd) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const auto least = at::where(seen, 0.0, -kInfinity)
                           .to(dtype)
                           .nan_to_num(0.0, kInfinity);  // the least number for -inf
    for (const auto& mask : {at::where(seen, 0.0, -kInfinity).to(dtype), least}) {
      EXPECT_EQ(error(AttendOptions().mask(mask)),
                std::string("attend: mask dtype (") + c10::toString(dtype) +
                    ") must be Bool or an integer; it holds 0 and -inf or the least number: pass "
                    "mask_from_additive(mask) or pass it as bias");
      follow(AttendOptions().mask(mask_from_additive(mask)), {seen, {}});
    }
    follow(AttendOptions().bias(at::where(seen, 0.0, -kInfinity).to(dtype)), {seen, {}});
  }
}

TEST_F(AttendAdvice, OnAMaskOfZerosAndOnes) {
  const auto mask = seen.to(at::kFloat);
  EXPECT_EQ(error(AttendOptions().mask(mask)),
            "attend: mask dtype (Float) must be Bool or an integer; it holds 0 and 1: pass mask != "
            "0, or from_hidden(mask) if 1 hides");
  follow(AttendOptions().mask(mask != 0), {seen, {}});
  follow(AttendOptions().mask(from_hidden(mask)), {seen.logical_not(), {}});
}

TEST_F(AttendAdvice, OnAMaskOfZeros) {
  const auto mask = at::zeros({5, 7});
  EXPECT_EQ(error(AttendOptions().mask(mask)),
            "attend: mask dtype (Float) must be Bool or an integer; it holds 0 alone: if 0 shows, "
            "pass mask_from_additive(mask) or pass it as bias; if 0 hides, pass mask != 0");
  follow(AttendOptions().mask(mask_from_additive(mask)), {});
  follow(AttendOptions().bias(mask), {});
  follow(AttendOptions().mask(mask != 0), {at::zeros_like(seen), {}});
}

TEST_F(AttendAdvice, OnOtherNumbers) {
  const auto bias = uniform({2, 1, 5, 7}, at::kFloat);
  EXPECT_EQ(error(AttendOptions().mask(bias)),
            "attend: mask dtype (Float) must be Bool or an integer; it holds other numbers than a "
            "mask: pass it as bias if it is added to the scores");
  follow(AttendOptions().bias(bias), {{}, bias});
  const auto soft = at::where(seen, 0.0, -1e9).to(at::kFloat);  // as TensorFlow's tutorials add it
  EXPECT_EQ(error(AttendOptions().mask(soft)), error(AttendOptions().mask(bias)));
  follow(AttendOptions().bias(soft), {{}, soft});
}

TEST_F(AttendAdvice, OnAMaskThatCannotBeRead) {
  const auto to_meta = [](const at::Tensor& tensor) { return tensor.to(at::kMeta); };
  EXPECT_ERROR(
      "attend: mask dtype (Float) must be Bool or an integer; pass mask != 0 if it holds 0 and 1, "
      "from_hidden(mask) if 1 hides, mask_from_additive(mask) if it holds 0 and -inf, or pass it "
      "as bias if it is added to the scores",
      attend(to_meta(inputs.query), to_meta(inputs.key), to_meta(inputs.value),
             AttendOptions().mask(to_meta(at::zeros({5, 7})))));
}

TEST_F(AttendAdvice, OnAMaskThatIsConverted) {
  const auto additive = at::where(seen, 0.0, -kInfinity);
  EXPECT_ERROR(
      "from_hidden: floating hidden must hold 0 and 1 only; it holds 0 and -inf or the least "
      "number: pass mask_from_additive(hidden) or pass it as bias",
      from_hidden(additive));
  EXPECT_ERROR(
      "mask_from_additive: mask must hold 0 and -inf or the least number only; it holds 0 and 1: "
      "pass mask != 0, or from_hidden(mask) if 1 hides",
      mask_from_additive(seen.to(at::kFloat)));
  EXPECT_ERROR(
      "mask_from_additive: mask must hold 0 and -inf or the least number only; it holds other "
      "numbers than a mask: pass it as bias if it is added to the scores",
      mask_from_additive(at::full({5, 7}, -1e9)));
  EXPECT_ERROR("mask_from_additive: mask dtype (Bool) must be Float, Double, BFloat16 or Half",
               mask_from_additive(seen));
  EXPECT_ERROR("mask_from_additive: mask must be defined", mask_from_additive(at::Tensor()));
  const auto keys = at::rand({2, 7}).gt(0.4).to(at::kFloat);
  EXPECT_ERROR(
      "key_padding_mask: keys dtype (Float) must be Bool or an integer; it holds 0 and 1: pass "
      "keys != 0, or from_hidden(keys) if 1 hides",
      key_padding_mask(keys));
  const auto of_keys = (keys != 0).view({2, 1, 1, 7}).expand_as(seen);
  follow(AttendOptions().mask(key_padding_mask(keys != 0)), {of_keys, {}});
  follow(AttendOptions().mask(key_padding_mask(from_hidden(keys))), {of_keys.logical_not(), {}});
  EXPECT_ERROR(
      "combine_masks: masks[1] dtype (Float) must be Bool or an integer; it holds 0 and -inf or "
      "the least number: pass mask_from_additive(masks[1])",
      combine_masks({causal_mask(5, 7), additive}));
  follow(AttendOptions().mask(combine_masks({causal_mask(5, 7), mask_from_additive(additive)})),
         {seen.logical_and(causal_mask(5, 7)), {}});
}

TEST_F(AttendAdvice, OnABiasThatIsNotFloating) {
  EXPECT_EQ(error(AttendOptions().bias(seen)),
            "attend: bias dtype (Bool) must be Float, Double, BFloat16 or Half; pass it as mask if "
            "true shows, or from_hidden(bias) as mask if true hides");
  follow(AttendOptions().mask(seen), {seen, {}});
  follow(AttendOptions().mask(from_hidden(seen)), {seen.logical_not(), {}});
  const auto numbers = at::randint(-3, 4, {2, 4, 5, 7}, at::kLong);
  EXPECT_EQ(error(AttendOptions().bias(numbers)),
            "attend: bias dtype (Long) must be Float, Double, BFloat16 or Half; pass "
            "bias.to(at::kFloat) if it is added to the scores, or pass it as mask if nonzero "
            "shows");
  follow(AttendOptions().bias(numbers.to(at::kFloat)), {{}, numbers.to(at::kFloat)});
  follow(AttendOptions().mask(numbers), {numbers.ne(0), {}});
}

TEST_F(AttendAdvice, OnShapesOfOthers) {
  const auto keys = random_mask({2, 7});
  EXPECT_EQ(error(AttendOptions().mask(keys)),
            "attend: mask dim 0 (2) must equal L (5); mask [2, 7], query [2, 4, 5, 8], key [2, 2, "
            "7, 8]; if it is [B, S], pass key_padding_mask(mask) or, where nonzero hides, "
            "key_padding_mask(from_hidden(mask))");
  const auto of_keys = keys.view({2, 1, 1, 7}).expand_as(seen);
  follow(AttendOptions().mask(key_padding_mask(keys)), {of_keys, {}});
  follow(AttendOptions().mask(key_padding_mask(from_hidden(keys))), {of_keys.logical_not(), {}});
  const auto bias = uniform({2, 7}, at::kFloat);
  EXPECT_EQ(error(AttendOptions().bias(bias)),
            "attend: bias dim 0 (2) must equal L (5); bias [2, 7], query [2, 4, 5, 8], key [2, 2, "
            "7, 8]; pass bias.unsqueeze(1) if it is [B, S]");
  follow(AttendOptions().bias(bias.unsqueeze(1)), {{}, bias.view({2, 1, 1, 7})});

  const auto of_heads = random_mask({4, 5, 7});
  EXPECT_EQ(error(AttendOptions().mask(of_heads)),
            "attend: mask dim 0 (4) must equal B (2) or 1; mask [4, 5, 7], query [2, 4, 5, 8], key "
            "[2, 2, 7, 8]; pass mask.unsqueeze(0) if it is [H, L, S]");
  follow(AttendOptions().mask(of_heads.unsqueeze(0)), {of_heads.expand_as(seen), {}});
  const auto bias_of_heads = uniform({4, 5, 7}, at::kFloat);
  EXPECT_EQ(error(AttendOptions().bias(bias_of_heads)),
            "attend: bias dim 0 (4) must equal B (2) or 1; bias [4, 5, 7], query [2, 4, 5, 8], key "
            "[2, 2, 7, 8]; pass bias.unsqueeze(0) if it is [H, L, S]");
  follow(AttendOptions().bias(bias_of_heads.unsqueeze(0)), {{}, bias_of_heads.unsqueeze(0)});

  EXPECT_EQ(error(AttendOptions().mask(seen.flatten(0, 1))),
            "attend: mask dim 0 (8) must equal B (2) or 1; mask [8, 5, 7], query [2, 4, 5, 8], key "
            "[2, 2, 7, 8]; pass mask.unflatten(0, {2, 4}) if it is [B * H, L, S]");
  follow(AttendOptions().mask(seen.flatten(0, 1).unflatten(0, {2, 4})), {seen, {}});

  // One row for all queries.
  const auto rows = of_heads.narrow(1, 0, 1);
  EXPECT_EQ(error(AttendOptions().mask(rows)),
            "attend: mask dim 0 (4) must equal B (2) or 1; mask [4, 1, 7], query [2, 4, 5, 8], key "
            "[2, 2, 7, 8]; pass mask.unsqueeze(0) if it is [H, L, S]");
  follow(AttendOptions().mask(rows.unsqueeze(0)), {rows.expand_as(seen), {}});
  const auto all_rows = seen.narrow(2, 0, 1);
  EXPECT_EQ(error(AttendOptions().mask(all_rows.flatten(0, 1))),
            "attend: mask dim 0 (8) must equal B (2) or 1; mask [8, 1, 7], query [2, 4, 5, 8], key "
            "[2, 2, 7, 8]; pass mask.unflatten(0, {2, 4}) if it is [B * H, L, S]");
  follow(AttendOptions().mask(all_rows.flatten(0, 1).unflatten(0, {2, 4})),
         {all_rows.expand_as(seen), {}});
}

TEST_F(AttendAdvice, OnTensorsThatBeginWithTheLength) {
  const auto other = [](const at::Tensor& tensor) { return tensor.transpose(1, 2); };
  const auto error = [&](const AttendOptions& options, int64_t keys) {
    return value_error([&] {
      attend(other(inputs.query), other(inputs.key.narrow(2, 0, keys)),
             other(inputs.value.narrow(2, 0, keys)), options);
    });
  };
  const std::string advice =
      "; pass transpose(1, 2) of query, key and value if they are [B, L, H, D]";
  EXPECT_EQ(error({}, 7),
            "attend: query dim 1 (5) must be a positive multiple of key dim 1 (7); query [2, 5, 4, "
            "8], key [2, 7, 2, 8]" +
                advice);
  follow({}, {});
  // With as many keys as queries nothing tells but what belongs to heads or lengths.
  EXPECT_EQ(error(AttendOptions().mask(causal_mask(5, 5)), 5),
            "attend: mask dim 0 (5) must equal L (4); mask [5, 5], query [2, 5, 4, 8], key [2, 5, "
            "2, 8]" +
                advice);
  EXPECT_EQ(error(AttendOptions().sinks(at::zeros({4})), 5),
            "attend: sinks dim 0 (4) must equal query dim 1 (5); query [2, 5, 4, 8]" + advice);
}

TEST_F(AttendAdvice, OnKeysOfInt8) {
  const auto rows = [](const at::Tensor& heads) { return heads[0].transpose(0, 1); };  // [T, H, D]
  const auto [key, key_scales] = quantize_int8(rows(inputs.key));
  const auto [value, value_scales] = quantize_int8(rows(inputs.value));
  const auto queries = at::tensor({0, 5}, at::kLong), keys = at::tensor({0, 7}, at::kLong);
  const auto options = AttendOptions().key_scales(key_scales).value_scales(value_scales);
  EXPECT_EQ(value_error([&, &key = key, &value = value] {
              attend_varlen(rows(inputs.query), key, value, queries, keys, options);
            }),
            "attend_varlen: key_scales and value_scales must be absent: pass key * "
            "key_scales.unsqueeze(-1), and value likewise");
  const auto output = attend_varlen(rows(inputs.query), key * key_scales.unsqueeze(-1),
                                    value * value_scales.unsqueeze(-1), queries, keys);
  // int8 is off by up to half a step of 1 / 127.
  EXPECT_TRUE(is_close(output, rows(reference({})), 0.02));
}

}  // namespace
}  // namespace heed::test::advice
