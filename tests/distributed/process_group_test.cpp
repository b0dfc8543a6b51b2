#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <heed/distributed/process_group.h>

#include <cstdlib>

#include "distributed/processes.h"

namespace heed::test::of_process_group {
namespace {

using distributed::init_process_group;
using distributed::InitOptions;
using distributed::subgroup;

InitOptions brief() { return InitOptions().timeout(std::chrono::seconds(3)); }

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

/// What each rank says when `prepare` has changed its environment.
std::vector<Ended> failures(int64_t size, const std::function<void(int64_t)>& prepare) {
  const auto port = free_port();
  return run_processes(size, [&](int64_t rank) {
    set_launch_environment(rank, size, port);
    prepare(rank);
    init_process_group(brief());
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

TEST(ProcessGroupErrors, NameTheRankThatIsTaken) {
  const auto ended = failures(3, [](int64_t rank) {
    if (rank == 2) ::setenv("RANK", "1", 1);
  });
  const std::string twice = "init_process_group: two processes have RANK 1\n";
  EXPECT_TRUE(ended[1].output == twice || ended[2].output == twice);
  // Rank 0 holds the store, but which process became rank 1 is open.
  EXPECT_EQ(ended[0].output, "init_process_group: rank 2 of 3 did not arrive within 3 s\n");
}

TEST(ProcessGroupErrors, NameTheRanksThatAreMissing) {
  const auto ended = failures(2, [](int64_t) { ::setenv("WORLD_SIZE", "4", 1); });
  for (const auto& process : ended) {
    EXPECT_TRUE(
        process.output == "init_process_group: ranks 2, 3 of 4 did not arrive within 3 s\n" ||
        process.output.find("lost the store, while it waited for others\n") != std::string::npos)
        << process.output;
    EXPECT_LT(process.seconds, 8.0);
  }
}

TEST(ProcessGroupErrors, NameThePortThatIsTaken) {
  const auto port = free_port();
  const auto ended = run_processes(2, [&](int64_t other) {
    set_launch_environment(0, 1, port);
    ::usleep(static_cast<useconds_t>(other * 1000000));
    const auto group = init_process_group(brief());
    if (other == 0) ::usleep(2000000);
  });
  EXPECT_EQ(ended[0].output, "");
  EXPECT_EQ(ended[1].output, "init_process_group: cannot listen at port " + std::to_string(port) +
                                 " of 127.0.0.1: Address already in use\n");
}

}  // namespace
}  // namespace heed::test::of_process_group
