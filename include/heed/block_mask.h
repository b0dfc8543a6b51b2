// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>

namespace heed {

namespace detail {
class BlockMaskBits;
}

/// Which keys each query may see, kept by tiles of 64 queries and 64 keys: a tile that is hidden or
/// shown as a whole takes no memory for its elements, any other tile one bit for each. `attend`
/// does not compute hidden tiles. PyTorch's FlexAttention has a class of this name.
///
/// @code
/// // Each token sees the 4 tokens up to itself, and the first.
/// auto rule = [](int64_t /*b*/, int64_t /*h*/, int64_t i, int64_t j) {
///   return j <= i && (j > i - 4 || j == 0);
/// };
/// auto mask = heed::make_block_mask(/*batch=*/1, /*heads=*/1, /*query_length=*/10, 10, rule);
/// auto output = heed::attend(query, key, value, heed::AttendOptions().block_mask(mask));
/// @endcode
///
/// Copies share one constant state: they are cheap, and threads may use them at the same time. One
/// mask serves any number of calls, on any device; other devices than the CPU get it as a tensor of
/// L x S elements, or of the queries that are computed together.
class HEED_API BlockMask {
 public:
  /// Queries and keys of a tile. The last tiles may have fewer.
  static constexpr int64_t kTile = 64;

  /// See `make_block_mask`.
  explicit BlockMask(std::shared_ptr<const detail::BlockMaskBits> bits);

  /// [B, H, L, S]; B and H are 1 if all batches or heads share the mask.
  at::IntArrayRef sizes() const;
  /// How many tiles show all of their elements, some of them, and none.
  /// @{
  int64_t full_tiles() const;
  int64_t partial_tiles() const;
  int64_t hidden_tiles() const;
  /// @}
  /// The percentage of tiles that are hidden.
  double sparsity() const;
  /// The bytes that the mask takes. They grow with the tiles that are partly seen and with the runs
  /// of full tiles, not with L x S.
  int64_t nbytes() const;
  /// The mask as a tensor: bool [B, H, L, S] on the CPU.
  at::Tensor mask() const;

  /// For heed's own code.
  const detail::BlockMaskBits& bits() const { return *bits_; }

 private:
  std::shared_ptr<const detail::BlockMaskBits> bits_;
};

/// Prints sizes, the number of tiles of each kind, and the sparsity.
HEED_API std::ostream& operator<<(std::ostream& stream, const BlockMask& mask);

namespace detail {

/// A tile of a mask.
struct BlockMaskTile {
  int64_t b;        ///< its batch
  int64_t h;        ///< its head
  int64_t query;    ///< its first query
  int64_t queries;  ///< how many it has
  int64_t key;      ///< its first key
  int64_t keys;     ///< how many it has
};

/// Writes a word for each query of the tile, with a bit for each key: 1 if the query sees it.
using WriteTile = std::function<void(const BlockMaskTile& tile, uint64_t* words)>;

HEED_API BlockMask make_block_mask(int64_t batch, int64_t heads, int64_t query_length,
                                   int64_t key_length, const WriteTile& write);

}  // namespace detail

/// Makes the mask by which query i of head h in batch b sees key j where function(b, h, i, j) is
/// true. `batch` or `heads` is 1 for a mask that all batches or heads share.
///
/// The function is called once for each element, B * H * L * S times, from several threads at once;
/// it is compiled into this template, so that a short lambda costs little. Make a mask once, and
/// use it in many calls.
///
/// Throws c10::ValueError when a size is negative, or when no memory could hold the elements.
template <typename Function>
BlockMask make_block_mask(int64_t batch, int64_t heads, int64_t query_length, int64_t key_length,
                          const Function& function) {
  const auto write = [&function](const detail::BlockMaskTile& tile, uint64_t* words) {
    for (int64_t i = 0; i < tile.queries; ++i) {
      uint64_t word = 0;
      for (int64_t j = 0; j < tile.keys; ++j) {
        const bool seen = function(tile.b, tile.h, tile.query + i, tile.key + j);
        word |= uint64_t{seen} << j;
      }
      words[i] = word;
    }
  };
  return detail::make_block_mask(batch, heads, query_length, key_length, write);
}

}  // namespace heed
