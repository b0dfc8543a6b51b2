// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/shown_keys.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

#include "core/ceil_div.h"
#include "cpu/capability.h"

// The mask is read once in a call and kept as bits; documents are kept as bounds.
//
//   for each matrix [L, S] of the mask, for each 64 of its queries, in parallel:
//     for each of these queries:
//       key_bits_[query]  = a bit for each key              # 1/8 of the mask's bytes
//       rows_[query]      = two bits for each cell of 16    # 1/64 of the mask's bytes
//       blocks_[query / 64].any |= rows_[query].any
//   for each cell of keys, and for each 64 queries: the least and the largest document
//   for the global tokens: a bit for each key, two bits for each cell
//
//   16 keys of a query   1111111111111111   1100000000000001   0000000000000000
//   their cell           any and all        any                neither
//
// Dimensions that the mask broadcasts (stride 0) are read once. Attention over blocks skips cells
// that no query sees.
//
// A block mask is kept by tiles of 64 queries and 64 keys already. The bits of its cells and keys
// are made for one block of queries and keys at a time. docs/kernels.md, Block ("What is hidden is
// not computed").

namespace heed::detail {

namespace {

constexpr int64_t kBlockQueries = 64;  // consecutive queries of a row of blocks_

/// Bits [first, first + 64) of the 128 bits in `low` and `high`.
uint64_t shifted(uint64_t low, uint64_t high, int64_t first) {
  return first == 0 ? low : low >> first | high << (kCellsOfBits - first);
}

/// The bits of cells [cell, cell + 64) of a row that has `words` words.
CellBits cells_at(const CellBits* row, int64_t words, int64_t cell) {
  const auto word = cell / kCellsOfBits;
  const auto next = word + 1 < words ? row[word + 1] : CellBits{};
  const auto shift = cell % kCellsOfBits;
  return {shifted(row[word].any, next.any, shift), shifted(row[word].all, next.all, shift)};
}

static_assert(BlockMaskBits::kTile == kBlockQueries && BlockMaskBits::kTile == kKeysOfBits);

constexpr int64_t kTileCells = BlockMaskBits::kTile / kCellKeys;

/// Bit n: whether one of the bits [16 n, 16 n + 16) is 1.
uint64_t cells_of_keys(uint64_t keys) {
  static_assert(kCellKeys == 16);
  uint64_t cells = 0;
  for (int64_t n = 0; n < kTileCells; ++n) {
    cells |= uint64_t{(keys >> (n * kCellKeys) & 0xffffU) != 0} << n;
  }
  return cells;
}

/// The bits of a block mask's tile in a word whose first bit is cell `cell`.
uint64_t moved_to(int64_t cell, int64_t tile, uint64_t cells) {
  const auto shift = tile * kTileCells - cell;
  return shift >= 0 ? cells << shift : cells >> -shift;
}

/// The tiles of a block mask that have cells [cell, cell + count).
KeyRange tiles_of(int64_t cell, int64_t count) {
  return {cell / kTileCells, ceil_div(cell + count, kTileCells)};
}

/// Calls visit(tile, rows, words) for the tiles of `tiles` that a block mask does not hide from
/// `queries`. `rows` are those of the queries that are in the tile; `words` has a word for each of
/// them, and is null if the tile is full.
template <typename Visit>
void for_each_shown(const BlockMaskBits& mask, int64_t b, int64_t h, KeyRange queries,
                    KeyRange tiles, const Visit& visit) {
  for (auto first = queries.first; first < queries.last;) {
    const auto row = first / kBlockQueries;
    const KeyRange rows{first, std::min((row + 1) * kBlockQueries, queries.last)};
    const auto pass_on = [&](int64_t tile, const uint64_t* words) {
      visit(tile, rows, words == nullptr ? nullptr : words + first % kBlockQueries);
    };
    mask.for_each_seen(b, h, row, tiles.first, tiles.last, pass_on);
    first = rows.last;
  }
}

CellBits both(CellBits a, CellBits b) { return {a.any & b.any, a.all & b.all}; }

/// The mask with size 1 in dimensions of stride 0, which an expanded tensor has: they are read
/// once.
at::Tensor without_copies(at::Tensor mask) {
  for (int64_t dim = 0; dim < 3; ++dim) {
    if (mask.stride(dim) == 0) mask = mask.narrow(dim, 0, 1);
  }
  return mask;
}

}  // namespace

ShownKeys::ShownKeys(const Problem& problem)
    : problem_(problem),
      key_length_(problem.key_length()),
      cell_count_(ceil_div(key_length_, kCellKeys)) {
  if (problem.mask.defined()) look_at_mask(without_copies(problem.mask));
  if (problem.block_mask) block_mask_ = &problem.block_mask->bits();
  if (problem.documents.defined()) look_at_documents(problem.documents, problem.key_documents);
  if (problem.global_keys.defined()) look_at_global_tokens();
}

void ShownKeys::look_at_mask(const at::Tensor& mask) {
  const auto words = ceil_div(cell_count_, kCellsOfBits);
  const auto queries = mask.size(2);
  const auto matrices = mask.size(0) * mask.size(1);
  const auto blocks = ceil_div(queries, kBlockQueries);
  rows_ = {mask.size(1), queries, words, {}};
  blocks_ = {mask.size(1), blocks, words, {}};
  key_words_ = ceil_div(mask.size(3), kKeysOfBits);
  key_bits_.resize(static_cast<size_t>(matrices * queries * key_words_));
  rows_.cells.resize(static_cast<size_t>(matrices * queries * words));
  blocks_.cells.resize(static_cast<size_t>(matrices * blocks * words));
  const auto* data = mask.const_data_ptr<bool>();
  const auto keys = mask.size(3);
  constexpr int64_t kWorthAThread = 1 << 17;  // bytes
  const auto grain = std::max<int64_t>(1, kWorthAThread / (keys * kBlockQueries));
  std::atomic<bool> hides{false};
  at::parallel_for(0, matrices * blocks, grain, [&](int64_t begin, int64_t end) {
    const auto look = instruction_set().scores.look_at_mask;
    uint64_t hidden = 0;
    for (auto n = begin; n < end; ++n) {
      const auto matrix = n / blocks;
      const auto first = n % blocks * kBlockQueries;
      auto* block = blocks_.cells.data() + n * words;
      for (auto i = first; i < std::min(first + kBlockQueries, queries); ++i) {
        const auto index = matrix * queries + i;
        auto* row = rows_.cells.data() + index * words;
        look(data + matrix / mask.size(1) * mask.stride(0) +
                 matrix % mask.size(1) * mask.stride(1) + i * mask.stride(2),
             mask.stride(3), keys, key_bits_.data() + index * key_words_, row);
        for (int64_t word = 0; word < words; ++word) {
          const auto cells = std::min(kCellsOfBits, cell_count_ - word * kCellsOfBits);
          block[word].any |= row[word].any;
          hidden |= ~row[word].all & first_bits(cells);
        }
      }
    }
    if (hidden != 0) hides = true;
  });
  mask_hides_ = hides;
}

void ShownKeys::look_at_documents(const at::Tensor& documents, const at::Tensor& key_documents) {
  documents_ = documents.to(at::kLong).contiguous();
  key_documents_ = key_documents.to(at::kLong).contiguous();
  const auto bounds = [](const at::Tensor& ids, int64_t size) {
    std::vector<Bounds> found;
    found.reserve(static_cast<size_t>(ids.size(0) * ceil_div(ids.size(1), size)));
    for (int64_t b = 0; b < ids.size(0); ++b) {
      const auto* row = ids.const_data_ptr<int64_t>() + b * ids.size(1);
      for (int64_t first = 0; first < ids.size(1); first += size) {
        const auto [least, most] =
            std::minmax_element(row + first, row + std::min(first + size, ids.size(1)));
        found.push_back({*least, *most});
      }
    }
    return found;
  };
  of_queries_ = bounds(documents_, kBlockQueries);
  of_keys_ = bounds(key_documents_, kCellKeys);
  const auto& all = of_keys_.front();
  const auto same = [&](const std::vector<Bounds>& ranges) {
    return std::all_of(ranges.begin(), ranges.end(), [&](const Bounds& range) {
      return range.least == all.least && range.most == all.least;
    });
  };
  if (same(of_queries_) && same(of_keys_)) documents_ = key_documents_ = at::Tensor();
}

void ShownKeys::look_at_global_tokens() {
  global_rows_ = problem_.global_rows.contiguous();
  const auto tokens = problem_.global_keys.contiguous();
  const auto count = tokens.size(1);
  const auto key_words = ceil_div(count, kKeysOfBits), words = ceil_div(cell_count_, kCellsOfBits);
  global_bits_.resize(static_cast<size_t>(tokens.size(0) * key_words));
  global_cells_.resize(static_cast<size_t>(tokens.size(0) * words));
  for (int64_t b = 0; b < tokens.size(0); ++b) {
    instruction_set().scores.look_at_mask(tokens.const_data_ptr<bool>() + b * count, 1, count,
                                          global_bits_.data() + b * key_words,
                                          global_cells_.data() + b * words);
  }
  for (int64_t b = 0; b < problem_.batch(); ++b) {
    const auto of_keys = tokens.size(0) == 1 ? 0 : b;
    global_.push_back(
        {row_of_batch<bool>(global_rows_, b), global_bits_.data() + of_keys * key_words,
         global_cells_.data() + of_keys * words, problem_.position(b, 0), problem_.key_count(b)});
  }
}

CellBits ShownKeys::window_cells(const GlobalTokens& tokens, KeyRange queries, int64_t cell) const {
  auto found = cells_at(tokens.cells, ceil_div(cell_count_, kCellsOfBits), cell);
  const auto window = [&](int64_t query) {
    return problem_.window_at(tokens.first_position + query, tokens.key_count);
  };
  const KeyRange near{window(queries.first).first, window(queries.last - 1).last};
  // A window that has the last key has its cell to the end.
  const auto last = near.last == key_length_ ? cell_count_ * kCellKeys : near.last;
  const auto of_window = cells_between(near.first, near.empty() ? 0 : last, cell);
  found.any |= of_window.any;
  found.all |= of_window.all;
  return found;
}

CellBits ShownKeys::document_cells(int64_t b, int64_t document, int64_t cell, int64_t count) const {
  const auto* bounds = of_keys_.data() + (key_documents_.size(0) == 1 ? 0 : b * cell_count_) + cell;
  CellBits found;
  for (int64_t n = 0; n < count; ++n) {
    const bool any = bounds[n].have(document);
    found.any |= uint64_t{any} << n;
    found.all |= uint64_t{any && bounds[n].least == bounds[n].most} << n;
  }
  return found;
}

void ShownKeys::key_bits(int64_t b, int64_t h, KeyRange queries, KeyRange words, uint64_t* to,
                         int64_t stride) const {
  for (auto i = queries.first; i < queries.last; ++i) {
    std::fill_n(to + (i - queries.first) * stride, words.last - words.first, 0);
  }
  const auto copy = [&](int64_t tile, KeyRange rows, const uint64_t* shown) {
    auto* word = to + (rows.first - queries.first) * stride + tile - words.first;
    for (auto i = rows.first; i < rows.last; ++i, word += stride) {
      *word = shown == nullptr ? block_mask_->existing(tile) : *shown++;
    }
  };
  for_each_shown(*block_mask_, b, h, queries, words, copy);
  if (!mask_hides_) return;
  for (auto i = queries.first; i < queries.last; ++i, to += stride) {
    const auto* shown = mask(b, h, i);
    for (auto word = words.first; word < words.last; ++word) to[word - words.first] &= shown[word];
  }
}

void ShownKeys::block_mask_cells(int64_t b, int64_t h, KeyRange queries, int64_t cell,
                                 int64_t count, CellBits* to, int64_t stride) const {
  for (auto i = queries.first; i < queries.last; ++i) to[(i - queries.first) * stride] = {};
  const auto add = [&](int64_t tile, KeyRange rows, const uint64_t* shown) {
    const auto existing = block_mask_->existing(tile);
    const auto cells = cells_of_keys(existing);
    auto* bits = to + (rows.first - queries.first) * stride;
    for (auto i = rows.first; i < rows.last; ++i, bits += stride) {
      auto any = cells, all = cells;
      if (shown != nullptr) {
        const auto keys = *shown++;
        any = cells_of_keys(keys);
        all = cells & ~cells_of_keys(existing & ~keys);
      }
      bits->any |= moved_to(cell, tile, any);
      bits->all |= moved_to(cell, tile, all);
    }
  };
  for_each_shown(*block_mask_, b, h, queries, tiles_of(cell, count), add);
}

void ShownKeys::cells(int64_t b, int64_t h, KeyRange queries, int64_t cell, int64_t count,
                      CellBits* to, int64_t stride) const {
  const auto wanted = first_bits(count);
  const auto* shown = mask_hides_ ? rows_.row(mask_batch(b), h, queries.first) : nullptr;
  const auto next_row = rows_.queries == 1 ? 0 : rows_.words;
  const auto* ids = documents(b);
  const auto* tokens = has_global() ? &global_[static_cast<size_t>(b)] : nullptr;
  CellBits same{wanted, wanted};
  if (has_block_mask()) block_mask_cells(b, h, queries, cell, count, to, stride);
  for (auto i = queries.first; i < queries.last; ++i, to += stride) {
    if (ids != nullptr && (i == queries.first || ids[i] != ids[i - 1])) {
      same = document_cells(b, ids[i], cell, count);
    }
    *to = has_block_mask() ? both(*to, same) : same;
    if (tokens != nullptr && !tokens->is_global[i]) {
      *to = both(*to, window_cells(*tokens, {i, i + 1}, cell));
    }
    if (shown == nullptr) continue;
    *to = both(*to, cells_at(shown, rows_.words, cell));
    shown += next_row;
  }
}

uint64_t ShownKeys::may_see(int64_t b, int64_t h, KeyRange queries, int64_t cell,
                            int64_t count) const {
  const auto first_block = queries.first / kBlockQueries;
  const auto last_block = (queries.last - 1) / kBlockQueries;
  auto seen = first_bits(count);
  if (mask_hides_) {
    uint64_t shown = 0;
    for (auto block = first_block; block <= last_block; ++block) {
      const auto* row = blocks_.row(mask_batch(b), h, rows_.queries == 1 ? 0 : block);
      shown |= cells_at(row, blocks_.words, cell).any;
    }
    seen &= shown;
  }
  if (has_global()) {
    const auto& tokens = global_[static_cast<size_t>(b)];
    const bool has_all = std::any_of(tokens.is_global + queries.first,
                                     tokens.is_global + queries.last, [](bool is) { return is; });
    if (!has_all) seen &= window_cells(tokens, queries, cell).any;
  }
  if (has_block_mask()) {
    uint64_t shown = 0;
    const auto add = [&](int64_t tile, KeyRange rows, const uint64_t* words) {
      auto keys = words == nullptr ? block_mask_->existing(tile) : 0;
      for (auto i = rows.first; words != nullptr && i < rows.last; ++i) keys |= *words++;
      shown |= moved_to(cell, tile, cells_of_keys(keys));
    };
    for_each_shown(*block_mask_, b, h, queries, tiles_of(cell, count), add);
    seen &= shown;
  }
  if (!documents_.defined()) return seen;
  const auto blocks = ceil_div(documents_.size(1), kBlockQueries);
  const auto* of_queries = of_queries_.data() + (documents_.size(0) == 1 ? 0 : b * blocks);
  const auto* of_keys = of_keys_.data() + (key_documents_.size(0) == 1 ? 0 : b * cell_count_);
  Bounds all{of_queries[first_block]};
  for (auto block = first_block; block <= last_block; ++block) {
    all.least = std::min(all.least, of_queries[block].least);
    all.most = std::max(all.most, of_queries[block].most);
  }
  for (int64_t n = 0; n < count; ++n) {
    const auto& keys = of_keys[cell + n];
    const bool apart = all.most < keys.least || keys.most < all.least;
    seen &= ~(uint64_t{apart} << n);
  }
  return seen;
}

}  // namespace heed::detail
