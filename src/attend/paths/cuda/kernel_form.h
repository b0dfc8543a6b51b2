#pragma once

#include "attend/paths/cuda/kernels.h"
#include "attend/paths/paths.h"

namespace heed::detail {

/// A problem with the shapes, strides and types that a kernel takes, by operators that autograd
/// records; what it changes in the results, `original` changes back.
class KernelForm {
 public:
  KernelForm(Kernel kernel, const Problem& problem);

  const Problem& problem() const { return own_; }
  /// The kernel's results as those of the problem.
  Attended original(const Attended& attended) const;

 private:
  void drop_blind_queries();
  void add_queries(int64_t window);
  void pack_documents();
  void pack_padded(const PaddedSequences& padded);
  void group_queries();
  void repeat_keys();
  void merge_scores();
  void align(Kernel kernel);

  const Problem& given_;
  Problem own_;
  int64_t blind_queries_ = 0;  // at the start, which see no key
  int64_t added_queries_ = 0;  // at the start, whose results are dropped
  bool grouped_ = false;       // the query heads of a key head are queries
  at::Tensor order_;           // of documents
};

}  // namespace heed::detail
