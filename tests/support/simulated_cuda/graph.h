// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>

/// CUDA graphs of the simulated device, in place of at::cuda::CUDAGraph.

namespace heed::test {

class Recording;

/// The operators that ran on the device during a capture. It keeps the memory that was allocated
/// meanwhile.
class CapturedGraph {
 public:
  CapturedGraph();
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  /// Runs the operators again, on the memory that they had, and no code but theirs. Throws where
  /// memory from before the capture was freed since.
  void replay() const;
  int64_t launches() const;

 private:
  friend class Capture;
  std::shared_ptr<Recording> recording_;
};

/// While it lives, all threads' operators on the device are recorded. As on a real device,
///
/// - waiting for the device throws, and so does copying from memory of the host that is not pinned;
/// - nothing has happened when it ends: memory holds what it held before, and results hold NaN
///   until the first replay.
///
/// What a real device allows and heed must not do throws, too: copies from pinned memory, which
/// every replay would read again, and random numbers.
class Capture {
 public:
  explicit Capture(CapturedGraph& graph);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
};

}  // namespace heed::test
