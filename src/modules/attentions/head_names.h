// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>

#include <cstdint>

namespace heed::detail {

/// The names by which MultiHeadAttention and GroupQueryAttention differ.
template <typename Impl>
struct HeadNames;

template <>
struct HeadNames<MultiHeadAttentionImpl> {
  static constexpr auto kModule = "MultiHeadAttention", kHeads = "head_nums", kOutput = "fc_out";
  static constexpr bool kHasGroups = false;
  static int64_t heads(const MultiHeadAttentionOptions& options) { return options.head_nums(); }
  static int64_t groups(const MultiHeadAttentionOptions& options) { return options.head_nums(); }
  static auto& output(MultiHeadAttentionImpl& module) { return module.fc_out; }
  static const auto& output(const MultiHeadAttentionImpl& module) { return module.fc_out; }
  static void set(MultiHeadAttentionOptions& options, int64_t heads, int64_t /*groups*/) {
    options.head_nums(heads);
  }
};

template <>
struct HeadNames<GroupQueryAttentionImpl> {
  static constexpr auto kModule = "GroupQueryAttention", kHeads = "head_num", kOutput = "fc_o";
  static constexpr bool kHasGroups = true;
  static int64_t heads(const GroupQueryAttentionOptions& options) { return options.head_num(); }
  static int64_t groups(const GroupQueryAttentionOptions& options) { return options.group_num(); }
  static auto& output(GroupQueryAttentionImpl& module) { return module.fc_o; }
  static const auto& output(const GroupQueryAttentionImpl& module) { return module.fc_o; }
  static void set(GroupQueryAttentionOptions& options, int64_t heads, int64_t groups) {
    options.head_num(heads).group_num(groups);
  }
};

}  // namespace heed::detail
