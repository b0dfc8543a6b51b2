// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace heed {

/// The numbers and sizes of an attention's heads; letters as in attend_options.h.
struct HeadSizes {
  int64_t heads = 0;           ///< H, the query heads
  int64_t groups = 0;          ///< G, the key/value heads
  int64_t head_dim = 0;        ///< D, of queries and keys
  int64_t value_head_dim = 0;  ///< Dv
};

}  // namespace heed
