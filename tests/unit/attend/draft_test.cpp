// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/alibi.h>
#include <heed/attend.h>
#include <heed/attend_paged.h>
#include <torch/utils.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "unit/reference_cases.h"
#include "unit/routes.h"

namespace heed::test::of_drafts {
namespace {

using Parents = std::vector<int64_t>;

/// A chain, siblings only, and trees that branch.
const std::vector<Parents> kTrees = {{-1, 0, 1, 2},          {-1, -1, -1, -1},     {-1, 0, 0, 1},
                                     {-1, 0, 1, 1, 0, 4, 2}, {-1, -1, 0, 2, 2, 1}, {-1}};

/// The path from the root to token i, itself included.
Parents path_to(const Parents& parents, int64_t i) {
  Parents path;
  for (; i >= 0; i = parents[i]) path.insert(path.begin(), i);
  return path;
}

/// Each token as the last of its own path: [1, H, L, Dv] in float64.
at::Tensor expected(const Inputs& inputs, const Parents& parents, AttendOptions options) {
  const auto length = inputs.query.size(2), before = inputs.key.size(2) - length;
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < length; ++i) {
    auto keys = path_to(parents, i);
    for (auto& key : keys) key += before;
    const auto index = at::tensor(keys, at::kLong).to(inputs.query.device());
    const auto seen = [&](const at::Tensor& heads) {
      return at::cat({heads.narrow(2, 0, before), heads.index_select(2, index)}, 2);
    };
    const Inputs own{inputs.query.narrow(2, i, 1), seen(inputs.key), seen(inputs.value)};
    rows.push_back(reference(own, options.causal(true)).output);
  }
  return at::cat(rows, 2);
}

class AttendDraft : public ::testing::TestWithParam<std::tuple<Route, at::ScalarType>> {};

INSTANTIATE_TEST_SUITE_P(Routes, AttendDraft,
                         ::testing::Combine(::testing::ValuesIn(routes()), kDtypes), kNamed);

TEST_P(AttendDraft, SeesItsPath) {
  torch::manual_seed(moved(1));
  const auto& [route, dtype] = GetParam();
  const ScopedRoute in_force(route);
  // As attend's own tests: a few roundoffs.
  const double tolerance = forward_tolerance(dtype);
  const auto sinks = at::tensor({0.5, -1.0, 2.0, 0.0});
  for (const auto device : devices()) {
    for (const auto& parents : kTrees) {
      const auto length = static_cast<int64_t>(parents.size());
      for (const int64_t before : {0, 1, 40}) {
        for (const auto& options :
             {AttendOptions(), AttendOptions().window(3), AttendOptions().softcap(1.5).scale(0.4),
              AttendOptions().causal(true).sinks(sinks.to(device))}) {
          const auto inputs = make_inputs({1, 4, 2, length, before + length, 6, 5},
                                          at::device(device).dtype(dtype));
          auto call = options;
          call.parents(at::tensor(parents, at::kLong).to(device));
          EXPECT_TRUE(is_close(attend(inputs, call), expected(inputs, parents, options), tolerance))
              << "L " << length << ", " << before << " before";
        }
      }
    }
  }
}

/// The left side of a window counts along the path, as a window does.
TEST(AttendDrafts, SeeTheLeftSideOfAWindow) {
  torch::manual_seed(moved(2));
  for (const auto& parents : kTrees) {
    const auto length = static_cast<int64_t>(parents.size());
    const auto inputs = make_inputs({1, 4, 2, length, length + 9, 6, 5}, at::kDouble);
    for (const int64_t left : {0, 2, 5}) {
      const auto draft = AttendOptions().parents(at::tensor(parents, at::kLong));
      EXPECT_TRUE(attend(inputs, AttendOptions(draft).left_window(left))
                      .equal(attend(inputs, AttendOptions(draft).window(left + 1))))
          << "L " << length << ", left " << left;
    }
  }
}

TEST(AttendDrafts, MayDifferInABatch) {
  torch::manual_seed(moved(1));
  const Parents first = {-1, 0, 0, 1}, second = {-1, 0, 1, 1};
  const auto inputs = make_inputs({2, 4, 2, 4, 20, 6, 5}, at::kDouble);
  const auto parents = at::stack({at::tensor(first, at::kLong), at::tensor(second, at::kLong)});
  const auto output = attend(inputs, AttendOptions().parents(parents));
  for (const int64_t b : {0, 1}) {
    const Inputs own{inputs.query.narrow(0, b, 1), inputs.key.narrow(0, b, 1),
                     inputs.value.narrow(0, b, 1)};
    EXPECT_TRUE(is_close(output.narrow(0, b, 1), expected(own, b == 0 ? first : second, {}),
                         32 * unit_roundoff(at::kDouble)));
  }
}

/// Sequences of different lengths, three of which begin with the same pages; two of these go on
/// with the same pages.
TEST(AttendDrafts, LieInPages) {
  torch::manual_seed(moved(1));
  const at::NoGradGuard no_grad;
  constexpr int64_t kPages = 160, kPage = 16;
  const std::vector<Parents> trees = {{-1, 0, 0, 1}, {-1, 0, 1, 1}, {-1}, {-1, 0, 1}};
  const std::vector<int64_t> lengths = {600, 620, 310, 3}, offsets = {0, 4, 8, 9, 12};
  for (const auto device : devices()) {
    const auto keys = uniform({kPages, 2, kPage, 6}, at::device(device).dtype(at::kDouble));
    const auto values = uniform({kPages, 2, kPage, 5}, at::device(device).dtype(at::kDouble));
    const auto query = uniform({12, 4, 6}, at::device(device).dtype(at::kDouble));
    auto table = at::randperm(kPages, at::kLong).view({4, 40});
    table[1].narrow(0, 0, 36).copy_(table[0].narrow(0, 0, 36));
    table[2].narrow(0, 0, 18).copy_(table[0].narrow(0, 0, 18));
    Parents parents;
    for (const auto& tree : trees) parents.insert(parents.end(), tree.begin(), tree.end());
    for (const auto window : {std::optional<int64_t>(), std::optional<int64_t>(7)}) {
      const auto options = AttendOptions().causal(true).window(window);
      auto call = options;
      call.parents(at::tensor(parents, at::kLong));
      const auto output = attend_paged(query, keys, values, table, at::tensor(offsets, at::kLong),
                                       at::tensor(lengths, at::kLong), call);
      for (size_t n = 0; n < trees.size(); ++n) {
        const auto own = [&](const at::Tensor& pool) {
          const auto pages = pool.index_select(0, table[static_cast<int64_t>(n)].to(device));
          return pages.transpose(0, 1).flatten(1, 2).narrow(1, 0, lengths[n]).unsqueeze(0);
        };
        const auto count = offsets[n + 1] - offsets[n];
        const auto rows = [&](const at::Tensor& packed) {
          return packed.narrow(0, offsets[n], count).transpose(0, 1).unsqueeze(0);
        };
        EXPECT_TRUE(is_close(rows(output),
                             expected({rows(query), own(keys), own(values)}, trees[n], options),
                             64 * unit_roundoff(at::kDouble)))
            << "sequence " << n;
      }
    }
  }
}

class AttendDraftErrors : public ::testing::Test {
 protected:
  std::string error(const AttendOptions& options) const {
    return value_error([&] { attend(query, key, key, options); });
  }
  std::string error(const Parents& parents) const {
    return error(AttendOptions().parents(at::tensor(parents, at::kLong)));
  }

  at::Tensor query = at::zeros({2, 3, 4, 8}), key = at::zeros({2, 1, 5, 8});
};

TEST_F(AttendDraftErrors, NameWhatIsWrong) {
  const auto parents = at::tensor({-1, 0, 0, 1}, at::kLong);
  EXPECT_EQ(error(Parents{-1, 0, 2, 1}),
            "attend: parents[2] (2) must be at least -1 and below 2: a token that stands before it "
            "in its sequence");
  EXPECT_EQ(
      error(Parents{-1, -2, 2, 1}),
      "attend: parents[1] (-2) must be at least -1 and below 1: a token that stands before it "
      "in its sequence");
  EXPECT_EQ(error(AttendOptions().parents(at::stack({parents, parents + 3}))),
            "attend: parents[1][0] (2) must be at least -1 and below 0: a token that stands before "
            "it in its sequence");
  EXPECT_EQ(error(Parents{-1, 0, 0}),
            "attend: parents [3] must have the shape [L] or [B, L]; query [2, 3, 4, 8], "
            "key [2, 1, 5, 8]");
  EXPECT_EQ(error(AttendOptions().parents(parents.to(at::kInt))),
            "attend: parents dtype (Int) must be Long");
  EXPECT_EQ(error(AttendOptions().parents(at::Tensor())), "attend: parents must be defined");
  EXPECT_EQ(error(AttendOptions().parents(parents).mask(at::zeros({4, 5}, at::kBool))),
            "attend: mask must be absent with parents");
  EXPECT_EQ(error(AttendOptions().parents(parents).alibi_slopes(alibi_slopes(3))),
            "attend: alibi_slopes must be absent with parents");
  EXPECT_EQ(error(AttendOptions()
                      .parents(parents)
                      .documents(at::zeros({4}, at::kLong))
                      .key_documents(at::zeros({5}, at::kLong))),
            "attend: documents must be absent with parents");
  const auto bools = at::zeros({5}, at::kBool), lengths = at::zeros({2}, at::kLong);
  const std::vector<std::pair<const char*, AttendOptions>> contradictions = {
      {"right_window", AttendOptions().right_window(1)},
      {"top_left", AttendOptions().top_left(true)},
      {"query_lengths", AttendOptions().query_lengths(lengths)},
      {"key_lengths", AttendOptions().key_lengths(lengths)},
      {"global_tokens", AttendOptions().window(2).global_tokens(bools)},
      {"relative_bias", AttendOptions().relative_bias(at::zeros({3, 5}))}};
  for (const auto& [name, options] : contradictions) {
    EXPECT_EQ(error(AttendOptions(options).parents(parents)),
              std::string("attend: ") + name + " must be absent with parents");
  }
  key = at::zeros({2, 1, 3, 8});
  EXPECT_EQ(error(AttendOptions().parents(parents)),
            "attend: key dim 2 (3) must be at least query dim 2 (4) with parents");
  const auto rows = at::zeros({4, 3, 8});
  const auto offsets = at::tensor({0, 4}, at::kLong);
  EXPECT_ERROR("attend_varlen: parents must be absent: the tokens are no draft",
               attend_varlen(rows, rows, rows, offsets, offsets, AttendOptions().parents(parents)));
}

TEST_F(AttendDraftErrors, NameWhatIsWrongInPages) {
  const auto error = [](const Parents& parents) {
    const auto pages = at::zeros({2, 1, 16, 8});
    return value_error([&] {
      attend_paged(at::zeros({4, 3, 8}), pages, pages, at::tensor({0, 1}, at::kLong).view({2, 1}),
                   at::tensor({0, 1, 4}, at::kLong), at::tensor({5, 6}, at::kLong),
                   AttendOptions().parents(at::tensor(parents, at::kLong)));
    });
  };
  EXPECT_EQ(error({-1, -1, 0, 2}),
            "attend_paged: parents[3] (2) must be at least -1 and below 2: a token that stands "
            "before it in its sequence");
  EXPECT_EQ(error({-1, 0}), "attend_paged: parents [2] must be [4], one for each query");
}

}  // namespace
}  // namespace heed::test::of_drafts
