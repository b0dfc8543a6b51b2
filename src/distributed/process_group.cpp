// SPDX-License-Identifier: BSD-3-Clause
#include <heed/distributed/process_group.h>
#include <heed/version.h>

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef HEED_WITH_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <sstream>
#include <thread>
#include <utility>

#include "core/lack_of_memory.h"
#include "distributed/addresses.h"
#include "distributed/collectives.h"
#include "distributed/launch_environment.h"

namespace heed::distributed {

namespace {

using GlooOptions = c10::intrusive_ptr<c10d::ProcessGroupGloo::Options>;
using Store = c10::intrusive_ptr<c10d::Store>;
using detail::LaunchEnvironment;

constexpr auto kInit = "init_process_group";
constexpr auto kSubgroup = "subgroup";

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{} s", static_cast<double>(time.count()) / 1e3);
}

[[noreturn]] void throw_unreached(const LaunchEnvironment& environment,
                                  std::chrono::milliseconds timeout) {
  C10_THROW_ERROR(DistError, fmt::format("{}: rank {} reached no store at port {} of {} in {}",
                                         kInit, environment.rank, environment.master_port,
                                         environment.master_address, seconds(timeout)));
}

Store connect(const LaunchEnvironment& environment, const InitOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = environment.master_port;
  store.isServer = environment.rank == 0 && !environment.launcher_has_store;
  store.waitWorkers = false;
  store.timeout = options.timeout();
  const auto& host = environment.master_address;
  if (store.isServer) {
    store.masterListenFd = detail::listen_at(host, store.port);
  } else if (!detail::wait_for_listener(host, store.port, options.timeout())) {
    // TCPStore itself would try for up to three times as long, and print warnings.
    throw_unreached(environment, options.timeout());
  }
  try {
    return c10::make_intrusive<c10d::PrefixStore>(environment.store_prefix,
                                                  c10::make_intrusive<c10d::TCPStore>(host, store));
  } catch (const std::exception& error) {
    if (heed::detail::is_lack_of_memory(error)) throw;
    throw_unreached(environment, options.timeout());
  }
}

std::string arrival(int64_t rank) { return fmt::format("arrived/{}", rank); }

constexpr auto kPause = std::chrono::milliseconds(20);

// Keys of the store: how many processes have arrived, and how many have read that WORLD_SIZEs
// differ; rank and WORLD_SIZE of the first process, and of one with another WORLD_SIZE.
constexpr auto kArrivals = "arrivals", kReaders = "readers";
constexpr auto kFirstSize = "first_world_size", kOtherSize = "other_world_size";

/// Writes this process's WORLD_SIZE into the store if it is the first, or differs from the first.
void write_world_size(const LaunchEnvironment& environment, Store& store) {
  const auto size = fmt::format("{}", environment.world_size);
  const auto own = fmt::format("{} {}", environment.rank, size);
  const auto first = store->compareSet(kFirstSize, "", own);
  if (first.substr(first.find(' ') + 1) != size) {
    store->set(kOtherSize, std::vector<uint8_t>(own.begin(), own.end()));
  }
}

/// Describes how WORLD_SIZEs differ; empty if they do not.
std::string difference_of_world_sizes(Store& store) {
  if (!store->check({kOtherSize})) return "";
  const auto read = [&](const char* key) {
    const auto bytes = store->get(key);
    std::istringstream text(std::string(bytes.begin(), bytes.end()));
    std::pair<int64_t, int64_t> rank_and_size;
    text >> rank_and_size.first >> rank_and_size.second;
    return rank_and_size;
  };
  auto one = read(kFirstSize), other = read(kOtherSize);
  if (one.first > other.first) std::swap(one, other);
  return fmt::format("WORLD_SIZE of rank {} ({}) must equal that of rank {} ({})", other.first,
                     other.second, one.first, one.second);
}

/// Waits until all processes have read that WORLD_SIZEs differ, if this process holds the store,
/// which ends with it. Waits for 2 s at most, because they may be gone.
void await_readers(const LaunchEnvironment& environment, Store& store) {
  const bool holds_store = environment.rank == 0 && !environment.launcher_has_store;
  auto readers = store->add(kReaders, 1);
  for (int64_t i = 0; holds_store && i < 100 && readers < store->add(kArrivals, 0); ++i) {
    std::this_thread::sleep_for(kPause);
    readers = store->add(kReaders, 0);
  }
}

/// Waits until all ranks have arrived, WORLD_SIZEs differ, or the time is up. Returns the ranks
/// that have not arrived.
std::vector<int64_t> missing_ranks(int64_t size, std::chrono::milliseconds timeout, Store& store) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::vector<int64_t> missing(static_cast<size_t>(size));
  std::iota(missing.begin(), missing.end(), int64_t{0});
  // Asks again and again, because Store::wait prints warnings of its own.
  while (true) {
    missing.erase(std::remove_if(missing.begin(), missing.end(),
                                 [&](auto rank) { return store->check({arrival(rank)}); }),
                  missing.end());
    if (missing.empty() || std::chrono::steady_clock::now() >= end) return missing;
    if (store->check({kOtherSize})) return missing;
    std::this_thread::sleep_for(kPause);
  }
}

/// Waits until every rank has arrived. Throws if one arrives twice.
void arrive(const LaunchEnvironment& environment, const InitOptions& options, Store& store) {
  bool is_taken = false;
  std::vector<int64_t> missing;
  std::string difference;
  try {
    // WORLD_SIZE is written before the rank arrives: a process that sees all ranks also sees their
    // WORLD_SIZEs.
    store->add(kArrivals, 1);
    write_world_size(environment, store);
    is_taken = store->add(arrival(environment.rank), 1) != 1;
    if (!is_taken) missing = missing_ranks(environment.world_size, options.timeout(), store);
    if (!is_taken) difference = difference_of_world_sizes(store);
    if (!difference.empty()) await_readers(environment, store);
  } catch (const std::exception& error) {
    if (heed::detail::is_lack_of_memory(error)) throw;
    C10_THROW_ERROR(DistError, fmt::format("{}: rank {} lost the store, while it waited for others",
                                           kInit, environment.rank));
  }
  if (is_taken) {
    C10_THROW_ERROR(DistError,
                    fmt::format("{}: two processes have RANK {}", kInit, environment.rank));
  }
  HEED_CHECK(difference.empty(), "{}: {}", kInit, difference);
  if (missing.empty()) return;
  C10_THROW_ERROR(DistError,
                  fmt::format("{}: {} {} of {} did not arrive within {}", kInit,
                              missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "),
                              environment.world_size, seconds(options.timeout())));
}

GlooOptions gloo_options(const LaunchEnvironment& environment, const InitOptions& options) {
  const auto address = options.address().value_or(
      environment.one_machine ? "127.0.0.1"
                              : detail::local_address_towards(environment.master_address));
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout());
  try {
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  } catch (const std::exception& error) {
    if (heed::detail::is_lack_of_memory(error)) throw;
    HEED_CHECK(false, "{}: address ({}) must be an address of this machine", kInit, address);
  }
  return gloo;
}

#ifdef HEED_WITH_NCCL
void add_nccl(c10d::ProcessGroup& group, const Store& store, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  group.setBackend(at::kCUDA, c10d::ProcessGroup::BackendType::NCCL,
                   c10::make_intrusive<c10d::ProcessGroupNCCL>(store, group.getRank(),
                                                               group.getSize(), options));
}
#endif

ProcessGroup make_group(const Store& store, int64_t rank, int64_t size, const GlooOptions& gloo) {
  const auto small_rank = static_cast<int>(rank), small_size = static_cast<int>(size);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, small_rank, small_size);
  group->setBackend(
      at::kCPU, c10d::ProcessGroup::BackendType::GLOO,
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, small_rank, small_size, gloo));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
#ifdef HEED_WITH_NCCL
  if (at::hasCUDA()) add_nccl(*group, store, gloo->timeout);
#endif
  return group;
}

/// Ignores SIGPIPE, unless the program handles it. Gloo writes to connections that a dead process
/// has closed; by default, the signal would end this process before it could report an error.
void ignore_broken_connections() {
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

ProcessGroup init_process_group(const InitOptions& options) {
  HEED_CHECK(options.timeout().count() >= 1, "{}: timeout ({} ms) must be at least 1 ms", kInit,
             options.timeout().count());
  const auto environment = detail::read_launch_environment(kInit);
  const auto gloo = gloo_options(environment, options);
  ignore_broken_connections();
  auto store = connect(environment, options);
  arrive(environment, options, store);
  ProcessGroup group;
  try {
    group = make_group(c10::make_intrusive<c10d::PrefixStore>("world", store), environment.rank,
                       environment.world_size, gloo);
  } catch (const std::exception& error) {
    detail::throw_failure(environment.rank, environment.world_size, kInit, error);
  }
  detail::check_same(
      group, kInit, "heed's version",
      fmt::format("{}.{}.{}", HEED_VERSION_MAJOR, HEED_VERSION_MINOR, HEED_VERSION_PATCH));
  detail::check_same(group, kInit, "LibTorch's version", TORCH_VERSION);
  return group;
}

ProcessGroup subgroup(const ProcessGroup& group, const std::vector<int64_t>& ranks,
                      const std::string& name) {
  HEED_CHECK(group, "{}: group must not be null", kSubgroup);
  for (const auto rank : ranks) {
    HEED_CHECK(rank >= 0 && rank < group->getSize(), "{}: rank {} must be from 0 to {}", kSubgroup,
               rank, group->getSize() - 1);
    HEED_CHECK(std::count(ranks.begin(), ranks.end(), rank) == 1,
               "{}: rank {} must occur once in ranks [{}]", kSubgroup, rank,
               fmt::join(ranks, ", "));
  }
  const auto own = std::find(ranks.begin(), ranks.end(), group->getRank());
  HEED_CHECK(own != ranks.end(), "{}: ranks [{}] must contain this process's rank ({})", kSubgroup,
             fmt::join(ranks, ", "), group->getRank());
  HEED_CHECK(group->getStore(), "{}: group must have a store", kSubgroup);
  if (const auto reason = detail::reason_of_closing(*group); !reason.empty()) {
    C10_THROW_ERROR(DistError, fmt::format("{}: the group is closed: {}", kSubgroup, reason));
  }
  const auto gloo =
      c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupGloo>(group->getBackend(at::kCPU));
  HEED_CHECK(gloo, "{}: group must use Gloo for CPU tensors", kSubgroup);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, group->getStore());
  return detail::run_named(*group, fmt::format("{} {}", kSubgroup, name), [&] {
    return make_group(store, own - ranks.begin(), static_cast<int64_t>(ranks.size()),
                      gloo->getOptions());
  });
}

}  // namespace heed::distributed
