#include "distributed/sequence_shards.h"

namespace heed::distributed::detail {

bool Visibility::sees(int64_t query_rank, int64_t query_chunk, int64_t key_rank,
                      int64_t key_chunk) const {
  // The last query is at the position of the last key.
  const auto offset = keys.length - queries.length;
  const auto first_query = queries.first(query_rank, query_chunk) + offset;
  const auto last_query = first_query + queries.chunk_length() - 1;
  const auto first_key = keys.first(key_rank, key_chunk);
  const auto last_key = first_key + keys.chunk_length() - 1;
  if (last_query < first_query || last_key < first_key) return false;
  if (causal && first_key > last_query) return false;
  if (!window) return true;
  return last_key > first_query - *window && (causal || first_key < last_query + *window);
}

bool Visibility::sees(int64_t query_rank, int64_t key_rank, int64_t key_chunk) const {
  return sees(query_rank, 0, key_rank, key_chunk) || sees(query_rank, 1, key_rank, key_chunk);
}

}  // namespace heed::distributed::detail
