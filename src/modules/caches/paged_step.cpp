// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <heed/attend_paged.h>
#include <heed/paged_kv_cache.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "attend/attend_paged.h"
#include "core/checks.h"
#include "core/draft_tree.h"
#include "core/to_device.h"
#include "modules/caches/caches.h"
#include "modules/caches/memory_rows.h"
#include "modules/caches/paged_state.h"
#include "modules/caches/step_angles.h"
#include "modules/caches/write_rows.h"

namespace heed {

namespace {

constexpr auto kWrite = "PagedStep::write";

}  // namespace

PagedStep::PagedStep(std::shared_ptr<PagedKVCache::State> state, const PagedKVCache::Growth& growth,
                     at::IntArrayRef parents)
    : state_(std::move(state)),
      change_(state_->change + 1),
      angles_(std::make_shared<detail::StepAngles>()) {
  const auto size = state_->options.page_size();
  const auto count = static_cast<int64_t>(growth.sequences.size());
  std::vector<int64_t> counts, stored, positions;
  PagedKVCache::State::Places places;
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
      state_->add_place(places, own, first + i);
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
  std::tie(token_pages_, token_slots_) = state_->on_device(places);
  call_ = std::make_shared<detail::PagedCall>(std::move(counts), std::move(stored), page_table_,
                                              parents_, size, device);
  query_offsets_ = detail::to_device(call_->offsets(), at::kCPU);
}

size_t PagedStep::check(const char* function, int64_t layer) const {
  HEED_CHECK(change_ == state_->change,
             "{}: the step must be used before the cache changes: truncate its sequences to their "
             "lengths before it, and append again",
             function);
  HEED_CHECK(layer >= 0 && layer < state_->options.layers(),
             "{}: layer ({}) must be at least 0 and below layers ({})", function, layer,
             state_->options.layers());
  return static_cast<size_t>(layer);
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

PagedStep& PagedStep::memory_rows(at::IntArrayRef rows) {
  constexpr auto kName = "PagedStep::memory_rows";
  const auto sequences = call_->sequences();
  HEED_CHECK(static_cast<int64_t>(rows.size()) == sequences,
             "{}: rows size ({}) must equal the step's sequences ({})", kName, rows.size(),
             sequences);
  for (size_t n = 0; n < rows.size(); ++n) {
    HEED_CHECK(rows[n] >= 0, "{}: rows[{}] ({}) must be at least 0", kName, n, rows[n]);
  }
  given_rows_ = rows.vec();
  memory_rows_ = nullptr;
  return *this;
}

/// The rows of a memory of `size` rows that the step attends to.
const detail::MemoryRows& PagedStep::rows_of(const char* function, int64_t size) {
  const auto sequences = call_->sequences();
  HEED_CHECK(given_rows_ || size == sequences,
             "{}: memory dim 0 ({}) must equal the step's sequences ({}), or the step must have "
             "memory_rows",
             function, size, sequences);
  for (const auto row : given_rows_.value_or(std::vector<int64_t>())) {
    HEED_CHECK(row < size,
               "{}: memory dim 0 ({}) must be above each of the step's memory_rows ({})", function,
               size, row);
  }
  if (!memory_rows_) {
    auto rows = given_rows_.value_or(std::vector<int64_t>(static_cast<size_t>(sequences)));
    if (!given_rows_) std::iota(rows.begin(), rows.end(), 0);
    memory_rows_ =
        std::make_shared<detail::MemoryRows>(rows, call_->offsets(), positions_.device());
  }
  return *memory_rows_;
}

void PagedStep::write(const at::Tensor& key, const at::Tensor& value, int64_t layer) {
  const auto& own = state_->layers[check(kWrite, layer)];
  const auto check_tensor = [&](const char* name, const at::Tensor& tensor,
                                const at::Tensor& pool) {
    detail::check_defined(kWrite, name, tensor);
    const auto groups = pool.size(1), head_dim = pool.size(3);
    HEED_CHECK(tensor.sizes() == at::IntArrayRef({tokens_, groups, head_dim}),
               "{}: {} {} must be [{}, {}, {}]: the step's tokens, groups and head_dim", kWrite,
               name, detail::shape(tensor), tokens_, groups, head_dim);
    detail::check_written(kWrite, name, tensor, pool);
  };
  check_tensor("key", key, own.pools[0]);
  check_tensor("value", value, own.pools[1]);
  const at::NoGradGuard no_grad;
  const auto written = detail::as_stored(key, value, state_->options.dtype());
  for (size_t i = 0; i < written.size(); ++i) {
    detail::write_rows(own.pools[i], token_pages_, token_slots_, written[i]);
  }
}

at::Tensor PagedStep::key_pages(int64_t layer) const {
  return state_->layers[check("PagedStep::key_pages", layer)].pools[0];
}

at::Tensor PagedStep::value_pages(int64_t layer) const {
  return state_->layers[check("PagedStep::value_pages", layer)].pools[1];
}

at::Tensor PagedStep::key_scales(int64_t layer) const {
  return state_->layers[check("PagedStep::key_scales", layer)].key_scales;
}

at::Tensor PagedStep::value_scales(int64_t layer) const {
  return state_->layers[check("PagedStep::value_scales", layer)].value_scales;
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
