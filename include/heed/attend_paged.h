// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>
#include <heed/export.h>

namespace heed {

/// `attend_varlen` for keys and values that lie in pages of a pool, as a server keeps them: any mix
/// of sequences with one query and with many, and nothing is copied. Kwon et al. 2023
/// (arXiv:2309.06180). `PagedKVCache` keeps such a pool.
///
/// @code
/// // Sequences of 20 and 40 keys, in pages of 16; the second has 3 queries.
/// auto key_pages = torch::randn({8, 2, 16, 64}), value_pages = torch::randn({8, 2, 16, 64});
/// auto page_table = torch::tensor({{5, 0, 0}, {1, 7, 2}});
/// auto query = torch::randn({4, 8, 64});
/// auto output = heed::attend_paged(query, key_pages, value_pages, page_table,
///                                  /*query_offsets=*/torch::tensor({0, 1, 4}),
///                                  /*key_lengths=*/torch::tensor({20, 40}),
///                                  heed::AttendOptions().causal(true));
/// @endcode
///
/// The last query of a sequence stands at its last key. Pages with which several sequences begin
/// are read once for all of them, if these have at most 16 queries each and there is neither a
/// window nor ALiBi. Under autocast, query is converted to the dtype of the pages.
///
/// Shapes (T is the sum of the N sequences' queries; P pages have room for `page` keys each, a
/// multiple of 16; `AttendOptions::parents` is [T]):
///   query           [T, H, D]         float64, float32, bfloat16 or float16, any strides
///   key_pages       [P, G, page, D]   same dtype and device as query
///   value_pages     [P, G, page, Dv]  same dtype and device as query
///   page_table      [N, n]            int64: the pages of each sequence, in the order of its keys;
///                                     what follows the last page in use may be any numbers
///   query_offsets   [N + 1]           int64 or int32: 0, then where each sequence ends; T last
///   key_lengths     [N]               int64: how many keys each has, no fewer than queries
///   returns         [T, H, Dv]
/// page_table, query_offsets and key_lengths are read on the CPU: on another device they cost a
/// synchronization.
/// Throws c10::ValueError when a shape, dtype, device, number or option is invalid, when a mask, a
/// bias, documents or dropout is given, and when a gradient would be lost.
HEED_API at::Tensor attend_paged(const at::Tensor& query, const at::Tensor& key_pages,
                                 const at::Tensor& value_pages, const at::Tensor& page_table,
                                 const at::Tensor& query_offsets, const at::Tensor& key_lengths,
                                 const AttendOptions& options = {});

}  // namespace heed
