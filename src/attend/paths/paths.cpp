// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paths/paths.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <iterator>

namespace heed {

namespace detail {

namespace {

/// In the order of AttendPath.
constexpr Path kPaths[] = {
    {AttendPath::decode, "decode", decode_path::takes, decode_path::attend,
     block_path::gradients_of_part},
    {AttendPath::block, "block", block_path::takes, block_path::attend,
     block_path::gradients_of_part},
    {AttendPath::fused, "fused", fused_path::takes, fused_path::attend, nullptr},
    {AttendPath::flash, "flash", flash_path::takes, flash_path::attend, nullptr},
    {AttendPath::efficient, "efficient", efficient_path::takes, efficient_path::attend, nullptr},
    {AttendPath::query_blocks, "query_blocks", query_blocks_path::takes, query_blocks_path::attend,
     query_blocks_path::gradients_of_part},
    {AttendPath::math, "math", math_path::takes, math_path::attend, math_path::gradients_of_part},
};

}  // namespace

const Path& path_of(AttendPath path) {
  const auto row = static_cast<size_t>(path);
  TORCH_INTERNAL_ASSERT(row < std::size(kPaths) && kPaths[row].path == path, "unknown AttendPath");
  return kPaths[row];
}

}  // namespace detail

std::string_view to_string(AttendPath path) { return detail::path_of(path).name; }

}  // namespace heed
