// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/attend_paged.h>
#include <heed/paged_kv_cache.h>
#include <heed/quantize.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test::of_paged_kv_cache {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t G = 2, H = 4, D = 3, Dv = 2, kPage = 16, kLayers = 2;

PagedKVCacheOptions options(int64_t pages) {
  return PagedKVCacheOptions(pages, G, D).value_head_dim(Dv).page_size(kPage);
}

Numbers numbers(const at::Tensor& tensor) {
  const auto whole = tensor.contiguous();
  return {whole.data_ptr<int64_t>(), whole.data_ptr<int64_t>() + whole.numel()};
}

/// A sequence as plain tensors: all its keys, [layers, G, S, D] in float64.
struct Plain {
  at::Tensor keys = at::zeros({kLayers, G, 0, D}, at::kDouble);
  at::Tensor values = at::zeros({kLayers, G, 0, Dv}, at::kDouble);
  int64_t appended = 0;  // by the last append
  int64_t length() const { return keys.size(2); }
};

/// A cache and the same sequences as plain tensors, changed at random in the same way.
class Walk {
 public:
  Walk(uint32_t seed, std::optional<int64_t> window, at::ScalarType dtype)
      : random_(static_cast<unsigned>(moved(seed))),
        window_(window),
        cache_(options(24).layers(kLayers).dtype(dtype).window(window)) {}

  void take_step() {
    switch (draw(11)) {
      case 0:
        if (plain_.size() < 12) plain_[cache_.add()];
        return;
      case 1:
        if (!plain_.empty() && plain_.size() < 12) fork();
        return;
      case 2:
        if (!plain_.empty()) truncate();
        return;
      case 3:
        if (plain_.size() > 6) remove();
        remove_long();
        return;
      case 4:
        if (!plain_.empty()) keep();
        return;
      default:
        append();
    }
  }

  void finish() {
    while (!plain_.empty()) remove();
    EXPECT_EQ(cache_.pages_free(), cache_.options().pages());
  }
  int refused() const { return refused_; }

 private:
  int64_t draw(int64_t below) {
    return std::uniform_int_distribution<int64_t>(0, below - 1)(random_);
  }
  int64_t any() { return std::next(plain_.begin(), draw(plain_.size()))->first; }

  void fork() {
    const auto from = any();
    plain_[cache_.fork(from)] = plain_[from];
  }
  void remove() { remove(any()); }
  void remove(int64_t name) {
    cache_.remove(name);
    plain_.erase(name);
  }
  /// With a window they would grow without end.
  void remove_long() {
    const auto is_long = [](const auto& named) { return named.second.length() > 600; };
    const auto found = std::find_if(plain_.begin(), plain_.end(), is_long);
    if (found != plain_.end()) remove(found->first);
  }
  void truncate() {
    const auto name = any();
    auto& [keys, values, appended] = plain_[name];
    const auto before = keys.size(2), length = draw(before + 2);
    try {
      cache_.truncate(name, length);
    } catch (const c10::ValueError&) {
      ASSERT_TRUE(window_);  // which the cache no longer has all keys of
      ASSERT_EQ(cache_.length(name), keys.size(2));
      return;
    }
    keys = keys.narrow(2, 0, std::min(length, keys.size(2)));
    values = values.narrow(2, 0, keys.size(2));
    appended = std::max<int64_t>(appended - (before - keys.size(2)), 0);
    ASSERT_EQ(cache_.length(name), keys.size(2));
  }

  /// Some of the tokens of its last append, perhaps none.
  void keep() {
    const auto name = any();
    auto& plain = plain_[name];
    const auto first = plain.length() - plain.appended;
    Numbers positions;
    for (auto position = first; position < plain.length(); ++position) {
      if (draw(2) == 0) positions.push_back(position);
    }
    try {
      cache_.keep(name, positions);
    } catch (const c10::ValueError&) {  // it was forked, and there is no page for a copy
      ASSERT_LE(cache_.pages_free(), 3);
      ASSERT_EQ(cache_.length(name), plain.length());
      return;
    }
    for (auto* tensor : {&plain.keys, &plain.values}) {
      const auto kept = tensor->index_select(2, at::tensor(positions, at::kLong));
      *tensor = at::cat({tensor->narrow(2, 0, first), kept}, 2);
    }
    plain.appended = static_cast<int64_t>(positions.size());
    ASSERT_EQ(cache_.length(name), plain.length());
  }

  /// To any of the sequences, in any order, up to three pages each.
  void append() {
    Numbers names, counts;
    for (const auto& [name, plain] : plain_) {
      if (draw(2) == 0) names.push_back(name), counts.push_back(draw(2) == 0 ? 1 : draw(40));
    }
    std::shuffle(names.begin(), names.end(), random_);
    const auto needed = cache_.pages_needed(names, counts), free = cache_.pages_free();
    if (needed > free) {
      ++refused_;
      EXPECT_THROW(cache_.append(names, counts), c10::ValueError);
      EXPECT_EQ(cache_.pages_free(), free);
      for (const auto name : names) ASSERT_EQ(cache_.length(name), plain_[name].length());
      return;
    }
    auto step = cache_.append(names, counts);
    EXPECT_EQ(cache_.pages_free(), free - needed);
    ASSERT_EQ(step.tokens(), std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    for (int64_t layer = 0; layer < kLayers; ++layer) attend(step, names, counts, layer);
  }

  /// The heads as the cache holds them.
  at::Tensor cached(const at::Tensor& heads) const {
    if (cache_.options().dtype() != at::kChar) return heads;
    const auto [numbers, scales] = quantize_int8(heads);
    return numbers.to(at::kDouble) * scales.to(at::kDouble).unsqueeze(-1);
  }

  void attend(PagedStep& step, const Numbers& names, const Numbers& counts, int64_t layer) {
    auto new_keys = uniform({step.tokens(), G, D}, at::kDouble);
    auto new_values = uniform({step.tokens(), G, Dv}, at::kDouble);
    const auto queries = uniform({step.tokens(), H, D}, at::kDouble);
    step.write(new_keys, new_values, layer);
    new_keys = cached(new_keys);
    new_values = cached(new_values);
    auto call = AttendOptions().causal(true).window(window_);
    const auto output = attend_paged(queries, step, layer, call);
    const auto positions = numbers(step.positions());
    int64_t row = 0;
    for (size_t n = 0; n < names.size(); ++n) {
      auto& plain = plain_[names[n]];
      const auto count = counts[n];
      if (layer == 0) {
        plain.keys = at::cat({plain.keys, at::zeros({kLayers, G, count, D}, at::kDouble)}, 2);
        plain.values = at::cat({plain.values, at::zeros({kLayers, G, count, Dv}, at::kDouble)}, 2);
      }
      plain.appended = count;
      const auto first = plain.length() - count;
      const auto rows = [&](const at::Tensor& tensor) {
        return tensor.narrow(0, row, count).transpose(0, 1);
      };
      plain.keys = plain.keys.clone();  // forks have the same tensor
      plain.values = plain.values.clone();
      plain.keys[layer].narrow(1, first, count).copy_(rows(new_keys));
      plain.values[layer].narrow(1, first, count).copy_(rows(new_values));
      const auto expected = heed::attend(rows(queries).unsqueeze(0), plain.keys[layer].unsqueeze(0),
                                         plain.values[layer].unsqueeze(0), call);
      // Both are sums of the same numbers, perhaps in another order.
      ASSERT_TRUE(is_close(rows(output), expected.squeeze(0), 1e-13))
          << "sequence " << names[n] << ", layer " << layer;
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(positions[row + i], first + i);
      row += count;
    }
  }

  std::mt19937 random_;
  std::optional<int64_t> window_;
  PagedKVCache cache_;
  std::map<int64_t, Plain> plain_;
  int refused_ = 0;
};

/// HEED_WALK_STEPS steps, or few enough for every day.
int64_t walk_steps() {
  const char* given = std::getenv("HEED_WALK_STEPS");
  return given == nullptr ? 1000 : std::atoll(given);
}

TEST(PagedKVCache, EqualsPlainTensorsOnAnyWalk) {
  torch::manual_seed(moved(1));
  constexpr std::pair<int64_t, at::ScalarType> kWalks[] = {
      {0, at::kDouble}, {20, at::kDouble}, {1, at::kDouble}, {20, at::kChar}};
  int refused = 0;
  for (const auto& [window, dtype] : kWalks) {
    SCOPED_TRACE(window);
    Walk walk(7, window > 0 ? std::optional(window) : std::nullopt, dtype);
    for (int64_t i = 0; i < walk_steps() && !::testing::Test::HasFatalFailure(); ++i) {
      walk.take_step();
    }
    refused += walk.refused();
    walk.finish();
  }
  EXPECT_GT(refused, 0);  // in all: with a window of 1, pages rarely run out
}

TEST(PagedKVCache, SharesPagesUntilOneIsWrittenTo) {
  PagedKVCache cache(options(6));
  const auto prompt = cache.add();
  cache.append({prompt}, {40});  // 3 pages, the last of which has 8 keys
  EXPECT_EQ(cache.pages_free(), 3);
  Numbers forks;
  for (int i = 0; i < 1000; ++i) forks.push_back(cache.fork(prompt));
  EXPECT_EQ(cache.pages_free(), 3);
  EXPECT_EQ(cache.pages_needed({forks[0]}, {8}), 1);
  EXPECT_EQ(cache.pages_needed({forks[0]}, {9}), 2);
  cache.append({forks[0], forks[1], forks[2]}, {1, 1, 1});
  EXPECT_EQ(cache.pages_free(), 0);
  for (size_t i = 3; i < forks.size(); ++i) cache.remove(forks[i]);
  cache.append({prompt}, {1});  // it is the last that has the page
  for (const auto name : {forks[0], forks[1], forks[2], prompt}) cache.remove(name);
  EXPECT_EQ(cache.pages_free(), 6);
}

TEST(PagedKVCache, LetsGoOfPagesThatTheWindowDoesNotSee) {
  PagedKVCache cache(options(3).window(16));
  const auto sequence = cache.add();
  for (int i = 0; i < 100; ++i) cache.append({sequence}, {7});
  EXPECT_EQ(cache.length(sequence), 700);
  EXPECT_LE(cache.options().pages() - cache.pages_free(), 3);
  EXPECT_ERROR(
      "PagedKVCache::truncate: length (600) must leave the window (16) its keys; those before 672 "
      "have been evicted",
      cache.truncate(sequence, 600));
  cache.truncate(sequence, 695);
  cache.truncate(sequence, 0);
  EXPECT_EQ(cache.pages_free(), 3);
}

/// The next token sees none of the keys that are gone, and the page that it stands in holds
/// others'.
TEST(PagedKVCache, TruncatesToAnyLengthWithAWindowOfOne) {
  const at::NoGradGuard no_grad;
  PagedKVCache cache(options(4).window(1));
  const auto sequence = cache.add();
  const auto append = [&](int64_t count, double number) {
    auto step = cache.append({sequence}, {count});
    step.write(at::full({count, G, D}, number), at::full({count, G, Dv}, number));
    return attend_paged(at::ones({count, H, D}), step, 0, AttendOptions().window(1));
  };
  append(40, NAN);
  append(1, 1.0);
  EXPECT_EQ(cache.pages_free(), 3);  // the first two went
  cache.truncate(sequence, 20);
  EXPECT_EQ(cache.length(sequence), 20);
  EXPECT_EQ(cache.pages_free(), 4);
  EXPECT_EQ(cache.pages_needed({sequence}, {12}), 1);
  EXPECT_EQ(cache.pages_needed({sequence}, {13}), 2);
  const auto fork = cache.fork(sequence);
  EXPECT_TRUE(is_close(append(3, 2.0), at::full({3, H, Dv}, 2.0), 0.0));
  cache.keep(sequence, {21});
  EXPECT_EQ(cache.length(sequence), 21);
  cache.truncate(sequence, 17);
  EXPECT_TRUE(is_close(append(20, 3.0), at::full({20, H, Dv}, 3.0), 0.0));
  cache.truncate(fork, 5);
  EXPECT_EQ(cache.length(fork), 5);
  cache.remove(fork);
  cache.remove(sequence);
  EXPECT_EQ(cache.pages_free(), 4);
}

TEST(PagedKVCache, KeepsSomeOfTheLastTokens) {
  PagedKVCache cache(options(2));
  const auto sequence = cache.add();
  cache.append({sequence}, {14});
  cache.append({sequence}, {9});
  EXPECT_ERROR(
      "PagedKVCache::keep: positions[1] (13) must be at least 15 and below 23: positions of the "
      "last append, rising",
      cache.keep(sequence, {14, 13}));
  EXPECT_ERROR(
      "PagedKVCache::keep: positions[0] (13) must be at least 14 and below 23: positions of the "
      "last append, rising",
      cache.keep(sequence, {13}));
  EXPECT_ERROR(
      "PagedKVCache::keep: positions[0] (23) must be at least 14 and below 23: positions of the "
      "last append, rising",
      cache.keep(sequence, {23}));
  cache.fork(sequence);
  EXPECT_ERROR("PagedKVCache::keep: free pages (0) must be at least 1, for copies of shared ones",
               cache.keep(sequence, {14, 20}));
  EXPECT_EQ(cache.length(sequence), 23);
  cache.keep(sequence, {});
  EXPECT_EQ(cache.length(sequence), 14);
}

TEST(PagedKVCache, CanBeMoved) {
  PagedKVCache cache(options(3));
  const auto sequence = cache.add();
  auto step = cache.append({sequence}, {2});
  const auto moved = std::move(cache);
  const at::NoGradGuard no_grad;
  step.write(at::zeros({2, G, D}), at::zeros({2, G, Dv}));
  EXPECT_EQ(moved.length(sequence), 2);
}

/// Forks of forks in any order, some with drafts; layers with a window and without one.
TEST(PagedStep, AttendsAsItsTensorsDo) {
  torch::manual_seed(moved(1));
  const at::NoGradGuard no_grad;
  for (const auto dtype : {at::kFloat, at::kChar}) {
    PagedKVCache cache(options(100).layers(kLayers).dtype(dtype));
    const auto write = [&](PagedStep& step) {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        step.write(uniform({step.tokens(), G, D}, at::kFloat),
                   uniform({step.tokens(), G, Dv}, at::kFloat), layer);
      }
    };
    const auto append = [&](const Numbers& names, const Numbers& counts,
                            const Numbers& parents = {}) {
      auto step = cache.append(names, counts, parents);
      write(step);
      return step;
    };
    const auto a = cache.add(), other = cache.add();
    append({a, other}, {272, 20});
    const auto b = cache.fork(a), c = cache.fork(a);
    append({b, c}, {290, 40});
    const auto d = cache.fork(b);
    for (const bool drafts : {false, true}) {
      const auto step = append({d, a, other, b, c}, {2, 1, 0, 1, 4},
                               drafts ? Numbers{-1, -1, -1, -1, -1, 0, 0, 1} : Numbers{});
      const auto query = uniform({step.tokens(), H, D}, at::kFloat);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        auto call = AttendOptions().causal(true);
        if (layer == 1) call.window(30);
        const auto output = attend_paged(query, step, layer, call);
        if (dtype == at::kChar) {
          call.key_scales(step.key_scales(layer)).value_scales(step.value_scales(layer));
        }
        if (drafts) call.parents(step.parents());
        const auto expected =
            attend_paged(query, step.key_pages(layer), step.value_pages(layer), step.page_table(),
                         step.query_offsets(), step.key_lengths(), call);
        EXPECT_TRUE(at::equal(output, expected)) << "layer " << layer;
      }
    }
  }
}

/// Its own parents are checked by append, those of the options here.
TEST(PagedStep, ChecksTheCall) {
  const at::NoGradGuard no_grad;
  PagedKVCache cache(options(4));
  const auto first = cache.add(), second = cache.add();
  auto step = cache.append({first, second}, {1, 3});
  step.write(at::zeros({4, G, D}), at::ones({4, G, Dv}));
  const auto query = at::zeros({4, H, D});
  const auto error = [&](const at::Tensor& rows, const AttendOptions& call = {}) {
    return value_error([&] { attend_paged(rows, step, 0, call); });
  };
  EXPECT_EQ(error(query.narrow(0, 0, 3)),
            "attend_paged: query_offsets[2] (4) must equal the packed length (3)");
  EXPECT_EQ(error(query.to(at::kHalf)),
            "attend_paged: key_pages dtype (Float) must equal query dtype (Half)");
  EXPECT_EQ(error(query, AttendOptions().bias(query)),
            "attend_paged: bias must be absent: sequences differ in shape");
  const auto parents = [](const Numbers& numbers) {
    return AttendOptions().parents(at::tensor(numbers, at::kLong));
  };
  EXPECT_EQ(error(query, parents({-1})),
            "attend_paged: parents [1] must be [4], one for each query");
  EXPECT_EQ(error(query, parents({-1, -1, 0, 2})),
            "attend_paged: parents[3] (2) must be at least -1 and below 2: a token that stands "
            "before it in its sequence");
  EXPECT_TRUE(
      is_close(attend_paged(query, step, 0, parents({-1, -1, 0, 0})), at::ones({4, H, Dv}), 1e-6));
}

}  // namespace
}  // namespace heed::test::of_paged_kv_cache
