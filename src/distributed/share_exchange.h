// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/sequence_call.h"

namespace heed::distributed::detail {

/// The key and value of a chunk, or their gradients, on their way to this process.
struct Arrival {
  int64_t n;  // the number of the chunk, 0 or 1
  std::string operation;
  at::Tensor buffer;
  c10::intrusive_ptr<c10d::Work> work;
};

/// Keys and values go from process to process, chunk by chunk: in step s a process has those of
/// process rank - s, while those of the next step arrive. Chunks that no query of a process sees
/// are not sent to it.
class ShareExchange {
 public:
  /// key [B, G, S / P, D] and value [B, G, S / P, Dv] of this process.
  ShareExchange(const SequenceCall& call, const at::Tensor& key, const at::Tensor& value);

  /// Called with the process that owns a chunk, the chunk's number, 0 or 1, and its key and value
  /// [B, G, S / (2 P), D or Dv].
  using Visit =
      std::function<void(int64_t owner, int64_t n, const at::Tensor& key, const at::Tensor& value)>;
  void for_each_share(const Visit& visit, const std::function<void(int64_t step)>& end_step = {});

 private:
  std::vector<Arrival> start(int64_t step);

  const SequenceCall& call_;
  at::Tensor key_, value_;
  std::array<at::Tensor, kChunks> packed_;
  std::vector<c10::intrusive_ptr<c10d::Work>> sent_;
};

/// Sends gradients of keys and values back to the process that has the keys, and sums them there.
class GradientReturn {
 public:
  /// `key` and `value` are those of ShareExchange.
  GradientReturn(const SequenceCall& call, const at::Tensor& key, const at::Tensor& value);

  /// Adds what this process has found for chunk `n` of process `owner`.
  void give(int64_t owner, int64_t n, const at::Tensor& key, const at::Tensor& value);
  /// Ends a step of ShareExchange.
  void end_step(int64_t step);
  /// Returns the gradients {key, value}, in the dtype of the computation.
  std::pair<at::Tensor, at::Tensor> finish();

 private:
  void add(int64_t n, const at::Tensor& key, const at::Tensor& value);
  void take(const std::vector<Arrival>& arrivals);

  const SequenceCall& call_;
  at::Tensor key_, value_;  // sums of the gradients
  std::vector<Arrival> arrivals_;
  std::vector<std::pair<at::Tensor, c10::intrusive_ptr<c10d::Work>>> sent_;
};

}  // namespace heed::distributed::detail
