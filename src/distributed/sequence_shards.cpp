// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/sequence_shards.h"

namespace heed::distributed::detail {

bool Visibility::sees(int64_t query_rank, int64_t query_chunk, int64_t key_rank,
                      int64_t key_chunk) const {
  const auto offset = top_left ? 0 : keys.length - queries.length;
  const auto first_query = queries.first(query_rank, query_chunk) + offset;
  const auto last_query = first_query + queries.chunk_length() - 1;
  const auto first_key = keys.first(key_rank, key_chunk);
  const auto last_key = first_key + keys.chunk_length() - 1;
  if (last_query < first_query || last_key < first_key) return false;
  // The windows may be as large as any int64: they are not added to.
  return (!left || first_query - last_key <= *left) && (!right || first_key - last_query <= *right);
}

bool Visibility::sees(int64_t query_rank, int64_t key_rank, int64_t key_chunk) const {
  return sees(query_rank, 0, key_rank, key_chunk) || sees(query_rank, 1, key_rank, key_chunk);
}

}  // namespace heed::distributed::detail
