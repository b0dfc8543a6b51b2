#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Drafted tokens of a sequence that follow one another in a tree: parents[i] < i is the token that
/// token i follows, or -1 at the root.

namespace heed::detail {

/// Checks the parents of one tree; errors name them `name`[first + i].
void check_parents(const char* function, const std::string& name, int64_t first,
                   at::IntArrayRef parents);

/// Whether each token follows the one before it.
bool is_chain(at::IntArrayRef parents);

/// How many tokens of the tree each one follows.
std::vector<int64_t> depths_of(at::IntArrayRef parents);

/// What the last L tokens of each of N sequences see if they are trees, `parents` [N, L] int64 on
/// the CPU: bool [N, 1, L, S], where sequence n has key_lengths[n] keys. The window counts along
/// the path.
at::Tensor tree_mask(const at::Tensor& parents, at::IntArrayRef key_lengths, int64_t key_length,
                     std::optional<int64_t> window);

}  // namespace heed::detail
