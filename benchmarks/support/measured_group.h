// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>

#include <cstdint>

namespace heed::bench {

/// The bytes that a process has sent in a measured group, and how long it has waited.
struct Traffic {
  /// Bytes of tensors that it handed over for other processes, by sends and all-to-alls. Not
  /// counted are all-gathers: attention uses them to compare a few bytes before it begins.
  int64_t bytes = 0;
  double waited = 0.0;  ///< seconds in which it waited for operations to end
};

/// The processes of `group`, measured. It has the operations that attention over processes uses.
/// `traffic` must outlive the result.
distributed::ProcessGroup measure(const distributed::ProcessGroup& group, Traffic& traffic);

}  // namespace heed::bench
