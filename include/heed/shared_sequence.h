// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>
#include <heed/export.h>

#include <cstdint>

namespace heed {

/// A sequence of which each of several processes holds a share: the interface through which heed's
/// attentions use it. `heed::distributed::share_sequence` implements it.
class HEED_API SharedSequence {
 public:
  SharedSequence() = default;
  SharedSequence(const SharedSequence&) = delete;
  SharedSequence& operator=(const SharedSequence&) = delete;
  virtual ~SharedSequence();

  /// `attend`, of this process's queries to the keys of all. Letters as in attend_options.h, P is
  /// the number of processes: query [B, H, L / P, D], key [B, G, S / P, D],
  /// value [B, G, S / P, Dv]; returns [B, H, L / P, Dv]. Columns of a mask or bias are those of the
  /// whole sequence.
  virtual at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttendOptions& options) const = 0;
  /// This process's share of a tensor whose dimension `dim` is the whole sequence.
  virtual at::Tensor shard(const at::Tensor& tensor, int64_t dim) const = 0;
  /// The number of processes.
  virtual int64_t processes() const = 0;
};

}  // namespace heed
