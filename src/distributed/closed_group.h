// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>

#include <string>

/// A group is closed when a process leaves an exchange before its end. Otherwise the others would
/// wait, and the next operation would take messages that are still on their way for its own.

namespace heed::distributed::detail {

/// Ends all operations that are running, here and in the other processes, as a timeout does. From
/// then on, every operation of the group throws. Only the first reason counts.
void close_group(c10d::ProcessGroup& group, const std::string& reason) noexcept;

/// Why the group was closed in this process; empty if it was not.
std::string reason_of_closing(c10d::ProcessGroup& group);

/// Closes the group if the backward pass that is running fails from here on, because the others
/// would wait for the operations that follow `operation`. Does nothing outside of a backward pass.
void close_if_backward_fails(c10d::ProcessGroup& group, const std::string& operation);

}  // namespace heed::distributed::detail
