// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cat.h>
#include <heed/distributed/context_parallel.h>

#include <vector>

#include "distributed/collectives.h"
#include "distributed/differentiable.h"
#include "distributed/sequence_shards.h"

namespace heed::distributed {

namespace {

/// Checks tensor and dim; returns dim from the front.
int64_t checked_dim(const char* function, const at::Tensor& tensor, int64_t dim,
                    const ProcessGroup& group) {
  HEED_CHECK(group, "{}: group must not be null", function);
  HEED_CHECK(tensor.defined(), "{}: tensor must be defined", function);
  HEED_CHECK(dim >= -tensor.dim() && dim < tensor.dim(),
             "{}: dim ({}) must be from {} to {}; tensor {}", function, dim, -tensor.dim(),
             tensor.dim() - 1, c10::str(tensor.sizes()));
  return dim < 0 ? dim + tensor.dim() : dim;
}

}  // namespace

at::Tensor shard_sequence(const at::Tensor& tensor, int64_t dim, const ProcessGroup& group) {
  constexpr auto kFunction = "shard_sequence";
  dim = checked_dim(kFunction, tensor, dim, group);
  const int64_t processes = group->getSize();
  if (processes == 1) return tensor.contiguous();
  const detail::SequenceShards shards{processes, tensor.size(dim)};
  HEED_CHECK(shards.length % (detail::kChunks * processes) == 0,
             "{}: dim {} ({}) must be a multiple of {}, two chunks for each of {} processes; "
             "tensor {}",
             kFunction, dim, shards.length, detail::kChunks * processes, processes,
             c10::str(tensor.sizes()));
  const auto chunk = [&](int64_t n) {
    return tensor.narrow(dim, shards.first(group->getRank(), n), shards.chunk_length());
  };
  return at::cat({chunk(0), chunk(1)}, dim);
}

at::Tensor unshard_sequence(const at::Tensor& tensor, int64_t dim, const ProcessGroup& group) {
  constexpr auto kFunction = "unshard_sequence";
  HEED_CHECK(group, "{}: group must not be null", kFunction);
  const int64_t processes = group->getSize();
  if (processes == 1) {
    checked_dim(kFunction, tensor, dim, group);
    return tensor;
  }
  detail::check_same(group, kFunction, "tensor", [&] {
    dim = checked_dim(kFunction, tensor, dim, group);
    HEED_CHECK(tensor.size(dim) % detail::kChunks == 0,
               "{}: dim {} ({}) must be even, as shard_sequence makes it; tensor {}", kFunction,
               dim, tensor.size(dim), c10::str(tensor.sizes()));
    return c10::str(tensor.sizes(), " ", tensor.scalar_type(), " dim ", dim);
  });
  const detail::SequenceShards shards{processes, tensor.size(dim) * processes};
  const auto all = detail::gather_for_parts(tensor.unsqueeze(0), 0, group, kFunction);  // [P, ..]
  std::vector<at::Tensor> chunks(static_cast<size_t>(detail::kChunks * processes));
  for (int64_t rank = 0; rank < processes; ++rank) {
    for (int64_t n = 0; n < detail::kChunks; ++n) {
      chunks[static_cast<size_t>(shards.chunk(rank, n))] =
          all[rank].narrow(dim, n * shards.chunk_length(), shards.chunk_length());
    }
  }
  return at::cat(chunks, dim);
}

}  // namespace heed::distributed
