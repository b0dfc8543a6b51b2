// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/distributed/context_parallel.h>
#include <heed/distributed/parallelize.h>
#include <heed/distributed/sharded_weights.h>
#include <heed/distributed/vocab_parallel.h>
#include <sys/wait.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "distributed/processes.h"
#include "support/seeds.h"
#include "support/weight_files.h"

/// A process is killed or hangs while processes work together: the others end in time, with an
/// error that names the operation and the rank.

namespace heed::test::of_faults {
namespace {

namespace distributed = heed::distributed;

constexpr int64_t kProcesses = 3;

/// Prepares a process, and returns what it repeats until a process is gone.
using Begin = std::function<std::function<void()>(const ProcessGroup&)>;

struct Fault {
  int signal;
  int64_t rank;
  std::chrono::milliseconds moment;  // after all have begun
};

/// Returns when the process has ended, which another thread may have noticed first.
void await_end(pid_t process) {
  siginfo_t ended{};
  ::waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOWAIT);
}

/// How the processes end; their seconds count from the fault.
std::vector<Ended> run_once_into(const Fault& fault, const Begin& begin) {
  using Clock = std::chrono::steady_clock;
  const std::array<Event, kProcesses> begun{};
  const auto start = Clock::now();
  std::chrono::duration<double> until_fault{};
  auto ended = run_group(
      kProcesses,
      [&](const ProcessGroup& group) {
        ::alarm(static_cast<unsigned>(kPatient.count()));
        const auto step = begin(group);
        // The first step connects the processes. Who waits for the address of one that is gone
        // learns of it only at the timeout.
        step();
        group->barrier()->wait();
        begun[static_cast<size_t>(group->getRank())].tell();
        while (true) step();
      },
      fault.signal == SIGSTOP ? kBrief : kPatient,
      [&](const std::vector<pid_t>& processes) {
        for (const auto& one : begun) one.await();
        std::this_thread::sleep_for(fault.moment);
        const auto victim = processes[static_cast<size_t>(fault.rank)];
        until_fault = Clock::now() - start;
        ::kill(victim, fault.signal);
        for (const auto process : processes) {
          if (process != victim) await_end(process);
        }
        ::kill(victim, SIGKILL);  // if it hangs
      });
  for (auto& process : ended) process.seconds -= until_fault.count();
  return ended;
}

/// run_once_into. Gloo may let an operation wait until its timeout that begins while another
/// process closes the connection: if a process is ended by its alarm, all is tried again.
std::vector<Ended> run_into(const Fault& fault, const Begin& begin) {
  const auto waited = [](const Ended& process) { return process.exit_code == -SIGALRM; };
  auto ended = run_once_into(fault, begin);
  if (!std::any_of(ended.begin(), ended.end(), waited)) return ended;
  return run_once_into(fault, begin);
}

/// Kills a process four times and stops one once, at random moments; `check` looks at what is left.
/// `operation` matches the operation that the others name.
void expect_named_failures(
    const std::string& operation, const Begin& begin,
    const std::function<void(const Fault&)>& check = [](const Fault&) {}) {
  std::mt19937 random(std::random_device{}());
  for (const int signal : {SIGKILL, SIGKILL, SIGKILL, SIGKILL, SIGSTOP}) {
    const Fault fault{signal, static_cast<int64_t>(random() % kProcesses),
                      std::chrono::milliseconds(random() % 80)};
    const auto ended = run_into(fault, begin);
    for (int64_t rank = 0; rank < kProcesses; ++rank) {
      const auto& process = ended[static_cast<size_t>(rank)];
      SCOPED_TRACE("signal " + std::to_string(signal) + " to rank " + std::to_string(fault.rank) +
                   " after " + std::to_string(fault.moment.count()) + " ms: rank " +
                   std::to_string(rank));
      if (rank == fault.rank) {
        EXPECT_EQ(process.exit_code, -SIGKILL) << process.output;
        continue;
      }
      EXPECT_EQ(process.exit_code, 1);
      EXPECT_THAT(process.output, testing::MatchesRegex(operation + " failed in process " +
                                                        std::to_string(rank) + " of 3: [^\n]+\n"));
      EXPECT_LT(process.seconds, kSoon);
    }
    check(fault);
  }
}

TEST(Faults, NameTheOperationOfRingAttend) {
  expect_named_failures("ring_attend: [a-z 0-9]+", [](const ProcessGroup& group) {
    const auto x = at::randn({1, 4, 48, 16}).requires_grad_();  // this process's share
    return [=] {
      const auto causal = AttendOptions().causal(true);
      distributed::ring_attend(x, x, x, group, causal).sum().backward();
    };
  });
}

Decoder split_decoder(const ProcessGroup& group) {
  torch::manual_seed(moved(1));
  const auto attention = GroupQueryAttentionOptions(24, 6, 3).causal(true);
  Decoder model(DecoderOptions(24, TransformerBlockOptions(attention), 2));
  distributed::parallelize(*model, group);
  return model;
}

TEST(Faults, NameTheOperationOfASplitModel) {
  const std::string operation =
      "(gradient of )?(ColumnParallelLinear|RowParallelLinear|VocabParallelEmbedding|"
      "vocab_parallel_cross_entropy|vocab_parallel_linear_cross_entropy)[a-z :]*";
  expect_named_failures(operation, [](const ProcessGroup& group) {
    auto model = split_decoder(group);
    const auto optimizer = std::make_shared<torch::optim::Adam>(model->parameters(), 1e-3);
    const auto tokens = at::arange(16).view({2, 8});
    return [=]() mutable {
      optimizer->zero_grad();
      distributed::vocab_parallel_cross_entropy(model->forward(tokens), tokens + 1, group)
          .backward();
      model->loss(tokens, tokens + 1).backward();
      optimizer->step();
    };
  });
}

/// Whether the file is one that was saved, in which all numbers are equal.
void expect_whole(const std::string& path) {
  const auto ended = run_processes(1, [&](int64_t) {
    const auto tensors = read_weights(path);
    const auto first = tensors.begin()->second.flatten()[0];
    for (const auto& [name, tensor] : tensors) {
      EXPECT_TRUE(tensor.equal(at::full_like(tensor, first.item()))) << name;
    }
  });
  EXPECT_EQ(ended[0].exit_code, 0) << ended[0].output;
}

using FaultsOfFiles = WeightFiles;

TEST_F(FaultsOfFiles, LeaveOneThatWasSaved) {
  const auto begin = [&](const ProcessGroup& group) -> std::function<void()> {
    const auto model = split_decoder(group);
    const auto save = [=, number = 0]() mutable {
      const at::NoGradGuard no_grad;
      ++number;
      for (auto& parameter : model->parameters()) parameter.fill_(number);
      distributed::save_weights(*model, path_, group);
    };
    auto first = save;
    first();
    return save;
  };
  expect_named_failures("save_weights[a-z :._0-9]*", begin, [&](const Fault& fault) {
    expect_whole(path_);
    const auto files = std::distance(std::filesystem::directory_iterator(directory_),
                                     std::filesystem::directory_iterator());
    // Only a writer that is killed leaves its temporary file.
    EXPECT_LE(files, fault.rank == 0 ? 2 : 1);
    for (const auto& file : std::filesystem::directory_iterator(directory_)) {
      if (file.path() != path_) std::filesystem::remove(file.path());
    }
  });
}

}  // namespace
}  // namespace heed::test::of_faults
