#include <ATen/TensorIndexing.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <heed/attend_paged.h>
#include <heed/paged_kv_cache.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "attend/attend_paged.h"
#include "core/check_memory.h"
#include "core/checks.h"
#include "core/draft_tree.h"
#include "core/problem.h"
#include "core/to_device.h"
#include "modules/caches/caches.h"
#include "modules/caches/page_rows.h"
#include "modules/caches/step_angles.h"
#include "modules/count.h"

namespace heed {

namespace {

constexpr auto kCache = "PagedKVCache";
constexpr auto kKeep = "PagedKVCache::keep";
constexpr auto kPagedAppend = "PagedKVCache::append";
constexpr auto kWrite = "PagedStep::write";

void check_options(const PagedKVCacheOptions& options) {
  detail::check_positive(kCache, "pages", options.pages());
  detail::check_positive(kCache, "groups", options.groups());
  detail::check_positive(kCache, "head_dim", options.head_dim());
  detail::check_positive(kCache, "layers", options.layers());
  detail::check_positive(kCache, "page_size", options.page_size());
  HEED_CHECK(options.page_size() % detail::kPageMultiple == 0,
             "{}: page_size ({}) must be a multiple of {}", kCache, options.page_size(),
             detail::kPageMultiple);
  if (const auto head_dim = options.value_head_dim()) {
    detail::check_not_negative(kCache, "value_head_dim", *head_dim);
  }
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
  int64_t first = 0;
  for (const auto count : counts) {
    detail::check_parents(kPagedAppend, "parents", first, parents.slice(first, count));
    first += count;
  }
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

/// ceil_div for any length that a user may ask for: the sum in ceil_div would overflow.
int64_t pages_of(int64_t length, int64_t page_size) {
  return length / page_size + (length % page_size == 0 ? 0 : 1);
}

/// Copies that are still to be made: (destination, source).
using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

}  // namespace

struct PagedKVCache::State {
  /// A layer's views of the pools.
  struct Layer {
    std::vector<at::Tensor> pools;        // [P, G, page, ..]
    at::Tensor key_scales, value_scales;  // [P, G, page], or undefined
  };
  static std::vector<Layer> layers_of(const PagedKVCacheOptions& options,
                                      const std::vector<at::Tensor>& pools) {
    const c10::InferenceMode off(false);
    std::vector<Layer> layers(static_cast<size_t>(options.layers()));
    for (size_t n = 0; n < layers.size(); ++n) {
      auto& layer = layers[n];
      layer.pools.reserve(pools.size());
      for (const auto& pool : pools) layer.pools.push_back(pool[static_cast<int64_t>(n)]);
      if (!detail::is_quantized(options.dtype())) continue;
      const bool has_values = options.value_head_dim() != 0;  // 0: values are a part of the keys
      layer.key_scales = layer.pools[2].squeeze(3);
      layer.value_scales = layer.pools[has_values ? 3 : 2].squeeze(3);
    }
    return layers;
  }

  /// A sequence, whose pages hold the keys [evicted * page_size, length). After `truncate` there
  /// may be no pages, if the next token sees none of the keys.
  struct Sequence {
    std::vector<int64_t> pages;
    int64_t evicted = 0;  // the number of pages that were removed before these
    int64_t length = 0;
    int64_t appended = 0;  // how many keys the last append added
    // With LongRopeScaling, the greatest length for which the keys were rotated.
    int64_t rotated_for = 0;
  };

  /// The changes to a sequence's pages when tokens are appended, in this order.
  struct Extension {
    int64_t evicted = 0;       // pages removed from the beginning
    bool copies_last = false;  // other sequences use the last page too
    int64_t fresh = 0;         // pages added at the end
  };

  explicit State(const PagedKVCacheOptions& given)
      : options(given),
        pools(allocate(given)),
        layers(layers_of(given, pools)),
        uses(static_cast<size_t>(given.pages()), 0) {
    for (auto page = given.pages(); page-- > 0;) free.push_back(page);
  }

  const Sequence& sequence(const char* function, int64_t name) const {
    const auto found = sequences.find(name);
    HEED_CHECK(found != sequences.end(),
               "{}: sequence ({}) must be one that add or fork returned, and not removed", function,
               name);
    return found->second;
  }
  Sequence& sequence(const char* function, int64_t name) {
    return const_cast<Sequence&>(std::as_const(*this).sequence(function, name));
  }

  void release(int64_t page) {
    if (--uses[static_cast<size_t>(page)] == 0) free.push_back(page);
  }
  int64_t take() {
    const auto page = free.back();
    free.pop_back();
    uses[static_cast<size_t>(page)] = 1;
    return page;
  }

  /// The number of pages at the sequence's beginning that tokens from position `next` on do not
  /// see.
  int64_t unseen(const Sequence& sequence, int64_t next) const {
    if (!options.window()) return 0;
    const auto oldest = std::max<int64_t>(next - *options.window() + 1, 0);
    return std::max<int64_t>(oldest / options.page_size() - sequence.evicted, 0);
  }

  struct Plan {
    std::vector<Extension> extensions;  // one for each sequence
    std::vector<int64_t> given_up;      // pages, once for each sequence that gives them up
    std::vector<int64_t> freed;         // given-up pages that no sequence uses any more
    int64_t needed = 0;                 // free pages that are needed
  };
  Plan plan(const char* function, at::IntArrayRef names, at::IntArrayRef counts) const;
  Growth grow(const Plan& plan, at::IntArrayRef names, at::IntArrayRef counts) const;
  void commit(Growth growth) noexcept;
  /// Adds to `copies` that the page `from` is copied to the page `to`, in all layers.
  void copy_page(Copies& copies, int64_t to, int64_t from) const {
    for (const auto& pool : pools) copies.emplace_back(pool.select(1, to), pool.select(1, from));
  }

  struct Place {
    int64_t page, slot;
  };
  Place place_of(const Sequence& sequence, int64_t position) const {
    const auto size = options.page_size(), n = position / size - sequence.evicted;
    return {sequence.pages[static_cast<size_t>(n)], position % size};
  }
  /// The pages and slots of tokens, int64 on the cache's device.
  using Indices = std::pair<at::Tensor, at::Tensor>;
  Indices indices_of(const std::vector<Place>& places) const;
  /// The pages and slots of the positions position_of(0), ..., position_of(count - 1) in all
  /// layers. The pages of all layers are numbered one layer after the other.
  template <typename PositionOf>
  Indices indices_in_layers(const Sequence& own, size_t count, const PositionOf& position_of) const;

  PagedKVCacheOptions options;
  // Keys [layers, P, G, page, D], values [.., Dv] and, if quantized, their scales [.., 1].
  std::vector<at::Tensor> pools;
  std::vector<Layer> layers;
  std::vector<int64_t> free;  // pages; the last one is taken next
  std::vector<int64_t> uses;  // [P]: how many sequences use a page
  std::unordered_map<int64_t, Sequence> sequences;
  int64_t next_name = 0;
  int64_t change = 0;  // counts the changes of sequences
};

auto PagedKVCache::State::indices_of(const std::vector<Place>& places) const -> Indices {
  std::vector<int64_t> pages, slots;
  pages.reserve(places.size());
  slots.reserve(places.size());
  for (const auto& [page, slot] : places) {
    pages.push_back(page);
    slots.push_back(slot);
  }
  return {detail::to_device(pages, options.device()), detail::to_device(slots, options.device())};
}

template <typename PositionOf>
auto PagedKVCache::State::indices_in_layers(const Sequence& own, size_t count,
                                            const PositionOf& position_of) const -> Indices {
  std::vector<Place> places;
  places.reserve(layers.size() * count);
  for (int64_t layer = 0; layer < options.layers(); ++layer) {
    for (size_t i = 0; i < count; ++i) {
      const auto [page, slot] = place_of(own, position_of(i));
      places.push_back({layer * options.pages() + page, slot});
    }
  }
  return indices_of(places);
}

/// The result of an append that `commit` has yet to make part of the cache. There are enough free
/// pages for it.
struct PagedKVCache::Growth {
  std::vector<int64_t> names;
  std::vector<State::Sequence> sequences;
  std::vector<int64_t> given_up;  // as in Plan
  std::vector<int64_t> taken;     // pages
  std::vector<int64_t> freed;     // freed pages that are not taken again
  size_t from_free = 0;           // how many pages are taken from the end of `free`
  Copies copies;                  // copies of pages that other sequences use too
};

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
    auto& evicted = plan.extensions[n].evicted;
    evicted = unseen(own, own.length);
    for (int64_t i = 0; i < evicted; ++i) give_up(own.pages[static_cast<size_t>(i)]);
  }
  detail::Count needed = -static_cast<int64_t>(plan.freed.size());
  const auto size = options.page_size();
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
    extension.fresh = pages_of((detail::Count(own.length) + counts[n]).value(), size) - held;
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

/// Makes a growth part of the cache. Its copies must have been made. Allocates no memory.
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
  const auto window = state_->options.window();
  const auto oldest = window ? std::max<int64_t>(length - *window + 1, 0) : 0;
  HEED_CHECK(oldest >= own.evicted * size || oldest == length,
             "{}: length ({}) must leave the window ({}) its keys; those before {} have been "
             "evicted",
             kName, length, window.value_or(0), own.evicted * size);
  const bool sees_none = length < own.evicted * size;  // the check allows it if no key is seen
  if (sees_none) own.evicted = length / size;
  const auto kept = sees_none ? 0 : pages_of(length, size) - own.evicted;
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
  Copies copies;
  for (size_t i = 0; i < shared.size(); ++i) {
    auto& page = next.pages[shared[i]];
    const auto fresh = state_->free[state_->free.size() - 1 - i];
    state_->copy_page(copies, fresh, page);
    page = fresh;
  }
  const auto [old_pages, old_slots] =
      state_->indices_in_layers(own, positions.size(), [&](size_t i) { return positions[i]; });
  const auto [pages, slots] = state_->indices_in_layers(
      next, positions.size(), [&](size_t i) { return first + static_cast<int64_t>(i); });
  Copies rows;  // (pool, rows to be written to it)
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

PagedStep::PagedStep(std::shared_ptr<PagedKVCache::State> state, const PagedKVCache::Growth& growth,
                     at::IntArrayRef parents)
    : state_(std::move(state)),
      change_(state_->change + 1),
      angles_(std::make_shared<detail::StepAngles>()) {
  const auto size = state_->options.page_size();
  const auto count = static_cast<int64_t>(growth.sequences.size());
  std::vector<int64_t> counts, stored, positions;
  std::vector<PagedKVCache::State::Place> places;
  size_t columns = 1;
  for (size_t n = 0; n < growth.sequences.size(); ++n) {
    const auto& own = growth.sequences[n];
    columns = std::max(columns, own.pages.size());
    counts.push_back(own.appended);
    stored.push_back(own.length - own.evicted * size);
    const auto first = own.length - own.appended;
    const auto tree = parents.empty() ? parents : parents.slice(positions.size(), own.appended);
    const auto depths = detail::depths_of(tree);
    auto& length =
        angles_->sequences
            .emplace_back(detail::AppendedSequence{growth.names[n], first, own.appended, first})
            .length;
    for (int64_t i = 0; i < own.appended; ++i) {
      positions.push_back(first + (parents.empty() ? i : depths[i]));
      places.push_back(state_->place_of(own, first + i));
      length = std::max(length, positions.back() + 1);
    }
  }
  std::vector<int64_t> table;
  table.reserve(growth.sequences.size() * columns);
  for (const auto& own : growth.sequences) {
    table.insert(table.end(), own.pages.begin(), own.pages.end());
    table.resize(table.size() + columns - own.pages.size(), 0);
  }
  const auto device = state_->options.device();
  tokens_ = static_cast<int64_t>(positions.size());
  key_lengths_ = detail::to_device(stored, at::kCPU);
  page_table_ = detail::to_device(table, at::kCPU).view({count, static_cast<int64_t>(columns)});
  positions_ = detail::to_device(positions, device);
  if (!parents.empty()) parents_ = detail::to_device(parents.vec(), at::kCPU);
  std::tie(token_pages_, token_slots_) = state_->indices_of(places);
  call_ = std::make_shared<detail::PagedCall>(std::move(counts), std::move(stored), page_table_,
                                              parents_, size, device);
  query_offsets_ = detail::to_device(call_->offsets(), at::kCPU);
}

void PagedStep::check(const char* function, int64_t layer) const {
  HEED_CHECK(change_ == state_->change,
             "{}: the step must be used before the cache changes: truncate its sequences to their "
             "lengths before it, and append again",
             function);
  HEED_CHECK(layer >= 0 && layer < state_->options.layers(),
             "{}: layer ({}) must be at least 0 and below layers ({})", function, layer,
             state_->options.layers());
}

/// For LongRopeScaling, which rotates by other factors beyond the length `border`. Checks that the
/// keys of the step are rotated by the same factors as the cached keys of their sequences.
void PagedStep::rotate_for(const char* function, int64_t border) {
  check(function, 0);
  std::vector<int64_t> lengths;
  for (const auto& tokens : angles_->sequences) {
    const auto before = state_->sequence(function, tokens.name).rotated_for;
    lengths.push_back(detail::rotated_length(function, tokens, before, border));
  }
  for (size_t n = 0; n < lengths.size(); ++n) {
    state_->sequence(function, angles_->sequences[n].name).rotated_for = lengths[n];
  }
}

at::Tensor PagedStep::last_tokens() const {
  std::vector<int64_t> last;
  const auto& ends = call_->offsets();
  for (size_t n = 1; n < ends.size(); ++n) {
    if (ends[n] > ends[n - 1]) last.push_back(ends[n] - 1);
  }
  return detail::to_device(last, state_->options.device());
}

void PagedStep::write(const at::Tensor& key, const at::Tensor& value, int64_t layer) {
  check(kWrite, layer);
  const auto check_tensor = [&](const char* name, const at::Tensor& tensor,
                                const at::Tensor& pool) {
    detail::check_defined(kWrite, name, tensor);
    const auto groups = pool.size(1), head_dim = pool.size(3);
    HEED_CHECK(tensor.sizes() == at::IntArrayRef({tokens_, groups, head_dim}),
               "{}: {} {} must be [{}, {}, {}]: the step's tokens, groups and head_dim", kWrite,
               name, detail::shape(tensor), tokens_, groups, head_dim);
    detail::check_written(kWrite, name, tensor, pool);
  };
  check_tensor("key", key, key_pages(layer));
  check_tensor("value", value, value_pages(layer));
  const at::NoGradGuard no_grad;
  const auto written = detail::as_stored(key, value, state_->options.dtype());
  const auto& own = state_->layers[static_cast<size_t>(layer)];
  for (size_t i = 0; i < written.size(); ++i) {
    detail::write_rows(own.pools[i], token_pages_, token_slots_, written[i]);
  }
}

at::Tensor PagedStep::key_pages(int64_t layer) const {
  check("PagedStep::key_pages", layer);
  return state_->layers[static_cast<size_t>(layer)].pools[0];
}

at::Tensor PagedStep::value_pages(int64_t layer) const {
  check("PagedStep::value_pages", layer);
  return state_->layers[static_cast<size_t>(layer)].pools[1];
}

at::Tensor PagedStep::key_scales(int64_t layer) const {
  check("PagedStep::key_scales", layer);
  return state_->layers[static_cast<size_t>(layer)].key_scales;
}

at::Tensor PagedStep::value_scales(int64_t layer) const {
  check("PagedStep::value_scales", layer);
  return state_->layers[static_cast<size_t>(layer)].value_scales;
}

const PagedKVCacheOptions& PagedStep::options() const { return state_->options; }

at::Tensor attend_paged(const at::Tensor& query, const PagedStep& step, int64_t layer,
                        const AttendOptions& options) {
  auto causal = options;
  causal.causal(true);
  if (detail::is_quantized(step.options().dtype())) {
    causal.key_scales(step.key_scales(layer)).value_scales(step.value_scales(layer));
  }
  if (step.parents().defined()) causal.parents(step.parents());
  const auto keys = step.key_pages(layer), values = step.value_pages(layer);
  if (causal.parents() && !step.parents().defined()) {  // which the step has not checked
    return attend_paged(query, keys, values, step.page_table(), step.query_offsets(),
                        step.key_lengths(), causal);
  }
  return detail::attend_paged(query, keys, values, *step.call_, causal);
}

}  // namespace heed
