// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "attend/paths/cuda/kernels.h"
#include "attend/paths/paths.h"

namespace heed::detail {

/// Changes a problem so that a kernel takes its shapes, strides and dtypes. Autograd records these
/// operators. `original` changes the kernel's results back.
class KernelForm {
 public:
  KernelForm(Kernel kernel, const Problem& problem);

  const Problem& problem() const { return own_; }
  /// Returns the results of the given problem from those of `problem()`.
  Attended original(const Attended& attended) const;

 private:
  void drop_blind_queries();
  void add_queries(int64_t left_window);
  void pack_padded(const PaddedSequences& padded);
  void group_queries();
  void repeat_keys();
  void merge_scores();
  void align(Kernel kernel);
  at::Tensor lse_without_keys(const at::Tensor& like) const;

  const Problem& given_;
  Problem own_;
  int64_t blind_queries_ = 0;  // removed from the start: they see no key
  int64_t added_queries_ = 0;  // added at the start; their results are dropped
  bool grouped_ = false;       // query heads of a group have become queries
  at::Tensor order_;           // of tokens sorted by document; see SortedDocuments
};

}  // namespace heed::detail
