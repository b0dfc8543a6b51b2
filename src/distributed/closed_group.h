#pragma once

#include <heed/distributed/process_group.h>

#include <string>

/// A process that leaves an exchange before its end leaves messages on their way, and others that
/// wait. The next operation would take these messages for its own. So the group is closed.

namespace heed::distributed::detail {

/// Ends what is under way, here and in the other processes, as after a timeout. From then on,
/// every operation of the group throws. Only the first reason counts.
void close_group(c10d::ProcessGroup& group, const std::string& reason) noexcept;

/// Why the group was closed in this process; empty if it was not.
std::string reason_of_closing(c10d::ProcessGroup& group);

/// In a backward pass: closes the group if the pass fails from here on, because the others wait for
/// what would have followed `operation`. Elsewhere it does nothing.
void close_if_backward_fails(c10d::ProcessGroup& group, const std::string& operation);

}  // namespace heed::distributed::detail
