// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace heed::distributed::detail {

/// The address of this machine from which packets to `host` leave.
/// Throws c10::DistError when the host is unknown or cannot be reached.
std::string local_address_towards(const std::string& host);

/// A socket that listens at `port` of this machine's address `host` alone. The caller owns it.
/// Throws c10::DistError when the port is taken, or the address is not this machine's.
int listen_at(const std::string& host, uint16_t port);

/// Waits until a socket listens at `port` of `host`; false if none did in time.
/// Throws c10::DistError when the host is unknown.
bool wait_for_listener(const std::string& host, uint16_t port, std::chrono::milliseconds timeout);

}  // namespace heed::distributed::detail
