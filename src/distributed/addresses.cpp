// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/addresses.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

namespace heed::distributed::detail {

namespace {

class Socket {
 public:
  explicit Socket(const addrinfo& address, int flags = 0)
      : descriptor_(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | flags, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& host, uint16_t port, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  const auto error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    C10_THROW_ERROR(DistError, fmt::format("init_process_group: address {} is unknown: {}", host,
                                           ::gai_strerror(error)));
  }
  return {found, &::freeaddrinfo};
}

/// Whether the socket is connected to itself. That can happen where nothing listens at the port:
/// the system may choose the same port for the socket's own end.
bool is_own_peer(const Socket& socket, const addrinfo& peer) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  return ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
         size == peer.ai_addrlen && std::memcmp(&own, peer.ai_addr, size) == 0;
}

/// Whether a connection can be made within the timeout.
bool can_connect(const addrinfo& address, std::chrono::milliseconds timeout) {
  const Socket socket(address, SOCK_NONBLOCK);
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return false;
    pollfd connected{socket.get(), POLLOUT, 0};
    if (::poll(&connected, 1, static_cast<int>(timeout.count())) != 1) return false;
  }
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 && !is_own_peer(socket, address);
}

}  // namespace

std::string local_address_towards(const std::string& host) {
  constexpr uint16_t kAnyPort = 9;
  const auto addresses = resolve(host, kAnyPort, SOCK_DGRAM);
  for (const auto* address = addresses.get(); address != nullptr; address = address->ai_next) {
    // `connect` sends nothing for datagrams: it only chooses a route.
    const Socket socket(*address);
    if (::connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    auto* generic = reinterpret_cast<sockaddr*>(&own);
    std::array<char, NI_MAXHOST> text{};
    if (::getsockname(socket.get(), generic, &size) == 0 &&
        ::getnameinfo(generic, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
      return text.data();
    }
  }
  C10_THROW_ERROR(DistError, fmt::format("init_process_group: no route to {}", host));
}

int listen_at(const std::string& host, uint16_t port) {
  constexpr int kBacklog = 4096;
  const auto addresses = resolve(host, port, SOCK_STREAM);
  std::string reason = "no address";
  for (const auto* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Socket socket(*address);
    const int yes = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        ::listen(socket.get(), kBacklog) == 0) {
      return socket.release();
    }
    reason = std::strerror(errno);
  }
  C10_THROW_ERROR(DistError, fmt::format("init_process_group: cannot listen at port {} of {}: {}",
                                         port, host, reason));
}

bool wait_for_listener(const std::string& host, uint16_t port, std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause(20), kLongestAttempt(1000);
  const auto end = Clock::now() + timeout;
  const auto addresses = resolve(host, port, SOCK_STREAM);
  while (true) {
    for (const auto* address = addresses.get(); address != nullptr; address = address->ai_next) {
      const auto rest = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      if (rest.count() <= 0) return false;
      if (can_connect(*address, std::min(rest, kLongestAttempt))) return true;
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace heed::distributed::detail
