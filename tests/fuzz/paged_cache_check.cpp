// SPDX-License-Identifier: BSD-3-Clause
// A PagedKVCache through random steps, beside lists of the tokens and of the pages that each
// sequence has.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <c10/core/InferenceMode.h>
#include <heed/attend_paged.h>
#include <heed/paged_kv_cache.h>
#include <heed/quantize.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "attend_verdict.h"
#include "support/expect.h"
#include "support/failing_memory.h"
#include "support/inputs.h"

namespace heed::fuzz {

namespace {

/// A key [G, D] and a value [G, Dv] for each layer.
using PagedToken = std::vector<std::pair<at::Tensor, at::Tensor>>;

/// One sequence as it should be. Its pages have numbers that nothing else has.
struct PagedSequence {
  std::vector<PagedToken> tokens;
  Integers pages;
  int64_t evicted = 0;   // pages before these
  int64_t appended = 0;  // tokens, by the last append

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
};

using PagedSequences = std::map<int64_t, PagedSequence>;

class PagedCacheSteps {
 public:
  PagedCacheSteps(const Case& c, PagedKVCache cache) : c_(c), cache_(std::move(cache)) {}

  void step() {
    using Steps = PagedCacheSteps;
    constexpr void (Steps::*kSteps[])() = {&Steps::add,    &Steps::fork, &Steps::truncate,
                                           &Steps::remove, &Steps::keep, &Steps::append};
    (this->*kSteps[std::min<int64_t>(draw_below(9), 5)])();
  }

  void check() const {
    for (const auto& [name, own] : sequences_) {
      expect(cache_.length(name) == own.length(), "length");
    }
    expect(cache_.pages_free() == free_beside(sequences_), "pages_free");
  }

 private:
  const PagedKVCacheOptions& options() const { return cache_.options(); }
  int64_t pages_for(int64_t keys) const {
    return (keys + options().page_size() - 1) / options().page_size();
  }
  int64_t uses(const PagedSequences& sequences, int64_t page) const {
    return std::count_if(sequences.begin(), sequences.end(), [page](const auto& named) {
      const auto& pages = named.second.pages;
      return std::find(pages.begin(), pages.end(), page) != pages.end();
    });
  }
  int64_t free_beside(const PagedSequences& sequences) const {
    std::set<int64_t> used;
    for (const auto& named : sequences)
      used.insert(named.second.pages.begin(), named.second.pages.end());
    return options().pages() - static_cast<int64_t>(used.size());
  }
  /// The name of a sequence, or now and then one that no sequence has.
  int64_t any() const {
    if (sequences_.empty() || draw_below(30) == 0) return 1000;
    return std::next(sequences_.begin(), draw_below(static_cast<int64_t>(sequences_.size())))
        ->first;
  }

  /// Now and then once without enough memory, which changes nothing.
  template <typename Call>
  auto change(const Call& call) {
    std::optional<decltype(call())> result;
    if (draw_below(4) == 0) {
      if (!test::runs_out_of_memory(draw_below(60), [&] { result.emplace(call()); })) {
        return *std::move(result);
      }
      check();
    }
    return call();
  }

  void add() {
    if (sequences_.size() < 6) sequences_[cache_.add()];
  }

  void fork() {
    const auto from = any();
    const auto name = outcome(sequences_.count(from) > 0, {"PagedKVCache::fork"},
                              [&] { return change([&] { return cache_.fork(from); }); });
    if (name) sequences_[*name] = sequences_.at(from);
  }

  void remove() {
    const auto name = any();
    const auto done = outcome(sequences_.count(name) > 0, {"PagedKVCache::remove"}, [&] {
      cache_.remove(name);
      return true;
    });
    if (done) sequences_.erase(name);
  }

  /// Every key that the window of the next token sees, but for its own, must be there.
  void truncate() {
    const auto name = any(), length = draw_below(60) - 1;
    const auto found = sequences_.find(name);
    const auto window = options().window();
    const auto can = [&](const PagedSequence& own) {
      const auto oldest = window ? std::max<int64_t>(length - *window + 1, 0) : 0;
      return length >= own.length() ||
             (length >= 0 && (oldest == length || oldest >= own.evicted * options().page_size()));
    };
    const auto done =
        outcome(found != sequences_.end() && can(found->second), {"PagedKVCache::truncate"}, [&] {
          return change([&] {
            cache_.truncate(name, length);
            return true;
          });
        });
    if (done) cut(found->second, length);
  }

  void cut(PagedSequence& own, int64_t length) const {
    if (length >= own.length()) return;
    own.appended = std::max<int64_t>(own.appended - (own.length() - length), 0);
    own.tokens.resize(static_cast<size_t>(length));
    const bool held = length >= own.evicted * options().page_size();
    if (!held) own.evicted = length / options().page_size();
    // There are none between a length that saw none and the next append.
    const auto kept = held ? static_cast<size_t>(pages_for(length) - own.evicted) : 0;
    own.pages.resize(std::min(own.pages.size(), kept));
  }

  /// Some of the last tokens, in the place of which pages are written to.
  void keep() {
    const auto found = sequences_.find(any());
    if (found == sequences_.end()) return;
    auto& own = found->second;
    const auto first = own.length() - own.appended;
    Integers positions;
    for (auto position = first; position < own.length(); ++position) {
      if (draw_below(2) == 0) positions.push_back(position);
    }
    const bool wrong = draw_below(20) == 0;
    if (wrong) positions.push_back(draw_below(2) == 0 ? own.length() : first - 1);
    const auto count = static_cast<int64_t>(positions.size());
    std::vector<size_t> copied;
    for (auto n = first / options().page_size(); count > 0 && n < pages_for(first + count); ++n) {
      const auto index = static_cast<size_t>(n - own.evicted);
      if (!wrong && uses(sequences_, own.pages[index]) > 1) copied.push_back(index);
    }
    const bool fits = static_cast<int64_t>(copied.size()) <= cache_.pages_free();
    const auto done = outcome(!wrong && fits, {"PagedKVCache::keep"}, [&] {
      return change([&] {
        cache_.keep(found->first, positions);
        return true;
      });
    });
    if (!done) return;
    for (const auto index : copied) own.pages[index] = next_page_++;
    for (size_t i = 0; i < positions.size(); ++i) {
      own.tokens[static_cast<size_t>(first) + i] = own.tokens[static_cast<size_t>(positions[i])];
    }
    cut(own, first + count);
  }

  /// The sequences with the pages that they will have.
  PagedSequences grown(const Integers& names, const Integers& counts) {
    auto sequences = sequences_;
    const auto size = options().page_size();
    for (size_t n = 0; n < names.size() && options().window(); ++n) {
      auto& own = sequences.at(names[n]);
      const auto oldest = std::max<int64_t>(own.length() - *options().window() + 1, 0);
      const auto unseen = std::max<int64_t>(oldest / size - own.evicted, 0);
      if (counts[n] == 0) continue;
      own.pages.erase(own.pages.begin(), own.pages.begin() + unseen);
      own.evicted += unseen;
    }
    for (size_t n = 0; n < names.size(); ++n) {
      auto& own = sequences.at(names[n]);
      const auto held = own.evicted + static_cast<int64_t>(own.pages.size());
      if (counts[n] > 0 && own.length() < held * size && uses(sequences, own.pages.back()) > 1) {
        own.pages.back() = next_page_++;
      }
      const auto pages = pages_for(own.length() + counts[n]) - own.evicted;
      while (static_cast<int64_t>(own.pages.size()) < pages) own.pages.push_back(next_page_++);
      own.appended = counts[n];
    }
    return sequences;
  }

  void append() {
    Integers names, counts, parents;
    for (const auto& named : sequences_) {
      if (draw_below(2) == 0) continue;
      names.push_back(named.first);
      counts.push_back(draw_below(2) == 0 ? 1 : draw_below(named.second.length() > 60 ? 2 : 40));
      for (int64_t i = 0; c_.draft != 0 && i < counts.back(); ++i) {
        parents.push_back(c_.draft == 1 ? i - 1 : draw_below(i + 1) - 1);
      }
    }
    const bool twice = !names.empty() && draw_below(30) == 0;
    if (twice) names.push_back(names.front()), counts.push_back(0);
    auto after = twice ? sequences_ : grown(names, counts);
    const auto left = free_beside(after);
    auto step = outcome(!twice && left >= 0, {"PagedKVCache::append"}, [&] {
      return change([&] { return cache_.append(names, counts, parents); });
    });
    if (!step) return;
    sequences_ = std::move(after);
    write(*step, names, counts);
    for (int64_t layer = 0; layer < options().layers(); ++layer) {
      attend(*step, names, counts, parents, layer);
    }
  }

  void write(PagedStep& step, const Integers& names, const Integers& counts) {
    const auto dtype = options().dtype() == at::kChar ? at::kFloat : options().dtype();
    const auto value_dim = options().value_head_dim().value_or(options().head_dim());
    const auto stored = [&](const at::Tensor& heads) {
      if (options().dtype() != at::kChar) return heads.to(at::kDouble);
      const auto [numbers, scales] = quantize_int8(heads);
      return numbers.to(at::kDouble) * scales.to(at::kDouble).unsqueeze(-1);
    };
    std::vector<at::Tensor> keys, values;
    for (int64_t layer = 0; layer < options().layers(); ++layer) {
      const auto tokens = step.tokens(), groups = options().groups();
      const auto key = test::uniform({tokens, groups, options().head_dim()}, dtype);
      const auto value = test::uniform({tokens, groups, value_dim}, dtype);
      step.write(key, value, layer);
      keys.push_back(stored(key));
      values.push_back(stored(value));
    }
    int64_t row = 0;
    for (size_t n = 0; n < names.size(); ++n) {
      for (int64_t i = 0; i < counts[n]; ++i, ++row) {
        PagedToken token;
        for (size_t layer = 0; layer < keys.size(); ++layer) {
          token.emplace_back(keys[layer][row], values[layer][row]);
        }
        sequences_.at(names[n]).tokens.push_back(token);
      }
    }
  }

  void attend(PagedStep& step, const Integers& names, const Integers& counts,
              const Integers& parents, int64_t layer) {
    if (options().value_head_dim() == 0) return;
    const auto dtype = options().dtype() == at::kChar ? at::kFloat : options().dtype();
    const auto query = test::uniform({step.tokens(), c_.H, options().head_dim()}, dtype);
    const auto call = AttendOptions().window(options().window());
    const auto output = attend_paged(query, step, layer, call);
    auto left = parents;
    int64_t row = 0;
    for (size_t n = 0; n < names.size(); ++n) {
      const auto& own = sequences_.at(names[n]);
      const Integers tree(left.begin(), left.begin() + (parents.empty() ? 0 : counts[n]));
      left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(tree.size()));
      for (int64_t i = 0; i < counts[n]; ++i, ++row) {
        const auto expected = attended(own, query[row], tree, own.length() - counts[n], i, layer);
        expect(test::is_close(output[row], expected, tolerance(dtype, 4.0)),
               "output of sequence " + std::to_string(names[n]));
      }
    }
  }

  /// [H, Dv]: what token i after `before` others gets, if drafts follow `tree`.
  at::Tensor attended(const PagedSequence& own, const at::Tensor& query, const Integers& tree,
                      int64_t before, int64_t i, int64_t layer) const {
    Integers path;  // of the tokens that it sees, from the newest on
    for (auto j = i; j >= 0; j = tree.empty() ? j - 1 : tree[static_cast<size_t>(j)]) {
      path.push_back(before + j);
    }
    for (auto key = before - 1; key >= 0; --key) path.push_back(key);
    if (const auto window = options().window();
        window && path.size() > static_cast<size_t>(*window)) {
      path.resize(static_cast<size_t>(*window));
    }
    std::vector<at::Tensor> keys, values;
    for (const auto position : path) {
      const auto& [key, value] =
          own.tokens[static_cast<size_t>(position)][static_cast<size_t>(layer)];
      keys.push_back(key);
      values.push_back(value);
    }
    test::ReferenceInput input;
    input.query = query.unsqueeze(0).unsqueeze(2);
    input.key = at::stack(keys, 1).unsqueeze(0);
    input.value = at::stack(values, 1).unsqueeze(0);
    return test::reference_attention(input).output.squeeze(0).squeeze(1);
  }

  const Case& c_;
  PagedKVCache cache_;
  PagedSequences sequences_;
  int64_t next_page_ = 0;
};

}  // namespace

void check_paged_cache(const Case& given) {
  auto c = given;
  c.H = (1 + c.H % 2) * (1 + c.G % 2);
  PagedKVCacheOptions options(1 + c.capacity % 12, 1 + c.G % 2, 1 + c.D % 3);
  options.value_head_dim(c.Dv % 4).layers(1 + c.S % 2).page_size(16 * (1 + c.page % 2));
  options.dtype(c.int8 != 0 ? at::kChar : dtype_of(c.dtype % 4));
  if (c.cache_window != 0) options.window(1 + c.S % 40);
  const auto inside = [&] { return c10::InferenceMode(c.inference != 0 && draw_below(2) == 0); };
  const at::NoGradGuard no_grad;
  auto steps = [&] {
    const auto mode = inside();
    return PagedCacheSteps(c, PagedKVCache(options));
  }();
  for (int64_t i = 0; i < 3 * c.steps; ++i) {
    const auto mode = inside();
    outcome(true, {}, [&] {
      steps.step();
      return true;
    });
    steps.check();
  }
}

}  // namespace heed::fuzz
