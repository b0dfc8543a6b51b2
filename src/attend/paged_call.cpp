// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paged_call.h"

#include <ATen/core/functional.h>
#include <algorithm>
#include <numeric>
#include <utility>

#include "core/ceil_div.h"
#include "core/offsets.h"
#include "core/to_device.h"

namespace heed::detail {

namespace {

/// With more queries, a sequence's products take longer than reading its keys, which sharing saves.
constexpr int64_t kFewQueries = 16;

}  // namespace

at::Tensor TokenRows::of(const at::Tensor& rows) const {
  if (numbers.defined()) return rows.index_select(0, numbers);
  return count == rows.size(0) ? rows : rows.narrow(0, first, count);
}

void TokenRows::replace(at::Tensor& rows, const at::Tensor& values) const {
  if (numbers.defined()) {
    rows.index_copy_(0, numbers, values);
  } else if (count == rows.size(0)) {
    rows = values;
  } else {
    rows.narrow(0, first, count).copy_(values);
  }
}

PagedCall::PagedCall(std::vector<int64_t> query_lengths, std::vector<int64_t> key_lengths,
                     at::Tensor table, at::Tensor parents, int64_t page_size, at::Device device)
    : query_lengths_(std::move(query_lengths)),
      key_lengths_(std::move(key_lengths)),
      offsets_(query_lengths_.size() + 1, 0),
      table_(std::move(table)),
      parents_(std::move(parents)),
      page_size_(page_size),
      device_(device) {
  std::partial_sum(query_lengths_.begin(), query_lengths_.end(), offsets_.begin() + 1);
}

const std::vector<PagedLevel>& PagedCall::levels(bool shares) const {
  const std::scoped_lock lock(mutex_);
  auto& levels = levels_[shares ? 1 : 0];
  if (levels.empty()) levels = make_levels(shares);
  return levels;
}

std::vector<PagedLevel> PagedCall::make_levels(bool shares) const {
  std::vector<int64_t> most, begins(query_lengths_.size(), 0);
  for (size_t n = 0; n < begins.size(); ++n) {
    const auto queries = query_lengths_[n];
    const bool may = shares && queries > 0 && queries <= kFewQueries;
    // Only pages whose keys all queries see can be shared.
    most.push_back(may ? (key_lengths_[n] - queries) / page_size_ : 0);
  }
  std::vector<PagedLevel> levels(1);
  std::vector<std::vector<int64_t>> sequences(1);  // of each level
  for (const auto& node : shared_pages(table_, most, page_size_)) {
    const auto level = static_cast<size_t>(node.depth) + 1;
    levels.resize(std::max(levels.size(), level + 1));
    sequences.resize(levels.size());
    levels[level].batches.push_back(shared_keys(node));
    sequences[level].insert(sequences[level].end(), node.sequences.begin(), node.sequences.end());
    for (const auto n : node.sequences) begins[n] = node.last;
  }
  levels.front() = own_keys(begins);
  for (size_t n = 1; n < levels.size(); ++n) levels[n].tokens = tokens_of(sequences[n]);
  return levels;
}

PagedLevel PagedCall::own_keys(const std::vector<int64_t>& begins) const {
  PagedLevel level{{0, tokens(), {}}, {}};
  for (int64_t first = 0, last = 0; first < sequences(); first = last) {
    const auto length = query_lengths_[first];
    std::vector<KeyRun> keys;
    for (; last < sequences() && query_lengths_[last] == length; ++last) {
      keys.push_back({pages(last) + begins[last], key_lengths_[last] - begins[last] * page_size_});
    }
    if (length == 0) continue;
    const auto count = last - first;
    const TokenRows tokens{offsets_[first], count * length, {}};
    auto& batch = level.batches.emplace_back(make_batch(tokens, keys));
    batch.is_whole = std::count(begins.begin() + first, begins.begin() + last, 0) == count;
    if (parents_.defined()) batch.parents = tokens.of(parents_).view({count, length});
  }
  return level;
}

PagedBatch PagedCall::shared_keys(const SharedPages& node) const {
  const auto* first = pages(node.sequences.front()) + node.first;
  return make_batch(tokens_of(node.sequences), {{first, (node.last - node.first) * page_size_}});
}

PagedBatch PagedCall::make_batch(TokenRows tokens, const std::vector<KeyRun>& sequences) const {
  auto lengths = c10::fmap(sequences, [](const KeyRun& run) { return run.keys; });
  const auto count = static_cast<int64_t>(lengths.size()), most = longest(lengths);
  const auto columns = ceil_div(most, page_size_);
  std::vector<int64_t> table(static_cast<size_t>(count * columns), 0);
  auto row = table.begin();
  for (const auto& [pages, keys] : sequences) {
    std::copy_n(pages, ceil_div(keys, page_size_), row);
    row += columns;
  }
  // Nothing within the braces may throw: GCC 12 would destroy the base of the sequences twice.
  auto key_lengths = to_device(lengths, device_);
  auto own_pages = to_device(table, device_).view({count, columns});
  return {std::move(tokens),
          {{{}, std::move(key_lengths), /*enough_keys=*/true}, std::move(own_pages), most},
          std::move(lengths),
          {},
          false};
}

TokenRows PagedCall::tokens_of(const std::vector<int64_t>& sequences) const {
  std::vector<int64_t> numbers;
  for (const auto n : sequences) {
    for (auto token = offsets_[n]; token < offsets_[n + 1]; ++token) numbers.push_back(token);
  }
  const auto first = numbers.front(), count = static_cast<int64_t>(numbers.size());
  const auto skips = [](int64_t one, int64_t next) { return next != one + 1; };
  const bool is_range = std::adjacent_find(numbers.begin(), numbers.end(), skips) == numbers.end();
  return {first, count, is_range ? at::Tensor() : to_device(numbers, device_)};
}

}  // namespace heed::detail
