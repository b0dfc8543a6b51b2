// SPDX-License-Identifier: BSD-3-Clause
// A KVCache through random steps, beside lists of the tokens that each sequence was given.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <heed/kv_cache.h>

#include <algorithm>
#include <utility>

#include "attend_verdict.h"
#include "support/expect.h"
#include "support/failing_memory.h"
#include "support/inputs.h"

namespace heed::fuzz {

namespace {

/// One sequence as it should be: every token's key [G, D] and value [G, Dv], the first `dropped` of
/// which have been evicted.
struct Sequence {
  std::vector<std::pair<at::Tensor, at::Tensor>> tokens;
  int64_t dropped = 0;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t stored() const { return length() - dropped; }
};

class CacheSteps {
 public:
  CacheSteps(const Case& c, KVCache cache)
      : c_(c),
        cache_(std::move(cache)),
        sequences_(static_cast<size_t>(cache_.options().batch())) {}

  void step() {
    switch (draw_below(10)) {
      case 0:
        return truncate(draw_below(2) == 0 ? 0 : draw_below(12) - 1);
      case 1:
        return reorder();
      case 2:
        return grow(cache_.options().capacity() + draw_below(4) - 1);
      case 3:
        cache_.reset();
        for (auto& sequence : sequences_) sequence = Sequence();
        return;
      case 4:
        cache_ = cache_.clone();
        return;
      case 5:
        return append_own();
      case 6:
        return truncate_one(static_cast<size_t>(draw_below(cache_.options().batch())),
                            draw_below(2) == 0 ? 0 : draw_below(12) - 1);
      default:
        return append_new();
    }
  }

  void check() const {
    std::vector<int64_t> lengths;
    int64_t stored = 0;
    for (const auto& sequence : sequences_) {
      lengths.push_back(sequence.length());
      stored = std::max(stored, sequence.stored());
    }
    if (cache_.options().fixed_shapes()) stored = cache_.options().capacity();
    expect(cache_.lengths() == lengths, "lengths");
    const auto keys = cache_.keys(), values = cache_.values();
    expect(keys.size(2) == stored && values.size(2) == stored, "another number of keys is stored");
    expect(test::is_finite(keys), "keys");
    expect(test::is_finite(values), "values");
    for (size_t b = 0; b < sequences_.size(); ++b) {
      const auto& [tokens, dropped] = sequences_[b];
      for (int64_t j = 0; j < sequences_[b].stored(); ++j) {
        const auto& [key, value] = tokens[static_cast<size_t>(dropped + j)];
        const auto row = static_cast<int64_t>(b);
        expect(keys[row].select(1, j).equal(key), "a key is not the one that was appended");
        expect(values[row].select(1, j).equal(value), "a value is not the one that was appended");
      }
    }
  }

 private:
  /// Keys that the next query may see.
  int64_t needed(const Sequence& sequence) const {
    const auto window = cache_.options().window();
    return window ? std::min(sequence.stored(), *window - 1) : sequence.stored();
  }

  /// Now and then once without enough memory, which changes nothing but that keys go that no query
  /// sees.
  template <typename Call>
  void change(const Call& call) {
    if (draw_below(4) == 0) {
      if (!test::runs_out_of_memory(draw_below(60), call)) return;
      const auto stored = cache_.key_lengths();
      for (size_t b = 0; b < sequences_.size(); ++b) {
        auto& sequence = sequences_[b];
        const auto left = stored[static_cast<int64_t>(b)].template item<int64_t>();
        expect(left >= needed(sequence) && left <= sequence.stored(), "evicted without memory");
        sequence.dropped = sequence.length() - left;
      }
      check();
    }
    call();
  }

  void append_new() {
    const auto& options = cache_.options();
    const auto n = draw_below(5);
    const auto value_dim = options.value_head_dim().value_or(options.head_dim());
    append(
        test::uniform({options.batch(), options.groups(), n, options.head_dim()}, options.dtype()),
        test::uniform({options.batch(), options.groups(), n, value_dim}, options.dtype()));
  }

  /// Appends once more what the cache holds: views of the memory that is written to.
  void append_own() {
    const auto keys = cache_.keys(), values = cache_.values();
    const auto first = draw_below(keys.size(2) + 1), n = draw_below(keys.size(2) - first + 1);
    append(keys.narrow(2, first, n), values.narrow(2, first, n), /*own=*/true);
  }

  void append(const at::Tensor& key, const at::Tensor& value, bool own = false) {
    const auto n = key.size(2);
    const auto given_key = key.clone(), given_value = value.clone();
    std::vector<int64_t> counts;
    for (size_t b = 0; c_.ragged != 0 && b < sequences_.size(); ++b)
      counts.push_back(draw_below(n + 1));
    const auto count = [&](size_t b) { return counts.empty() ? n : counts[b]; };
    bool fits = true;
    for (size_t b = 0; b < sequences_.size(); ++b) {
      fits = fits && needed(sequences_[b]) + count(b) <= cache_.options().capacity();
    }
    const auto done = outcome(fits, {"KVCache::append"}, [&] {
      const auto call = [&] { cache_.append(key, value, counts); };
      own ? call() : change(call);  // what is evicted moves the cache's own
      return true;
    });
    for (size_t b = 0; done && b < sequences_.size(); ++b) {
      auto& sequence = sequences_[b];
      if (sequence.stored() + count(b) > cache_.options().capacity()) {
        sequence.dropped = sequence.length() - needed(sequence);
      }
      for (int64_t j = 0; j < count(b); ++j) {
        const auto row = static_cast<int64_t>(b);
        sequence.tokens.emplace_back(given_key[row].select(1, j), given_value[row].select(1, j));
      }
    }
  }

  void truncate(int64_t length) {
    const bool possible = std::all_of(sequences_.begin(), sequences_.end(),
                                      [&](const auto& each) { return can_truncate(each, length); });
    const auto done = outcome(possible, {"KVCache::truncate"}, [&] {
      change([&] { cache_.truncate(length); });
      return true;
    });
    for (auto& sequence : sequences_) {
      if (done) cut(sequence, length);
    }
  }

  void truncate_one(size_t b, int64_t length) {
    const auto done = outcome(can_truncate(sequences_[b], length), {"KVCache::truncate"}, [&] {
      change([&] { cache_.truncate(static_cast<int64_t>(b), length); });
      return true;
    });
    if (done) cut(sequences_[b], length);
  }

  /// The next query's window, but for itself, must be there.
  bool can_truncate(const Sequence& sequence, int64_t length) const {
    if (length >= sequence.length()) return true;
    const auto window = cache_.options().window();
    const auto oldest = window ? std::max<int64_t>(length - *window + 1, 0) : 0;
    return length >= 0 && (oldest >= sequence.dropped || oldest == length);
  }

  static void cut(Sequence& sequence, int64_t length) {
    if (length >= sequence.length()) return;
    sequence.tokens.resize(static_cast<size_t>(length));
    sequence.dropped = std::min(sequence.dropped, length);
  }

  void reorder() {
    const auto batch = cache_.options().batch();
    std::vector<int64_t> from;
    bool possible = true;
    for (int64_t b = 0; b < batch; ++b) {
      from.push_back(draw_below(20) == 0 ? batch : draw_below(batch));
      possible = possible && from.back() < batch;
    }
    const auto done = outcome(possible, {"KVCache::reorder"}, [&] {
      const auto indices = at::tensor(from, at::kLong);
      change([&] { cache_.reorder(indices); });
      return true;
    });
    const auto before = sequences_;
    for (size_t b = 0; done && b < from.size(); ++b) {
      sequences_[b] = before[static_cast<size_t>(from[b])];
    }
  }

  void grow(int64_t capacity) {
    outcome(capacity >= cache_.options().capacity(), {"KVCache::grow"}, [&] {
      change([&] { cache_.grow(capacity); });
      return true;
    });
  }

  const Case& c_;
  KVCache cache_;
  std::vector<Sequence> sequences_;
};

}  // namespace

void check_kv_cache(const Case& c) {
  const auto window = c.cache_window != 0 ? std::optional(1 + c.S % 4) : std::nullopt;
  KVCacheOptions options(1 + c.B % 3, 1 + c.G % 2, std::max(c.capacity, window.value_or(1)),
                         1 + c.D % 3);
  options.fixed_shapes(!window && c.S % 2 == 1);
  options.window(window).value_head_dim(c.Dv % 4).dtype(dtype_of(c.dtype % 4));
  const auto inside = [&] { return c10::InferenceMode(c.inference != 0 && draw_below(2) == 0); };
  const at::NoGradGuard no_grad;
  auto steps = [&] {
    const auto mode = inside();
    return CacheSteps(c, KVCache(options));
  }();
  for (int64_t i = 0; i < c.steps; ++i) {
    const auto mode = inside();
    outcome(true, {}, [&] {
      steps.step();
      return true;
    });
    steps.check();
  }
}

}  // namespace heed::fuzz
