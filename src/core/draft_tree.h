// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Drafted tokens of a sequence, which form a tree: token i follows token parents[i] < i. At a
/// root, parents[i] is -1.

namespace heed::detail {

/// Checks the parents of one tree; errors name them `name`[first + i].
void check_parents(const char* function, const std::string& name, int64_t first,
                   at::IntArrayRef parents);

/// Checks the parents of all tokens; sequence n has counts[n] of them.
void check_trees(const char* function, at::IntArrayRef counts, at::IntArrayRef parents);

/// Whether the tree is a chain, in which each token follows the one before it.
bool is_chain(at::IntArrayRef parents);

/// The depth of each token: how many tokens of the tree are before it on its path.
std::vector<int64_t> depths_of(at::IntArrayRef parents);

/// The mask [N, 1, L, S] of N sequences whose last L tokens are trees of drafts: a draft sees its
/// path and the keys before the tree. `parents` is int64 [N, L] on the CPU; sequence n has
/// key_lengths[n] keys. A window counts tokens along the path.
at::Tensor tree_mask(const at::Tensor& parents, at::IntArrayRef key_lengths, int64_t key_length,
                     std::optional<int64_t> window);

}  // namespace heed::detail
