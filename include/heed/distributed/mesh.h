// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/distributed/process_group.h>
#include <heed/export.h>

#include <cstdint>

namespace heed::distributed {

/// Sizes of a `Mesh`. Their product must equal the number of processes.
struct HEED_API MeshOptions {
  /// Number of parts of the batch.
  HEED_NUMBER_ARG(int64_t, data) = 1;
  /// Number of parts of each sequence.
  HEED_NUMBER_ARG(int64_t, context) = 1;
  /// Number of parts of each weight.
  HEED_NUMBER_ARG(int64_t, tensor) = 1;
};

/// The processes of a group in three dimensions: those that split the batch, those that split the
/// sequence, and those that split the weights. The rank is
/// (data_rank * context size + context_rank) * tensor size + tensor_rank, so that the processes
/// that exchange most, those of a tensor group, are next to each other.
///
/// @code
/// heed::distributed::Mesh mesh(group, heed::distributed::MeshOptions().data(2).tensor(2));
/// heed::distributed::parallelize(*model, mesh.tensor());
/// heed::distributed::DataParallel parallel(model, mesh.replicas());
/// @endcode
class HEED_API Mesh {
 public:
  /// All processes of `group` must construct it together.
  /// Throws c10::ValueError in all processes when their sizes differ, or the product of the sizes
  /// is not the size of the group; c10::DistError when a process does not answer.
  Mesh(const ProcessGroup& group, const MeshOptions& options);

  /// The group of this process along each dimension. A dimension of size 1 has a group of one
  /// process.
  const ProcessGroup& data() const { return data_; }
  const ProcessGroup& context() const { return context_; }  ///< see `data`
  const ProcessGroup& tensor() const { return tensor_; }    ///< see `data`

  /// The processes that hold the same weights as this one: data and context together. Their
  /// gradients are averaged.
  const ProcessGroup& replicas() const { return replicas_; }

  /// The coordinates of this process.
  int64_t data_rank() const { return data_->getRank(); }
  int64_t context_rank() const { return context_->getRank(); }  ///< see `data_rank`
  int64_t tensor_rank() const { return tensor_->getRank(); }    ///< see `data_rank`

 private:
  ProcessGroup data_, context_, tensor_, replicas_;
};

}  // namespace heed::distributed
