// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

/// How a sequence is split among processes: into 2 P chunks, of which process r holds number r and
/// number 2 P - 1 - r. Causal attention is then the same work for all.

namespace heed::distributed::detail {

inline constexpr int64_t kChunks = 2;  ///< of one process

struct SequenceShards {
  int64_t processes;
  int64_t length;  ///< of the whole sequence, a multiple of 2 * processes

  int64_t chunk_length() const { return length / (kChunks * processes); }
  /// The number that chunk n of a process, 0 or 1, has in the sequence.
  int64_t chunk(int64_t rank, int64_t n) const { return n == 0 ? rank : 2 * processes - 1 - rank; }
  /// The position in the sequence where chunk n of a process begins.
  int64_t first(int64_t rank, int64_t n) const { return chunk(rank, n) * chunk_length(); }
};

/// Chunk n of a process's share [B, H, L / P, ...].
inline at::Tensor chunk_of(const at::Tensor& share, int64_t n) {
  const auto length = share.size(2) / kChunks;
  return share.narrow(2, n * length, length);
}

/// Which keys causal and windows let queries see, chunk by chunk.
struct Visibility {
  SequenceShards queries, keys;
  /// A query at position p sees keys from p - left to p + right. A side without number is
  /// unbounded.
  std::optional<int64_t> left, right;
  bool top_left = false;  ///< whether query i is at position i; else the last is at the last key

  /// Whether any query of one chunk may see a key of the other.
  bool sees(int64_t query_rank, int64_t query_chunk, int64_t key_rank, int64_t key_chunk) const;
  /// Whether any query of a process may see a key of the chunk.
  bool sees(int64_t query_rank, int64_t key_rank, int64_t key_chunk) const;
};

}  // namespace heed::distributed::detail
