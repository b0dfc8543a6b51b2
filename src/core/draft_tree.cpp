// SPDX-License-Identifier: BSD-3-Clause
#include "core/draft_tree.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.h"

namespace heed::detail {

void check_parents(const char* function, const std::string& name, int64_t first,
                   at::IntArrayRef parents) {
  const auto count = static_cast<int64_t>(parents.size());
  for (int64_t i = 0; i < count; ++i) {
    HEED_CHECK(parents[i] >= -1 && parents[i] < i,
               "{}: {}[{}] ({}) must be at least -1 and below {}: a token that stands before it in "
               "its sequence",
               function, name, first + i, parents[i], i);
  }
}

void check_trees(const char* function, at::IntArrayRef counts, at::IntArrayRef parents) {
  int64_t first = 0;
  for (const auto count : counts) {
    check_parents(function, "parents", first, parents.slice(first, count));
    first += count;
  }
}

bool is_chain(at::IntArrayRef parents) {
  for (size_t i = 0; i < parents.size(); ++i) {
    if (parents[i] != static_cast<int64_t>(i) - 1) return false;
  }
  return true;
}

std::vector<int64_t> depths_of(at::IntArrayRef parents) {
  std::vector<int64_t> depths;
  depths.reserve(parents.size());
  for (const auto parent : parents) depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
  return depths;
}

at::Tensor tree_mask(const at::Tensor& parents, at::IntArrayRef key_lengths, int64_t key_length,
                     std::optional<int64_t> window) {
  const auto count = parents.size(0), length = parents.size(1);
  auto mask = at::zeros({count, 1, length, key_length}, at::kBool);
  auto* row = mask.mutable_data_ptr<bool>();
  for (int64_t n = 0; n < count; ++n) {
    const at::IntArrayRef tree(parents.const_data_ptr<int64_t>() + n * length, length);
    const auto depths = depths_of(tree);
    const auto before = key_lengths[n] - length;  // number of keys before the tree
    for (int64_t i = 0; i < length; ++i, row += key_length) {
      const auto position = before + depths[i];
      const auto oldest = window ? std::max<int64_t>(position - *window + 1, 0) : 0;
      if (oldest < before) std::fill(row + oldest, row + before, true);
      for (auto j = i; j >= 0 && before + depths[j] >= oldest; j = tree[j]) row[before + j] = true;
    }
  }
  return mask;
}

}  // namespace heed::detail
