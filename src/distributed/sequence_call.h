// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <heed/attend_options.h>
#include <heed/distributed/process_group.h>

#include <cstdint>

#include "core/problem.h"
#include "distributed/sequence_shards.h"

namespace heed::distributed::detail {

/// One call of attention to sequences that processes share, as one process sees it. Each process
/// has two chunks of queries and two of keys, numbers 0 and 1.
class SequenceCall : public torch::CustomClassHolder {
 public:
  /// Checks the arguments, and that all processes have the same. Errors begin with `function`.
  SequenceCall(const char* function, const at::Tensor& query, const at::Tensor& key,
               const at::Tensor& value, const ProcessGroup& group, const AttendOptions& options);

  const char* function() const { return function_; }
  const ProcessGroup& group() const { return group_; }
  int64_t rank() const { return group_->getRank(); }
  int64_t processes() const { return group_->getSize(); }
  const Visibility& visibility() const { return visibility_; }
  /// The options as given, but with key_documents of the whole sequence.
  const AttendOptions& options() const { return options_; }

  /// Whether chunk `query` of this process attends to a key chunk of process `owner`. A process's
  /// own chunks always do, so that each query has a result, and its sink.
  bool attends(int64_t query, int64_t owner, int64_t key) const {
    return (owner == rank() && query == key) || visibility_.sees(rank(), query, owner, key);
  }
  /// The options for chunk `query` of this process and chunk `key` of process `owner`.
  AttendOptions options_of(int64_t query, int64_t owner, int64_t key) const;
  /// The block of a mask or bias [..., L / P or 1, S] for these two chunks.
  at::Tensor bias_block(const at::Tensor& scores, int64_t query, int64_t owner, int64_t key) const;
  heed::detail::Part part(int64_t query, int64_t owner, int64_t key, bool for_backward) const;
  /// The part with all queries and keys, of the heads from `first_head` on.
  heed::detail::Part part_of_heads(int64_t first_head) const;

 private:
  void share_key_and_documents();

  const char* function_;
  ProcessGroup group_;
  AttendOptions options_;
  Visibility visibility_;
  int64_t heads_;
  uint64_t dropout_key_;
};

}  // namespace heed::distributed::detail
