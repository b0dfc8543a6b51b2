// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/distributed/context_parallel.h>
#include <heed/distributed/data_parallel.h>
#include <heed/distributed/mesh.h>
#include <heed/distributed/process_group.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <filesystem>

#include "distributed/addresses.h"
#include "distributed/collectives.h"
#include "distributed/counting_group.h"
#include "distributed/processes.h"
#include "support/expect.h"
#include "support/seeds.h"

namespace heed::test::of_process_group {
namespace {

using distributed::init_process_group;
using distributed::InitOptions;
using distributed::subgroup;

const std::string kBriefly = std::to_string(kBrief.count()) + " s";

TEST(ProcessGroup, JoinsAllProcesses) {
  in_processes(3, [](const ProcessGroup& group) {
    EXPECT_EQ(group->getSize(), 3);
    std::vector<at::Tensor> tensors = {at::full({2}, static_cast<double>(group->getRank() + 1))};
    group->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0][1].item<float>(), 6.0F);
  });
}

TEST(ProcessGroup, HasSubgroups) {
  in_processes(4, [](const ProcessGroup& group) {
    const int64_t rank = group->getRank();
    const auto pair =
        subgroup(group, {rank % 2 + 2, rank % 2}, "parity" + std::to_string(rank % 2));
    EXPECT_EQ(pair->getRank(), rank < 2 ? 1 : 0);
    std::vector<at::Tensor> tensors = {at::full({1}, static_cast<double>(rank))};
    pair->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0].item<float>(), static_cast<float>(2 + 2 * (rank % 2)));
  });
}

/// Runs that follow each other use one port. The system keeps a connection that the listener closed
/// for a minute.
TEST(ProcessGroup, ListensWhereAConnectionHasJustEnded) {
  const auto listener = distributed::detail::listen_at("127.0.0.1", 0);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::getsockname(listener, generic, &size), 0);
  const auto client = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(client, generic, size), 0);
  ::close(::accept(listener, nullptr, nullptr));
  char byte = 0;
  EXPECT_EQ(::read(client, &byte, 1), 0);  // the connection has been closed
  ::close(client);
  ::close(listener);
  ::close(distributed::detail::listen_at("127.0.0.1", ntohs(address.sin_port)));
}

/// A group of c10d alone, as a program may have made it.
ProcessGroup make_own_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  using c10d::ProcessGroupGloo;
  constexpr auto kGloo = c10d::ProcessGroup::BackendType::GLOO;
  const auto options = ProcessGroupGloo::Options::create(kPatient);
  options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, kGloo,
                    c10::make_intrusive<ProcessGroupGloo>(store, rank, size, options));
  group->setDefaultBackend(kGloo);
  return group;
}

TEST(ProcessGroup, MayBeMadeByTheProgram) {
  const auto path = testing::TempDir() + "heed_store_" + std::to_string(::getpid());
  const auto ended = run_processes(2, [&](int64_t rank) {
    const auto store = c10::make_intrusive<c10d::FileStore>(path, 2);
    const auto group = make_own_group(store, static_cast<int>(rank), 2);
    torch::manual_seed(static_cast<uint64_t>(rank));
    torch::nn::Linear model(4, 3);
    distributed::DataParallel parallel(model, group);
    const auto x = at::full({1, 4}, static_cast<double>(rank));
    parallel.forward(model, x).sum().backward();
    EXPECT_TRUE(model->weight.grad().equal(at::full({3, 4}, 0.5)));

    torch::manual_seed(moved(3));
    const auto whole = at::randn({1, 2, 8, 4});
    const auto causal = AttendOptions().causal(true);
    const auto own = distributed::shard_sequence(whole, 2, group);
    const auto output = distributed::ring_attend(own, own, own, group, causal);
    const auto expected = attend(whole, whole, whole, causal);
    EXPECT_TRUE(is_close(output, distributed::shard_sequence(expected, 2, group), 1e-6));

    const distributed::Mesh mesh(group, distributed::MeshOptions().tensor(2));
    EXPECT_EQ(mesh.tensor()->getSize(), 2);
    group->barrier()->wait();
  });
  for (const auto& process : ended) EXPECT_EQ(process.exit_code, 0) << process.output;
  std::filesystem::remove(path);
}

TEST(SubgroupErrors, NameTheRank) {
  EXPECT_ERROR("subgroup: group must not be null", subgroup(ProcessGroup(), {0}, "pair"));
  in_processes(3, [](const ProcessGroup& group) {
    const auto error = [&](const std::vector<int64_t>& ranks) {
      return value_error([&] { subgroup(group, ranks, "pair"); });
    };
    EXPECT_EQ(error({0, 3}), "subgroup: rank 3 must be from 0 to 2");
    EXPECT_EQ(error({-1}), "subgroup: rank -1 must be from 0 to 2");
    EXPECT_EQ(error({0, 1, 2, 1}), "subgroup: rank 1 must occur once in ranks [0, 1, 2, 1]");
    const int64_t own = group->getRank(), other = (own + 1) % 3;
    EXPECT_EQ(error({other}), "subgroup: ranks [" + std::to_string(other) +
                                  "] must contain this process's rank (" + std::to_string(own) +
                                  ")");
    EXPECT_EQ(error({}),
              "subgroup: ranks [] must contain this process's rank (" + std::to_string(own) + ")");
  });
}

TEST(SubgroupErrors, NameTheGroup) {
  in_processes(1, [](const ProcessGroup& group) {
    Counted counted;
    const auto counting = counting_group(group, counted);
    EXPECT_ERROR("subgroup: group must use Gloo for CPU tensors", subgroup(counting, {0}, "alone"));
    const auto without_store = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
    EXPECT_ERROR("subgroup: group must have a store", subgroup(without_store, {0}, "alone"));
    const auto mesh = [&] { distributed::Mesh(without_store, distributed::MeshOptions()); };
    EXPECT_EQ(value_error(mesh), "Mesh: group must have a store");
  });
}

/// Without LibTorch's warnings, which come first.
std::string last_line(const std::string& output) {
  const auto end = output.rfind('\n', output.size() - 2);
  return end == std::string::npos ? output : output.substr(end + 1);
}

TEST(SubgroupErrors, NameTheOperationWhenAProcessDoesNotArrive) {
  const Event failed;
  const auto ended = run_group(2, [&](const ProcessGroup& group) {
    if (group->getRank() == 1) return failed.await();
    const auto tell = c10::make_scope_exit([&] { failed.tell(); });
    limit_subgroups(group, kBrief);
    subgroup(group, {0, 1}, "pair");
  });
  EXPECT_THAT(last_line(ended[0].output),
              testing::StartsWith("subgroup pair failed in process 0 of 2: wait timeout after"));
  EXPECT_LT(ended[0].seconds, kSoon);
}

/// The words of each rank when `prepare` has changed its environment.
std::vector<Ended> failures(int64_t size, const std::function<void(int64_t)>& prepare,
                            std::chrono::milliseconds timeout = kPatient) {
  const Port port;
  return run_processes(size, [&](int64_t rank) {
    set_launch_environment(rank, size, port.number());
    prepare(rank);
    init_process_group(InitOptions().timeout(timeout));
  });
}

TEST(ProcessGroupErrors, NameTheVariable) {
  const auto error = [](const char* name, const char* value) {
    const auto ended = failures(1, [&](int64_t) {
      if (value == nullptr) {
        ::unsetenv(name);
      } else {
        ::setenv(name, value, 1);
      }
    });
    return ended[0].output;
  };
  EXPECT_EQ(error("RANK", nullptr),
            "init_process_group: environment variable RANK must be set; torchrun sets it\n");
  EXPECT_EQ(error("RANK", "1"),
            "init_process_group: environment variable RANK (1) must be an integer from 0 to 0\n");
  EXPECT_EQ(
      error("WORLD_SIZE", "two"),
      "init_process_group: environment variable WORLD_SIZE (two) must be an integer from 1 to "
      "2147483647\n");
  EXPECT_EQ(
      error("MASTER_PORT", "70000"),
      "init_process_group: environment variable MASTER_PORT (70000) must be an integer from 1 "
      "to 65535\n");
  EXPECT_EQ(error("MASTER_ADDR", ""),
            "init_process_group: environment variable MASTER_ADDR must be set; torchrun sets it\n");
}

TEST(ProcessGroupErrors, NameTheTimeout) {
  const auto ended = run_processes(1, [](int64_t) {
    set_launch_environment(0, 1, Port().number());
    init_process_group(InitOptions().timeout(std::chrono::milliseconds(0)));
  });
  EXPECT_EQ(ended[0].output, "init_process_group: timeout (0 ms) must be at least 1 ms\n");
}

/// Longer than the parts of a host's name may be, so that no name server is asked.
const std::string kUnknownHost(64, 'x');

TEST(ProcessGroupErrors, NameTheAddress) {
  // 192.0.2.1 is reserved for documentation.
  for (const auto& address : {std::string("192.0.2.1"), kUnknownHost}) {
    const auto ended = run_processes(1, [&](int64_t) {
      set_launch_environment(0, 1, Port().number());
      init_process_group(InitOptions().address(address));
    });
    EXPECT_EQ(ended[0].output,
              "init_process_group: address (" + address + ") must be an address of this machine\n");
  }
  const auto ended = failures(2, [](int64_t) {
    ::unsetenv("LOCAL_WORLD_SIZE");
    ::setenv("MASTER_ADDR", kUnknownHost.c_str(), 1);
  });
  const auto expected = "init_process_group: address " + kUnknownHost + " is unknown: ";
  for (const auto& process : ended) {
    EXPECT_THAT(process.output, testing::StartsWith(expected));
    EXPECT_LT(process.seconds, kSoon);
  }
}

TEST(ProcessGroupErrors, NameTheStoreThatIsNotThere) {
  const Port port;
  const auto ended = run_processes(1, [&](int64_t) {
    set_launch_environment(/*rank=*/1, 2, port.number());
    init_process_group(InitOptions().timeout(kBrief));
  });
  const auto expected = "init_process_group: rank 1 reached no store at port " +
                        std::to_string(port.number()) + " of 127.0.0.1 in " + kBriefly + "\n";
  const auto timeout = static_cast<double>(kBrief.count());
  EXPECT_EQ(ended[0].output, expected);
  EXPECT_GE(ended[0].seconds, timeout);
  EXPECT_LT(ended[0].seconds, 3 * timeout);
}

TEST(ProcessGroupErrors, NameTheVersionThatDiffers) {
  in_processes(3, [](const ProcessGroup& group) {
    const auto check = [&] {
      distributed::detail::check_same(group, "init_process_group", "heed's version",
                                      group->getRank() == 2 ? "0.3.0" : "0.2.0");
    };
    EXPECT_EQ(value_error(check),
              "init_process_group: heed's version of rank 2 (0.3.0) must equal that of rank 0 "
              "(0.2.0)");
  });
}

/// The store of a group that is being made at a port.
c10::intrusive_ptr<c10d::Store> store_at(const Port& port) {
  // TCPStore itself would try again only after a second.
  EXPECT_TRUE(distributed::detail::wait_for_listener("127.0.0.1", port.number(), kPatient));
  c10d::TCPStoreOptions options;
  options.port = port.number();
  return c10::make_intrusive<c10d::PrefixStore>(
      "heed/attempt_0", c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
}

TEST(ProcessGroupErrors, NameTheOperationWhenAProcessDiesAfterItArrived) {
  const Port port;
  const auto ended = run_processes(2, [&](int64_t rank) {
    set_launch_environment(rank, 2, port.number());
    if (rank == 0) {
      init_process_group(InitOptions().timeout(kBrief));
    } else {
      store_at(port)->add("arrived/1", 1);
    }
  });
  EXPECT_THAT(
      last_line(ended[0].output),
      testing::StartsWith("init_process_group failed in process 0 of 2: wait timeout after"));
  EXPECT_LT(ended[0].seconds, kSoon);
}

TEST(ProcessGroupErrors, NameTheRankThatIsTaken) {
  const Port port;
  const auto ended = run_processes(3, [&](int64_t process) {
    const int64_t rank = process == 0 ? 0 : 1;
    set_launch_environment(rank, 3, port.number());
    init_process_group(InitOptions().timeout(rank == 0 ? kBrief : kPatient));
  });
  const std::string twice = "init_process_group: two processes have RANK 1\n";
  EXPECT_TRUE(ended[1].output == twice || ended[2].output == twice);
  // Rank 0 holds the store, but which process became rank 1 is open.
  EXPECT_EQ(ended[0].output,
            "init_process_group: rank 2 of 3 did not arrive within " + kBriefly + "\n");
}

/// The words of the first `present` of 3 ranks when rank 1 has another WORLD_SIZE and rank `last`
/// comes last: rank 0, for whose store rank 1 waits, or rank 1, when the others have arrived.
std::vector<Ended> failures_of_sizes(int64_t present, int64_t last) {
  const Port port;
  const Event begun;
  return run_processes(present, [&](int64_t rank) {
    set_launch_environment(rank, 3, port.number());
    if (rank == 1) {
      ::setenv("WORLD_SIZE", "4", 1);
      begun.tell();
    }
    if (last == 0 && rank == 0) begun.await();
    if (last == 1 && rank == 1) {
      const auto store = store_at(port);
      for (int64_t other = 0; other < present; ++other) {
        if (other != 1) store->wait({"arrived/" + std::to_string(other)}, kPatient);
      }
    }
    init_process_group(InitOptions().timeout(kPatient));
  });
}

/// Rank 0 holds the store: a process that comes when ranks 0 and 1 have met may find none.
TEST(ProcessGroupErrors, NameTheNumberOfProcessesThatDiffers) {
  const std::pair<int64_t, int64_t> cases[] = {{3, 1}, {2, 1}, {2, 0}};
  for (const auto& [present, last] : cases) {
    SCOPED_TRACE(std::to_string(present) + " are present, " + std::to_string(last) + " comes last");
    for (const auto& process : failures_of_sizes(present, last)) {
      EXPECT_THAT(process.output,
                  testing::AnyOf("init_process_group: WORLD_SIZE of rank 1 (4) must equal that of "
                                 "rank 0 (3)\n",
                                 "init_process_group: WORLD_SIZE of rank 2 (3) must equal that of "
                                 "rank 1 (4)\n"));
      EXPECT_LT(process.seconds, kSoon);
    }
  }
}

TEST(ProcessGroupErrors, NameTheRanksThatAreMissing) {
  const auto ended = failures(
      2, [](int64_t) { ::setenv("WORLD_SIZE", "4", 1); }, kBrief);
  for (const auto& process : ended) {
    EXPECT_TRUE(process.output == "init_process_group: ranks 2, 3 of 4 did not arrive within " +
                                      kBriefly + "\n" ||
                process.output.find("lost the store, while it waited for others\n") !=
                    std::string::npos)
        << process.output;
    EXPECT_LT(process.seconds, kSoon);
  }
}

TEST(ProcessGroupErrors, NameThePortThatIsTaken) {
  const Port port;
  const Event listens, refused;
  const auto ended = run_processes(2, [&](int64_t other) {
    set_launch_environment(0, 1, port.number());
    if (other == 1) {
      listens.await();
      const auto tell = c10::make_scope_exit([&] { refused.tell(); });
      init_process_group();
    } else {
      const auto group = init_process_group();
      listens.tell();
      refused.await();
    }
  });
  EXPECT_EQ(ended[0].output, "");
  EXPECT_EQ(ended[1].output, "init_process_group: cannot listen at port " +
                                 std::to_string(port.number()) +
                                 " of 127.0.0.1: Address already in use\n");
}

}  // namespace
}  // namespace heed::test::of_process_group
