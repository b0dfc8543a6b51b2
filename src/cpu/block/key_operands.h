// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "cpu/block/products.h"

/// The packed keys and values of the forward pass, in slots that a worker keeps:
///
///   slot n   transposed keys [D, tile_stride]   values [keys, Dv]   of one block of keys
///
///   pack(tile):
///     n = key block % kept slots; the last slot if the block of queries needs what lies in slot n
///     if slot n does not hold the tile's keys: pack them into it
///     return the slot's operands, from the tile's first key on
///
/// Kept slots take up to 8 MiB for each worker, and serve all blocks of queries of a group that
/// the worker takes in a row. docs/kernels.md, Block ("Keys are packed once").

namespace heed::detail {

/// One worker's keys and values as operands of the forward pass's products. The packed keys of a
/// group are kept for its next blocks of queries, as far as `memory` allows: packing them again
/// for each block takes up to a tenth of the time.
template <typename Operand>
class KeyOperands {
 public:
  static constexpr int64_t kMemory = int64_t{8} << 20;

  /// At most `memory` bytes are kept.
  explicit KeyOperands(const BlockLayout& layout, int64_t memory = kMemory)
      : layout_(layout),
        key_size_(operands<Operand>(layout.problem().head_dim()) * layout.tile_stride()),
        value_size_(operands<Operand>(layout.block_keys()) *
                    padded(layout.problem().value_head_dim())),
        kept_(kept_blocks(memory)),
        slots_(static_cast<size_t>(kept_ + 1)),
        transposed_keys_((kept_ + 1) * key_size_),
        values_((kept_ + 1) * value_size_) {}

  struct Packed {
    const Operand* transposed_keys;  // [D, tile_stride]; scaled, unless in pairs
    KeyRows<Operand> values;         // [keys, Dv]
  };

  /// The tile's keys and values, packed unless they are kept. They stay valid until the next call.
  Packed pack(const Tile& tile) {
    const auto& block = tile.block();
    const auto keys = tile.keys();
    const auto n = slot_of(block, keys);
    if (!holds(n, block, keys)) fill(n, tile);
    const auto& slot = slots_[static_cast<size_t>(n)];
    const auto skipped = keys.first - slot.keys.first;
    auto values = slot.values;
    values.data += operands<Operand>(skipped) * values.row;
    const auto& problem = layout_.problem();
    return {transposed_keys_.data() + n * key_size_ + skipped,
            {problem, problem.value, values, slot.took_some}};
  }

  /// Whether `keys`, which lie in one block of keys, are packed already.
  bool has(const RowBlock& block, KeyRange keys) const {
    return holds(slot_of(block, keys), block, keys);
  }

 private:
  struct Slot {
    int64_t group = -1;  // b * G + g
    KeyRange keys{};
    Matrix<Operand> values{};
    bool took_some = false;  // result of take_non_finite
  };

  int64_t kept_blocks(int64_t memory) const {
    if (!layout_.keeps_keys()) return 0;
    const auto bytes = (key_size_ + value_size_) * static_cast<int64_t>(sizeof(Operand));
    return std::min(layout_.key_blocks(), memory / bytes);
  }
  int64_t group_of(const RowBlock& block) const {
    return block.batch * layout_.problem().groups() + block.group;
  }
  int64_t key_block_of(KeyRange keys) const { return keys.first / layout_.block_keys(); }

  bool holds(int64_t n, const RowBlock& block, KeyRange keys) const {
    const auto& slot = slots_[static_cast<size_t>(n)];
    return slot.group == group_of(block) && slot.keys.first <= keys.first &&
           slot.keys.last >= keys.last;
  }

  /// The slot for `keys`: the last one, which is not kept, if their own slot holds another block
  /// of keys that the block of queries sees too.
  int64_t slot_of(const RowBlock& block, KeyRange keys) const {
    if (kept_ == 0) return kept_;
    const auto key_block = key_block_of(keys);
    const auto& slot = slots_[static_cast<size_t>(key_block % kept_)];
    const auto taken_by = key_block_of(slot.keys);
    const bool is_taken = slot.group == group_of(block) && taken_by != key_block &&
                          !layout_.keys_of(block, taken_by).empty();
    return is_taken ? kept_ : key_block % kept_;
  }

  void fill(int64_t n, const Tile& tile) {
    const auto& problem = layout_.problem();
    const auto& block = tile.block();
    auto keys = tile.keys();
    bool may_be_hidden = !tile.is_whole();
    if (n < kept_) {
      // The next blocks of queries may see other keys of this block of keys, so all are packed.
      if (layout_.shown_keys().mask_varies()) keys = layout_.keys_of(block, key_block_of(keys));
      may_be_hidden = problem.may_hide();
    }
    const auto rows = key_rows(problem, problem.value, block, keys, may_be_hidden,
                               values_.data() + n * value_size_);
    for_each_run(
        problem, problem.key, block.batch, block.group, keys, [&](const Rows& run, int64_t first) {
          pack_transposed(run, problem.scale, transposed_keys_.data() + n * key_size_ + first,
                          layout_.tile_stride());
        });
    slots_[static_cast<size_t>(n)] = {group_of(block), keys, rows.matrix, rows.took_some};
  }

  const BlockLayout& layout_;
  const int64_t key_size_, value_size_;
  const int64_t kept_;  // how many blocks of keys are kept
  std::vector<Slot> slots_;
  Buffer<Operand> transposed_keys_, values_;
};

}  // namespace heed::detail
