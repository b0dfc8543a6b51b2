#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/alibi.h>
#include <heed/attend_paged.h>
#include <heed/autocast.h>
#include <torch/utils.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/memory.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "unit/routes.h"

namespace heed::test::of_paged {
namespace {

using Lengths = std::vector<int64_t>;

constexpr int64_t kHeads = 4, kGroups = 2, kHeadDim = 6, kValueHeadDim = 5, kPage = 16;

at::Tensor offsets(const Lengths& lengths) {
  Lengths ends = {0};
  for (const auto length : lengths) ends.push_back(ends.back() + length);
  return at::tensor(ends);
}

/// Sequences, and their keys and values in pages: in any order, with NaN where there is no key.
struct Paged {
  Paged(Lengths query_lengths, Lengths key_lengths, const at::TensorOptions& options)
      : queries(std::move(query_lengths)), keys(std::move(key_lengths)) {
    int64_t tokens = 0, columns = 1, pages = 3;  // some that nobody uses
    for (const auto length : queries) tokens += length;
    for (const auto length : keys) {
      columns = std::max(columns, (length + kPage - 1) / kPage);
      pages += (length + kPage - 1) / kPage;
    }
    query = uniform({tokens, kHeads, kHeadDim}, options);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    // As some caches keep them: the groups of a token side by side.
    key_pages = at::full({pages, kPage, kGroups, kHeadDim}, nan, options).transpose(1, 2);
    value_pages = at::full({pages, kGroups, kPage, kValueHeadDim}, nan, options);
    page_table = at::full({static_cast<int64_t>(keys.size()), columns}, -7, at::kLong);
    const auto order = at::randperm(pages, at::kLong);
    int64_t next = 0;
    for (size_t n = 0; n < keys.size(); ++n) {
      dense_keys.push_back(uniform({1, kGroups, keys[n], kHeadDim}, options));
      dense_values.push_back(uniform({1, kGroups, keys[n], kValueHeadDim}, options));
      for (int64_t first = 0; first < keys[n]; first += kPage) {
        const auto count = std::min(kPage, keys[n] - first);
        const auto page = order[next++].item<int64_t>();
        page_table[static_cast<int64_t>(n)][first / kPage] = page;
        key_pages[page].narrow(1, 0, count).copy_(dense_keys[n][0].narrow(1, first, count));
        value_pages[page].narrow(1, 0, count).copy_(dense_values[n][0].narrow(1, first, count));
      }
    }
  }

  /// Lets sequence n + 1 begin with the same pages as sequence n.
  void share(int64_t n, int64_t pages) {
    page_table[n + 1].narrow(0, 0, pages).copy_(page_table[n].narrow(0, 0, pages));
    for (auto* dense : {&dense_keys, &dense_values}) {
      const auto& from = (*dense)[static_cast<size_t>(n)];
      auto& to = (*dense)[static_cast<size_t>(n + 1)];
      to.narrow(2, 0, pages * kPage).copy_(from.narrow(2, 0, pages * kPage));
    }
  }

  at::Tensor attend(const AttendOptions& options) const {
    return attend_paged(query, key_pages, value_pages, page_table, offsets(queries),
                        at::tensor(keys, at::kLong), options);
  }

  at::Tensor expected(const AttendOptions& options) const {
    std::vector<at::Tensor> outputs = {at::zeros({0, kHeads, kValueHeadDim}, at::kDouble)};
    int64_t row = 0;
    for (size_t n = 0; n < keys.size(); ++n) {
      const Inputs inputs = {query.narrow(0, row, queries[n]).transpose(0, 1).unsqueeze(0),
                             dense_keys[n], dense_values[n]};
      const auto output = reference_attention(reference_input(inputs, options)).output;
      outputs.push_back(output.squeeze(0).transpose(0, 1));
      row += queries[n];
    }
    return at::cat(outputs);
  }

  Lengths queries, keys;
  at::Tensor query, key_pages, value_pages, page_table;
  std::vector<at::Tensor> dense_keys, dense_values;  // [1, G, S, D]
};

struct Case {
  const char* name;
  Lengths queries, keys;
};

/// One query and many, at the edges of pages and tiles, without keys, and none at all.
const std::vector<Case> kCases = {
    {"decoding", {1, 1, 1, 1, 1}, {1, 15, 16, 17, 300}},
    {"prompts", {5, 5, 40, 1}, {5, 5, 40, 1}},
    {"a mix", {1, 1, 33, 2, 2, 0, 7}, {64, 65, 100, 32, 3, 20, 7}},
    {"some without tokens", {0, 1, 0}, {0, 40, 3}},
    {"none", {}, {}},
};

std::vector<std::pair<const char*, AttendOptions>> variants() {
  const auto sinks = at::tensor({0.5, -1.0, 2.0, 0.0});
  return {
      {"plain", {}},
      {"causal", AttendOptions().causal(true)},
      {"causal, window 20", AttendOptions().causal(true).window(20)},
      {"window 3, scale", AttendOptions().window(3).scale(0.4)},
      {"softcap, ALiBi, sinks",
       AttendOptions().causal(true).softcap(1.5).alibi_slopes(alibi_slopes(kHeads)).sinks(sinks)}};
}

AttendOptions on_device(AttendOptions options, at::Device device) {
  if (auto& slopes = options.alibi_slopes()) slopes = slopes->to(device);
  if (auto& sinks = options.sinks()) sinks = sinks->to(device);
  return options;
}

std::vector<Route> paged_routes() {
  auto result = routes();
  result.push_back({"decode", AttendPath::decode, {}, {}});
  return result;
}

class AttendPaged : public ::testing::TestWithParam<std::tuple<Route, at::ScalarType>> {};

INSTANTIATE_TEST_SUITE_P(Routes, AttendPaged,
                         ::testing::Combine(::testing::ValuesIn(paged_routes()),
                                            ::testing::Values(at::kFloat, at::kDouble,
                                                              at::kBFloat16, at::kHalf)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" +
                                  c10::toString(std::get<1>(info.param));
                         });

TEST_P(AttendPaged, EqualsTheReferenceOfEachSequence) {
  torch::manual_seed(moved(1));
  const auto& [route, dtype] = GetParam();
  const ScopedRoute in_force(route);
  // As attend's own tests: a few roundoffs.
  const double tolerance =
      (dtype == at::kFloat || dtype == at::kDouble ? 32 : 4) * unit_roundoff(dtype);
  for (const auto device : devices()) {
    for (const auto& c : kCases) {
      const Paged paged(c.queries, c.keys, at::device(device).dtype(dtype));
      for (const auto& [name, options] : variants()) {
        const auto output = paged.attend(on_device(options, device));
        ASSERT_EQ(output.scalar_type(), dtype);
        EXPECT_TRUE(is_close(output, paged.expected(options), tolerance)) << c.name << ", " << name;
      }
    }
  }
}

/// The first three, the next two, and not the last; more pages than are worth it, and fewer.
TEST_P(AttendPaged, MergesWhatSequencesShare) {
  torch::manual_seed(moved(1));
  const auto& [route, dtype] = GetParam();
  const ScopedRoute in_force(route);
  // As above, and two results are merged.
  const double tolerance =
      (dtype == at::kFloat || dtype == at::kDouble ? 64 : 4) * unit_roundoff(dtype);
  for (const auto device : devices()) {
    for (const int64_t length : {1, 3}) {
      Paged paged(Lengths(7, length), {340, 323, 300, 291, 275, 280, 50},
                  at::device(device).dtype(dtype));
      paged.share(0, 20);
      paged.share(1, 18);
      paged.share(3, 17);
      paged.share(4, 2);
      for (const auto& [name, options] : variants()) {
        EXPECT_TRUE(
            is_close(paged.attend(on_device(options, device)), paged.expected(options), tolerance))
            << name << ", L " << length;
      }
    }
  }
}

TEST(AttendPagedMemory, IsThatOfTheResult) {
  if (!detail::has_kernels()) GTEST_SKIP() << kNoKernels;
  const at::NoGradGuard no_grad;
  const auto query = at::rand({1, 8, 64});
  const auto pages = at::rand({64, 2, 64, 64});  // 4096 keys of 2 * 64 numbers: 2 MB
  const auto table = at::randperm(64, at::kLong).unsqueeze(0);
  const auto run = [&] {
    return attend_paged(query, pages, pages, table, at::tensor(Lengths{0, 1}),
                        at::tensor(Lengths{4096}));
  };
  run();
  const AllocationCounter counter;
  run();
  EXPECT_LT(counter.peak(), 200'000);
}

class AttendPagedErrors : public ::testing::Test {
 protected:
  std::string error(const AttendOptions& options = {}) const {
    return value_error([&] {
      attend_paged(query, key_pages, value_pages, page_table, query_offsets, key_lengths, options);
    });
  }

  at::Tensor query = at::zeros({4, 4, 8});
  at::Tensor key_pages = at::zeros({5, 2, 16, 8}), value_pages = at::zeros({5, 2, 16, 3});
  at::Tensor page_table = at::tensor(Lengths{0, 1, 2, 3}).view({2, 2});
  at::Tensor query_offsets = at::tensor(Lengths{0, 1, 4});
  at::Tensor key_lengths = at::tensor(Lengths{20, 5});
};

TEST_F(AttendPagedErrors, NameTheTensorThatIsWrong) {
  key_pages = at::zeros({5, 2, 16, 7});
  EXPECT_EQ(error(),
            "attend_paged: key_pages dim 3 (7) must equal query dim 2 (8) and be at least 1; "
            "query [4, 4, 8], key_pages [5, 2, 16, 7]");
  key_pages = at::zeros({5, 3, 16, 8}), value_pages = at::zeros({5, 3, 16, 8});
  EXPECT_EQ(error(),
            "attend_paged: query dim 1 (4) must be a positive multiple of key_pages dim 1 (3); "
            "query [4, 4, 8], key_pages [5, 3, 16, 8]");
  key_pages = at::zeros({5, 2, 24, 8});
  value_pages = at::zeros({5, 2, 16, 8});
  EXPECT_EQ(error(),
            "attend_paged: value_pages dim 2 (16) must equal key_pages dim 2 (24); "
            "key_pages [5, 2, 24, 8], value_pages [5, 2, 16, 8]");
  value_pages = key_pages;
  EXPECT_EQ(error(),
            "attend_paged: key_pages dim 2 (24) must be a positive multiple of 16; "
            "key_pages [5, 2, 24, 8]");
  key_pages = key_pages.to(at::kHalf);
  EXPECT_EQ(error(), "attend_paged: key_pages dtype (Half) must equal query dtype (Float)");
  query = query.unsqueeze(0);
  EXPECT_EQ(error(), "attend_paged: query rank (4) must equal 3; query [1, 4, 4, 8]");
  query = at::Tensor();
  EXPECT_EQ(error(), "attend_paged: query must be defined");
}

/// Autocast converts floating queries alone.
TEST_F(AttendPagedErrors, RefuseIntegersUnderAutocastToo) {
  const Autocast autocast(at::kCPU, at::kBFloat16);
  key_pages = key_pages.to(at::kInt);
  EXPECT_EQ(error(), "attend_paged: key_pages dtype (Int) must equal query dtype (Float)");
  query = query.to(at::kLong);
  EXPECT_EQ(error(), "attend_paged: query dtype (Long) must be Float, Double, BFloat16 or Half");
}

TEST_F(AttendPagedErrors, NameTheNumberThatIsWrong) {
  key_lengths = at::tensor(Lengths{20, 2});
  EXPECT_EQ(error(),
            "attend_paged: key_lengths[1] (2) must be at least its queries (3) and at most the "
            "keys of 2 pages (32)");
  key_lengths = at::tensor(Lengths{33, 5});
  EXPECT_EQ(error(),
            "attend_paged: key_lengths[0] (33) must be at least its queries (1) and at most the "
            "keys of 2 pages (32)");
  key_lengths = at::tensor(Lengths{20, 17});
  page_table[1][1] = 5;
  EXPECT_EQ(error(),
            "attend_paged: page_table[1][1] (5) must be at least 0 and below key_pages dim 0 (5)");
  page_table = at::zeros({3, 2}, at::kLong);
  EXPECT_EQ(error(), "attend_paged: page_table dim 0 (3) must equal query_offsets dim 0 - 1 (2)");
  page_table = at::zeros({2}, at::kLong);
  EXPECT_EQ(error(), "attend_paged: page_table rank (1) must equal 2; page_table [2]");
  page_table = at::zeros({2, 2}, at::kInt);
  EXPECT_EQ(error(), "attend_paged: page_table dtype (Int) must be Long");
  query_offsets = at::tensor(Lengths{0, 1, 3});
  page_table = at::zeros({2, 2}, at::kLong);
  EXPECT_EQ(error(), "attend_paged: query_offsets[2] (3) must equal the packed length (4)");
}

TEST_F(AttendPagedErrors, RefuseWhatHasNoMeaningThere) {
  EXPECT_EQ(error(AttendOptions().mask(at::zeros({4, 4}, at::kBool))),
            "attend_paged: mask must be absent: the lengths say what a query may see");
  EXPECT_EQ(error(AttendOptions().documents(at::zeros({4}, at::kLong))),
            "attend_paged: documents must be absent: the lengths say what a query may see");
  EXPECT_EQ(error(AttendOptions().bias(at::zeros({4, 4}))),
            "attend_paged: bias must be absent: sequences differ in shape");
  EXPECT_EQ(error(AttendOptions().dropout(0.5)),
            "attend_paged: dropout (0.5) must be 0: pages are for inference");
  query.requires_grad_();
  EXPECT_EQ(error(),
            "attend_paged: query must not require grad: pages hold no gradients; use "
            "torch::NoGradGuard");
}

}  // namespace
}  // namespace heed::test::of_paged
