// SPDX-License-Identifier: BSD-3-Clause
#include "core/block_mask.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "core/check_memory.h"
#include "core/checks.h"

namespace heed {

namespace detail {

namespace {

bool is_empty(const std::array<int64_t, 4>& sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

}  // namespace

BlockMaskBits::BlockMaskBits(const std::array<int64_t, 4>& sizes, const WriteTile& write)
    : sizes_(sizes),
      rows_of_head_(is_empty(sizes) ? 0 : ceil_div(sizes[2], kTile)),
      columns_(is_empty(sizes) ? 0 : ceil_div(sizes[3], kTile)),
      tile_queries_(std::min(sizes[2], kTile)),
      rows_(static_cast<size_t>(sizes[0] * sizes[1] * rows_of_head_)) {
  const auto count = static_cast<int64_t>(rows_.size());
  at::parallel_for(0, count, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (auto n = begin; n < end; ++n) {
      const auto head = n / rows_of_head_;
      rows_[static_cast<size_t>(n)] =
          make_row(head / sizes_[1], head % sizes_[1], n % rows_of_head_, write);
    }
  });
  for (const auto& row : rows_) {
    for (const auto& run : row.runs) {
      (run.word == kFull ? full_ : partial_) += run.last - run.first;
    }
  }
}

BlockMaskBits::TileRow BlockMaskBits::make_row(int64_t b, int64_t h, int64_t row,
                                               const WriteTile& write) const {
  TileRow made;
  BlockMaskTile tile{b, h, row * kTile, std::min(kTile, sizes_[2] - row * kTile), 0, 0};
  uint64_t words[kTile] = {};
  for (int64_t column = 0; column < columns_; ++column) {
    tile.key = column * kTile;
    tile.keys = std::min(kTile, sizes_[3] - tile.key);
    write(tile, words);
    uint64_t any = 0, all = ~uint64_t{0};
    for (int64_t i = 0; i < tile.queries; ++i) {
      any |= words[i];
      all &= words[i];
    }
    if (any == 0) continue;
    const bool full = all == existing(column);
    auto* last = made.runs.empty() ? nullptr : &made.runs.back();
    if (last != nullptr && last->last == column && (last->word == kFull) == full) {
      ++last->last;
    } else {
      const auto word = static_cast<int64_t>(made.words.size());
      made.runs.push_back({column, column + 1, full ? kFull : word});
    }
    if (!full) made.words.insert(made.words.end(), words, words + tile_queries_);
  }
  made.runs.shrink_to_fit();
  made.words.shrink_to_fit();
  return made;
}

int64_t BlockMaskBits::nbytes() const {
  auto bytes = sizeof(BlockMaskBits) + rows_.capacity() * sizeof(TileRow);
  for (const auto& row : rows_) {
    bytes += row.runs.capacity() * sizeof(Run) + row.words.capacity() * sizeof(uint64_t);
  }
  return static_cast<int64_t>(bytes);
}

uint64_t BlockMaskBits::keys(int64_t b, int64_t h, int64_t i, int64_t first, int64_t count) const {
  uint64_t seen = 0;
  const auto last_tile = ceil_div(first + count, kTile);
  for_each_seen(b, h, i / kTile, first / kTile, last_tile,
                [&](int64_t tile, const uint64_t* words) {
                  const auto word = words == nullptr ? existing(tile) : words[i % kTile];
                  const auto shift = tile * kTile - first;
                  seen |= shift >= 0 ? word << shift : word >> -shift;
                });
  return seen & ~uint64_t{0} >> (kTile - count);
}

at::Tensor BlockMaskBits::dense(int64_t first_query, int64_t queries, int64_t first_key,
                                int64_t keys) const {
  auto made = at::empty({sizes_[0], sizes_[1], queries, keys}, at::kBool);
  auto* data = made.mutable_data_ptr<bool>();
  constexpr int64_t kWorthAThread = 1 << 16;  // elements
  const auto grain = std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(1, keys));
  at::parallel_for(0, sizes_[0] * sizes_[1] * queries, grain, [&](int64_t begin, int64_t end) {
    for (auto n = begin; n < end; ++n) {
      const auto head = n / queries, i = first_query + n % queries;
      for (int64_t key = 0; key < keys; key += kTile) {
        const auto count = std::min(kTile, keys - key);
        const auto seen = this->keys(head / sizes_[1], head % sizes_[1], i, first_key + key, count);
        for (int64_t j = 0; j < count; ++j) data[n * keys + key + j] = (seen >> j & 1U) != 0;
      }
    }
  });
  return made;
}

BlockMask make_block_mask(int64_t batch, int64_t heads, int64_t query_length, int64_t key_length,
                          const WriteTile& write) {
  constexpr auto kFunction = "make_block_mask";
  check_not_negative(kFunction, "batch", batch);
  check_not_negative(kFunction, "heads", heads);
  check_not_negative(kFunction, "query_length", query_length);
  check_not_negative(kFunction, "key_length", key_length);
  const std::array<int64_t, 4> sizes = {batch, heads, query_length, key_length};
  check_memory(kFunction, "mask", sizes, at::kBool);
  return BlockMask(std::make_shared<const BlockMaskBits>(sizes, write));
}

}  // namespace detail

BlockMask::BlockMask(std::shared_ptr<const detail::BlockMaskBits> bits) : bits_(std::move(bits)) {}

at::IntArrayRef BlockMask::sizes() const { return bits_->sizes(); }

int64_t BlockMask::full_tiles() const { return bits_->full_tiles(); }

int64_t BlockMask::partial_tiles() const { return bits_->partial_tiles(); }

int64_t BlockMask::hidden_tiles() const {
  return bits_->tiles() - bits_->full_tiles() - bits_->partial_tiles();
}

double BlockMask::sparsity() const {
  if (bits_->tiles() == 0) return 0.0;
  return 100.0 * static_cast<double>(hidden_tiles()) / static_cast<double>(bits_->tiles());
}

int64_t BlockMask::nbytes() const { return bits_->nbytes(); }

at::Tensor BlockMask::mask() const {
  return bits_->dense(0, bits_->sizes()[2], 0, bits_->sizes()[3]);
}

std::ostream& operator<<(std::ostream& stream, const BlockMask& mask) {
  const auto& [batch, heads, queries, keys] = mask.bits().sizes();
  return stream << fmt::format(
             "BlockMask [{}, {}, {}, {}]: {} full, {} partial and {} hidden tiles of {} x {}, "
             "sparsity {:.1f} %",
             batch, heads, queries, keys, mask.full_tiles(), mask.partial_tiles(),
             mask.hidden_tiles(), BlockMask::kTile, BlockMask::kTile, mask.sparsity());
}

}  // namespace heed
