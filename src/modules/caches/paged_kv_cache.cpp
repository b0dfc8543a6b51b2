// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorIndexing.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <heed/paged_kv_cache.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/ceil_div.h"
#include "core/check_memory.h"
#include "core/checks.h"
#include "core/draft_tree.h"
#include "core/problem.h"
#include "modules/caches/caches.h"
#include "modules/caches/paged_state.h"
#include "modules/caches/write_rows.h"
#include "modules/count.h"

namespace heed {

namespace {

constexpr auto kCache = "PagedKVCache";
constexpr auto kKeep = "PagedKVCache::keep";
constexpr auto kPagedAppend = "PagedKVCache::append";

void check_options(const PagedKVCacheOptions& options) {
  detail::check_positive(kCache, "pages", options.pages());
  detail::check_positive(kCache, "groups", options.groups());
  detail::check_positive(kCache, "head_dim", options.head_dim());
  detail::check_positive(kCache, "layers", options.layers());
  detail::check_positive(kCache, "page_size", options.page_size());
  HEED_CHECK(options.page_size() % detail::kPageMultiple == 0,
             "{}: page_size ({}) must be a multiple of {}", kCache, options.page_size(),
             detail::kPageMultiple);
  detail::check_not_negative(kCache, "value_head_dim", options.value_head_dim().value_or(0));
  if (options.window()) detail::check_positive(kCache, "window", *options.window());
  detail::check_cache_dtype(kCache, options.dtype());
}

/// Allocates a cache's pools of zeros. They are not inference tensors, which could be changed only
/// under InferenceMode.
std::vector<at::Tensor> allocate(const PagedKVCacheOptions& options) {
  const c10::InferenceMode off(false);
  const auto zeros = [&](int64_t columns, at::ScalarType dtype) {
    const int64_t sizes[] = {options.layers(), options.pages(), options.groups(),
                             options.page_size(), columns};
    detail::check_memory(kCache, "memory", sizes, dtype);
    return at::zeros(sizes, at::device(options.device()).dtype(dtype));
  };
  return detail::allocate_stored(options, zeros);
}

/// Checks the parents of all tokens; sequence n has counts[n] of them.
void check_trees(at::IntArrayRef counts, at::IntArrayRef parents) {
  const auto tokens = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  HEED_CHECK(static_cast<int64_t>(parents.size()) == tokens,
             "{}: parents size ({}) must equal the sum of counts ({})", kPagedAppend,
             parents.size(), tokens);
  detail::check_trees(kPagedAppend, counts, parents);
}

/// Checks the positions of the tokens to keep: they must rise, and lie in [first, end), the
/// positions of the last append.
void check_kept(at::IntArrayRef positions, int64_t first, int64_t end) {
  auto least = first;
  for (size_t i = 0; i < positions.size(); ++i) {
    HEED_CHECK(positions[i] >= least && positions[i] < end,
               "{}: positions[{}] ({}) must be at least {} and below {}: positions of the last "
               "append, rising",
               kKeep, i, positions[i], least, end);
    least = positions[i] + 1;
  }
}

}  // namespace

PagedKVCache::State::State(const PagedKVCacheOptions& given)
    : options(given),
      pools(allocate(given)),
      layers(static_cast<size_t>(given.layers())),
      uses(static_cast<size_t>(given.pages()), 0) {
  for (auto page = given.pages(); page-- > 0;) free.push_back(page);
  const c10::InferenceMode off(false);
  for (size_t n = 0; n < layers.size(); ++n) {
    auto& layer = layers[n];
    layer.pools.reserve(pools.size());
    for (const auto& pool : pools) layer.pools.push_back(pool[static_cast<int64_t>(n)]);
    if (!detail::is_quantized(options.dtype())) continue;
    const bool has_values = options.value_head_dim() != 0;  // 0: values are a part of the keys
    layer.key_scales = layer.pools[2].squeeze(3);
    layer.value_scales = layer.pools[has_values ? 3 : 2].squeeze(3);
  }
}

auto PagedKVCache::State::plan(const char* function, at::IntArrayRef names,
                               at::IntArrayRef counts) const -> Plan {
  HEED_CHECK(names.size() == counts.size(), "{}: counts size ({}) must equal sequences size ({})",
             function, counts.size(), names.size());
  std::unordered_set<int64_t> seen;
  for (size_t n = 0; n < names.size(); ++n) {
    sequence(function, names[n]);
    HEED_CHECK(seen.insert(names[n]).second, "{}: sequence ({}) must be named once", function,
               names[n]);
    HEED_CHECK(counts[n] >= 0, "{}: counts[{}] ({}) must be at least 0", function, n, counts[n]);
  }
  const auto size = options.page_size();
  Plan plan;
  plan.extensions.resize(names.size());
  std::unordered_map<int64_t, int64_t> given_up;  // how many uses of each page are given up
  const auto give_up = [&](int64_t page) {
    plan.given_up.push_back(page);
    if (uses[static_cast<size_t>(page)] == ++given_up[page]) plan.freed.push_back(page);
  };
  for (size_t n = 0; n < names.size(); ++n) {
    const auto& own = sequence(function, names[n]);
    if (counts[n] == 0) continue;
    const auto first_seen = detail::oldest_seen(options.window(), own.length) / size;
    auto& evicted = plan.extensions[n].evicted;
    evicted = std::max<int64_t>(first_seen - own.evicted, 0);
    for (int64_t i = 0; i < evicted; ++i) give_up(own.pages[static_cast<size_t>(i)]);
  }
  detail::Count needed = -static_cast<int64_t>(plan.freed.size());
  for (size_t n = 0; n < names.size(); ++n) {
    const auto& own = sequence(function, names[n]);
    if (counts[n] == 0) continue;
    auto& extension = plan.extensions[n];
    const auto held = own.evicted + static_cast<int64_t>(own.pages.size());
    if (own.length < held * size) {
      const auto last = own.pages.back();
      extension.copies_last = uses[static_cast<size_t>(last)] - given_up[last] > 1;
      if (extension.copies_last) give_up(last);
    }
    extension.fresh =
        detail::ceil_div((detail::Count(own.length) + counts[n]).value(), size) - held;
    needed = needed + extension.fresh + (extension.copies_last ? 1 : 0);
  }
  plan.needed = needed.value();
  return plan;
}

auto PagedKVCache::State::grow(const Plan& plan, at::IntArrayRef names,
                               at::IntArrayRef counts) const -> Growth {
  Growth growth{names.vec(), {}, plan.given_up, {}, plan.freed, 0, {}};
  growth.sequences.reserve(names.size());
  const auto take = [&] {
    if (growth.freed.empty()) {
      growth.taken.push_back(free[free.size() - ++growth.from_free]);
    } else {
      growth.taken.push_back(growth.freed.back());
      growth.freed.pop_back();
    }
    return growth.taken.back();
  };
  for (size_t n = 0; n < names.size(); ++n) {
    const auto [evicted, copies_last, fresh] = plan.extensions[n];
    auto& own = growth.sequences.emplace_back(sequence(kPagedAppend, names[n]));
    own.pages.erase(own.pages.begin(), own.pages.begin() + evicted);
    own.evicted += evicted;
    if (copies_last) {
      const auto shared = own.pages.back();
      own.pages.back() = take();
      copy_page(growth.copies, own.pages.back(), shared);
    }
    for (int64_t i = 0; i < fresh; ++i) own.pages.push_back(take());
    own.length += counts[n];
    own.appended = counts[n];
  }
  return growth;
}

void PagedKVCache::State::commit(Growth growth) noexcept {
  for (const auto page : growth.given_up) --uses[static_cast<size_t>(page)];
  for (const auto page : growth.taken) uses[static_cast<size_t>(page)] = 1;
  free.resize(free.size() - growth.from_free);
  free.insert(free.end(), growth.freed.begin(), growth.freed.end());
  for (size_t n = 0; n < growth.names.size(); ++n) {
    sequences.find(growth.names[n])->second = std::move(growth.sequences[n]);
  }
  ++change;
}

PagedKVCache::PagedKVCache(const PagedKVCacheOptions& options) {
  check_options(options);
  state_ = std::make_shared<State>(options);
}

int64_t PagedKVCache::add() {
  state_->sequences[state_->next_name];
  return state_->next_name++;
}

int64_t PagedKVCache::fork(int64_t sequence) {
  auto copy = state_->sequence("PagedKVCache::fork", sequence);
  const auto& added = state_->sequences.emplace(state_->next_name, std::move(copy)).first->second;
  for (const auto page : added.pages) ++state_->uses[static_cast<size_t>(page)];
  ++state_->change;
  return state_->next_name++;
}

void PagedKVCache::remove(int64_t sequence) {
  for (const auto page : state_->sequence("PagedKVCache::remove", sequence).pages) {
    state_->release(page);
  }
  state_->sequences.erase(sequence);
  ++state_->change;
}

void PagedKVCache::truncate(int64_t sequence, int64_t length) {
  constexpr auto kName = "PagedKVCache::truncate";
  auto& own = state_->sequence(kName, sequence);
  detail::check_not_negative(kName, "length", length);
  if (length >= own.length) return;
  const auto size = state_->options.page_size();
  detail::check_keys_left(kName, state_->options.window(), length, own.evicted * size);
  const bool sees_none = length < own.evicted * size;  // the check allows it if no key is seen
  if (sees_none) own.evicted = length / size;
  const auto kept = sees_none ? 0 : detail::ceil_div(length, size) - own.evicted;
  while (static_cast<int64_t>(own.pages.size()) > kept) {
    state_->release(own.pages.back());
    own.pages.pop_back();
  }
  own.appended = std::max<int64_t>(own.appended - (own.length - length), 0);
  own.length = length;
  ++state_->change;
}

void PagedKVCache::keep(int64_t sequence, at::IntArrayRef positions) {
  auto& own = state_->sequence(kKeep, sequence);
  const auto first = own.length - own.appended, count = static_cast<int64_t>(positions.size());
  check_kept(positions, first, own.length);
  const auto size = state_->options.page_size();
  std::vector<size_t> shared;  // indices of its pages that are shared and written to
  for (auto n = first / size; count > 0 && n * size < first + count; ++n) {
    const auto index = static_cast<size_t>(n - own.evicted);
    if (state_->uses[static_cast<size_t>(own.pages[index])] > 1) shared.push_back(index);
  }
  HEED_CHECK(static_cast<int64_t>(shared.size()) <= pages_free(),
             "{}: free pages ({}) must be at least {}, for copies of shared ones", kKeep,
             pages_free(), shared.size());
  // Everything that may throw comes before the first copy.
  const at::NoGradGuard no_grad;
  auto next = own;
  State::Copies copies;
  for (size_t i = 0; i < shared.size(); ++i) {
    auto& page = next.pages[shared[i]];
    const auto fresh = state_->free[state_->free.size() - 1 - i];
    state_->copy_page(copies, fresh, page);
    page = fresh;
  }
  State::Places old_places, places;
  for (int64_t layer = 0; layer < state_->options.layers(); ++layer) {
    for (int64_t i = 0; i < count; ++i) {
      state_->add_place(old_places, own, positions[static_cast<size_t>(i)], layer);
      state_->add_place(places, next, first + i, layer);
    }
  }
  const auto [old_pages, old_slots] = state_->on_device(old_places);
  const auto [pages, slots] = state_->on_device(places);
  State::Copies rows;  // (pool, rows to be written to it)
  for (const auto& pool : state_->pools) {
    const auto whole = pool.flatten(0, 1);  // [layers * P, G, page, ..]
    rows.emplace_back(whole, whole.transpose(1, 2).index({old_pages, old_slots}));
  }
  for (const auto& [to, from] : copies) to.copy_(from);
  for (const auto& [to, kept] : rows) detail::write_rows(to, pages, slots, kept);
  for (const auto index : shared) {
    state_->take();
    state_->release(own.pages[index]);
  }
  own = std::move(next);
  truncate(sequence, first + count);
  ++state_->change;
}

int64_t PagedKVCache::pages_needed(at::IntArrayRef sequences, at::IntArrayRef counts) const {
  return state_->plan("PagedKVCache::pages_needed", sequences, counts).needed;
}

PagedStep PagedKVCache::append(at::IntArrayRef sequences, at::IntArrayRef counts,
                               at::IntArrayRef parents) {
  const auto plan = state_->plan(kPagedAppend, sequences, counts);
  HEED_CHECK(plan.needed <= pages_free(),
             "{}: free pages ({}) must be at least {} for these tokens: remove or truncate "
             "sequences, or append to fewer",
             kPagedAppend, pages_free(), plan.needed);
  if (!parents.empty()) check_trees(counts, parents);
  const at::NoGradGuard no_grad;
  auto growth = state_->grow(plan, sequences, counts);
  PagedStep step(state_, growth, parents);
  for (const auto& [to, from] : growth.copies) to.copy_(from);
  state_->commit(std::move(growth));
  return step;
}

int64_t PagedKVCache::pages_free() const { return static_cast<int64_t>(state_->free.size()); }

int64_t PagedKVCache::length(int64_t sequence) const {
  return std::as_const(*state_).sequence("PagedKVCache::length", sequence).length;
}

const PagedKVCacheOptions& PagedKVCache::options() const { return state_->options; }

}  // namespace heed
