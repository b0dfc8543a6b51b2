#include "distributed/addresses.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace heed::distributed::detail {

namespace {

class Socket {
 public:
  explicit Socket(const addrinfo& address)
      : descriptor_(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, 0)) {}
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

}  // namespace

std::string local_address_towards(const std::string& host) {
  constexpr uint16_t kAnyPort = 9;
  const auto addresses = resolve(host, kAnyPort, SOCK_DGRAM);
  for (const auto* address = addresses.get(); address != nullptr; address = address->ai_next) {
    // Sends nothing: it only chooses a route.
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

}  // namespace heed::distributed::detail
