// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
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

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "attend/paged_call.h"
#include "attend/shared_pages.h"
#include "support/dense.h"
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

  /// Lets sequence n begin with the same full pages as sequence `from`.
  void share(int64_t from, int64_t n, int64_t pages) {
    page_table[n].narrow(0, 0, pages).copy_(page_table[from].narrow(0, 0, pages));
    for (auto* dense : {&dense_keys, &dense_values}) {
      (*dense)[n].narrow(2, 0, pages * kPage).copy_((*dense)[from].narrow(2, 0, pages * kPage));
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
      const auto output = dense_reference(inputs, options).output;
      outputs.push_back(output.squeeze(0).transpose(0, 1));
      row += queries[n];
    }
    return at::cat(outputs);
  }

  Lengths queries, keys;
  at::Tensor query, key_pages, value_pages, page_table;
  std::vector<at::Tensor> dense_keys, dense_values;  // [1, G, S, D]
};

/// So many roundoffs; of half types 4, for they round once, at the end.
double roundoffs(at::ScalarType dtype, double count) {
  return (dtype == at::kFloat || dtype == at::kDouble ? count : 4) * unit_roundoff(dtype);
}

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
  const auto relative = uniform({kHeads, 15}, at::kFloat);
  return {
      {"plain", {}},
      {"causal", AttendOptions().causal(true)},
      {"causal, window 20", AttendOptions().causal(true).window(20)},
      {"window 3, scale", AttendOptions().window(3).scale(0.4)},
      {"left 20, causal", AttendOptions().causal(true).left_window(20)},
      {"left 3, right 1", AttendOptions().left_window(3).right_window(1)},
      {"right 0", AttendOptions().right_window(0)},
      {"relative bias", AttendOptions().relative_bias(relative)},
      {"relative bias, left 9",
       AttendOptions().causal(true).left_window(9).relative_bias(relative)},
      {"softcap, ALiBi, sinks",
       AttendOptions().causal(true).softcap(1.5).alibi_slopes(alibi_slopes(kHeads)).sinks(sinks)}};
}

AttendOptions on_device(AttendOptions options, at::Device device) {
  if (auto& slopes = options.alibi_slopes()) slopes = slopes->to(device);
  if (auto& sinks = options.sinks()) sinks = sinks->to(device);
  if (auto& bias = options.relative_bias()) bias = bias->to(device);
  return options;
}

std::vector<Route> paged_routes() {
  auto result = routes();
  result.push_back({"decode", AttendPath::decode, {}, {}});
  return result;
}

class AttendPaged : public ::testing::TestWithParam<std::tuple<Route, at::ScalarType>> {};

INSTANTIATE_TEST_SUITE_P(Routes, AttendPaged,
                         ::testing::Combine(::testing::ValuesIn(paged_routes()), kDtypes), kNamed);

TEST_P(AttendPaged, EqualsTheReferenceOfEachSequence) {
  torch::manual_seed(moved(1));
  const auto& [route, dtype] = GetParam();
  const ScopedRoute in_force(route);
  // As attend's own tests: a few roundoffs.
  const double tolerance = roundoffs(dtype, 32);
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
  // Twice the roundoffs of one result, for two are merged.
  const double tolerance = roundoffs(dtype, 64);
  for (const auto device : devices()) {
    for (const int64_t length : {1, 3}) {
      Paged paged(Lengths(7, length), {340, 323, 300, 291, 275, 280, 50},
                  at::device(device).dtype(dtype));
      paged.share(0, 1, 20);
      paged.share(1, 2, 18);
      paged.share(3, 4, 17);
      paged.share(4, 5, 2);
      for (const auto& [name, options] : variants()) {
        EXPECT_TRUE(
            is_close(paged.attend(on_device(options, device)), paged.expected(options), tolerance))
            << name << ", L " << length;
      }
    }
  }
}

/// Each sequence begins as one before it, in any order, so that nodes of the tree lie below others;
/// with any number of queries.
TEST_P(AttendPaged, MergesTreesOfWhatSequencesShare) {
  torch::manual_seed(moved(1));
  std::mt19937 random(static_cast<unsigned>(moved(2)));
  const auto draw = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  const auto& [route, dtype] = GetParam();
  const ScopedRoute in_force(route);
  // 96 roundoffs: up to four results are merged, each of which adds sums in another order.
  const double tolerance = roundoffs(dtype, 96);
  for (const auto device : devices()) {
    for (int tree = 0; tree < 3; ++tree) {
      Lengths queries, keys;
      for (int n = 0; n < 7; ++n) {
        queries.push_back(draw(0, 5) == 0 ? 20 : draw(0, 3));  // 20 are too many to share
        keys.push_back(draw(260, 1100));
      }
      Paged paged(queries, keys, at::device(device).dtype(dtype));
      for (int64_t n = 1; n < 7; ++n) {
        const auto from = draw(0, n - 1), most = std::min(keys[from], keys[n]) / kPage;
        paged.share(from, n, draw(most / 2, most));
      }
      for (const auto& [name, options] : variants()) {
        EXPECT_TRUE(
            is_close(paged.attend(on_device(options, device)), paged.expected(options), tolerance))
            << name << ", tree " << tree;
      }
    }
  }
}

at::Tensor table_of(const std::vector<Lengths>& pages) {
  size_t columns = 0;
  for (const auto& row : pages) columns = std::max(columns, row.size());
  auto table =
      at::full({static_cast<int64_t>(pages.size()), static_cast<int64_t>(columns)}, -7, at::kLong);
  for (size_t n = 0; n < pages.size(); ++n) {
    std::copy(pages[n].begin(), pages[n].end(), table[n].data_ptr<int64_t>());
  }
  return table;
}

/// A and B share 10,000 keys, of which C shares 256. C stands between them.
TEST(SharedPages, AreReadOnceForAllThatBeginWithThem) {
  Lengths a(626), c(100);
  std::iota(a.begin(), a.end(), 0);
  std::iota(c.begin(), c.end(), 1000);
  std::copy_n(a.begin(), 16, c.begin());
  auto b = a;
  b.back() = 2000;
  const detail::PagedCall call({1, 1, 1}, {10010, 1600, 10016}, table_of({a, c, b}), {}, kPage,
                               at::kCPU);
  const auto& levels = call.levels(/*shares=*/true);
  ASSERT_EQ(levels.size(), 3U);
  for (const auto& level : levels) ASSERT_EQ(level.batches.size(), 1U);
  const auto tokens = at::arange(3, at::kLong);
  const auto expect_level = [&](size_t n, const Lengths& lengths, const at::Tensor& own) {
    EXPECT_EQ(levels[n].batches[0].lengths, lengths);
    EXPECT_TRUE(at::equal(levels[n].batches[0].tokens.of(tokens), own));
    EXPECT_TRUE(at::equal(levels[n].tokens.of(tokens), own));
  };
  expect_level(0, {10, 1344, 16}, tokens);
  expect_level(1, {256}, tokens);
  expect_level(2, {9744}, at::tensor(Lengths{0, 2}));
  const auto& own = levels[0].batches[0].sequences;
  EXPECT_EQ(own.longest, 1344);
  EXPECT_EQ(own.page(0, 0), 625);
  EXPECT_EQ(own.page(1, 0), 1016);
  EXPECT_EQ(own.page(1, 83), 1099);
  EXPECT_EQ(own.page(2, 0), 2000);
  EXPECT_EQ(levels[2].batches[0].sequences.page(0, 608), 624);
  ASSERT_EQ(call.levels(/*shares=*/false).size(), 1U);
  EXPECT_EQ(call.levels(/*shares=*/false)[0].batches[0].lengths, Lengths({10010, 1600, 10016}));
}

using Node = std::tuple<int64_t, int64_t, int64_t, Lengths>;  // depth, pages, sequences

/// The nodes of each sequence alone, by the definition.
std::set<Node> expected_nodes(const at::Tensor& table, const Lengths& most) {
  constexpr int64_t kWorth = 16;  // pages
  const auto begin_alike = [&](int64_t n, int64_t m, int64_t pages) {
    const auto* rows = table.const_data_ptr<int64_t>();
    const auto columns = table.size(1);
    return std::equal(rows + n * columns, rows + n * columns + pages, rows + m * columns);
  };
  const auto with_page = [&](int64_t n, int64_t page) {  // sequences that share it with n
    Lengths sequences;
    for (int64_t m = 0; m < table.size(0); ++m) {
      const bool may = most[m] >= kWorth && most[m] > page && most[n] > page;
      if (may && begin_alike(n, m, page + 1)) sequences.push_back(m);
    }
    return sequences;
  };
  std::set<Node> nodes;
  for (int64_t n = 0; n < table.size(0); ++n) {
    int64_t first = 0, depth = 0;
    auto sequences = with_page(n, 0);
    for (int64_t page = 0; sequences.size() > 1; ++page) {
      auto next = with_page(n, page + 1);
      if (next != sequences && page + 1 - first >= kWorth) {
        nodes.insert({depth++, first, page + 1, sequences});
        first = page + 1;
      }
      sequences = std::move(next);
    }
  }
  return nodes;
}

TEST(SharedPages, AreThoseOfTheDefinition) {
  std::mt19937 random(static_cast<unsigned>(moved(3)));
  const auto draw = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  int64_t fresh = 0, deepest = 0;
  for (int i = 0; i < 100; ++i) {
    std::vector<Lengths> rows;
    Lengths most;
    for (int64_t n = 0; n < 8; ++n) {
      Lengths row(static_cast<size_t>(draw(1, 70)));
      for (auto& page : row) page = fresh++;
      if (n > 0) {
        const auto& from = rows[draw(0, n - 1)];
        const auto alike = draw(0, static_cast<int64_t>(std::min(row.size(), from.size())));
        std::copy_n(from.begin(), alike, row.begin());
      }
      most.push_back(draw(0, 3) == 0 ? draw(0, row.size()) : static_cast<int64_t>(row.size()));
      rows.push_back(std::move(row));
    }
    const auto table = table_of(rows);
    std::set<Node> nodes;
    for (const auto& node : detail::shared_pages(table, most, kPage)) {
      nodes.insert({node.depth, node.first, node.last, node.sequences});
      deepest = std::max(deepest, node.depth);
    }
    ASSERT_EQ(nodes, expected_nodes(table, most));
  }
  EXPECT_GT(deepest, 0);
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
  const auto numbers = at::zeros({2}, at::kLong);
  const std::string of_lengths = " must be absent: the lengths say what a query may see",
                    of_shapes = " must be absent: sequences differ in shape";
  for (const auto& options :
       {AttendOptions().query_lengths(numbers), AttendOptions().key_lengths(numbers)}) {
    EXPECT_EQ(error(options), "attend_paged: query_lengths and key_lengths" + of_lengths);
  }
  EXPECT_EQ(error(AttendOptions().global_tokens(at::zeros({4}, at::kBool))),
            "attend_paged: global_tokens" + of_shapes);
  EXPECT_EQ(error(AttendOptions().relative_positions(numbers)),
            "attend_paged: relative_positions" + of_shapes);
  EXPECT_EQ(error(AttendOptions().top_left(true)),
            "attend_paged: top_left must be absent: the last query is at the last key");
  EXPECT_EQ(error(AttendOptions().alibi_slopes(at::zeros({2, 4}))),
            "attend_paged: alibi_slopes rank (2) must equal 1; alibi_slopes [2, 4]");
  EXPECT_EQ(error(AttendOptions().alibi_slopes(at::zeros({4}).requires_grad_())),
            "attend_paged: alibi_slopes must not require grad: use torch::NoGradGuard");
  EXPECT_EQ(error(AttendOptions().relative_bias(at::zeros({4, 3}).requires_grad_())),
            "attend_paged: relative_bias must not require grad: use torch::NoGradGuard");
  const auto parents = at::full({4}, -1, at::kLong);
  EXPECT_EQ(error(AttendOptions().parents(parents).relative_bias(at::zeros({4, 3}))),
            "attend_paged: relative_bias must be absent with parents");
  EXPECT_EQ(error(AttendOptions().parents(parents).right_window(2)),
            "attend_paged: right_window must be absent with parents");
  query.requires_grad_();
  EXPECT_EQ(error(),
            "attend_paged: query must not require grad: pages hold no gradients; use "
            "torch::NoGradGuard");
}

}  // namespace
}  // namespace heed::test::of_paged
