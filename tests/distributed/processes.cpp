// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/processes.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <thread>

namespace heed::test {

namespace {

/// Everything that one process prints until its end.
std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t size = 0; (size = ::read(descriptor, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(size));
  }
  ::close(descriptor);
  return text;
}

/// Waits until every process that holds the other end of a pipe has closed it.
void await_close(int descriptor) {
  char byte = 0;
  EXPECT_EQ(::read(descriptor, &byte, 1), 0);
  ::close(descriptor);
}

[[noreturn]] void run_child(int output, int64_t rank, const std::function<void(int64_t)>& work) {
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  at::set_num_threads(1);
  bool failed = false;
  try {
    work(rank);
  } catch (const c10::Error& error) {
    std::printf("%s\n", error.what_without_backtrace());
    failed = true;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    failed = true;
  }
  std::fflush(nullptr);
  ::_exit(failed || testing::Test::HasFailure() ? 1 : 0);
}

}  // namespace

std::vector<Ended> run_processes(int64_t size, const std::function<void(int64_t)>& work,
                                 const Meanwhile& meanwhile) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<pid_t> processes;
  std::vector<int> outputs;
  std::array<int, 2> start{};
  EXPECT_EQ(::pipe(start.data()), 0);
  std::fflush(nullptr);
  for (int64_t rank = 0; rank < size; ++rank) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const auto process = ::fork();
    if (process == 0) {
      ::close(start[1]);
      await_close(start[0]);
      run_child(ends[1], rank, work);
    }
    ::close(ends[1]);
    processes.push_back(process);
    outputs.push_back(ends[0]);
  }
  ::close(start[1]);
  await_close(start[0]);
  std::vector<Ended> ended(static_cast<size_t>(size));
  std::vector<std::thread> readers;
  for (size_t i = 0; i < ended.size(); ++i) {
    readers.emplace_back([&, i] {
      ended[i].output = read_all(outputs[i]);
      int status = 0;
      ::waitpid(processes[i], &status, 0);
      ended[i].exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
      ended[i].seconds = passed.count();
    });
  }
  meanwhile(processes);
  for (auto& reader : readers) reader.join();
  return ended;
}

void in_processes(int64_t size, const std::function<void(const ProcessGroup&)>& work) {
  const auto ended = run_group(size, [&](const ProcessGroup& group) {
    work(group);
    // Rank 0 holds the store: it leaves last.
    if (!testing::Test::HasFailure()) group->barrier()->wait();
  });
  for (size_t rank = 0; rank < ended.size(); ++rank) {
    EXPECT_EQ(ended[rank].exit_code, 0) << "rank " << rank << ": " << ended[rank].output;
  }
}

std::vector<Ended> run_group(int64_t size, const std::function<void(const ProcessGroup&)>& work,
                             std::chrono::milliseconds timeout, const Meanwhile& meanwhile) {
  const Port port;
  const auto run = [&](int64_t rank) {
    set_launch_environment(rank, size, port.number());
    const auto all = distributed::init_process_group(distributed::InitOptions().timeout(kPatient));
    if (timeout == kPatient) return work(all);
    all->barrier()->wait();
    limit_subgroups(all, timeout);
    std::vector<int64_t> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), int64_t{0});
    work(distributed::subgroup(all, ranks, "limited"));
  };
  return run_processes(size, run, meanwhile);
}

void limit_subgroups(const ProcessGroup& group, std::chrono::milliseconds timeout) {
  const auto gloo =
      c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupGloo>(group->getBackend(at::kCPU));
  gloo->getOptions()->timeout = timeout;
  group->getStore()->setTimeout(timeout);
}

Event::Event() { EXPECT_EQ(::pipe(pipe_.data()), 0); }

Event::~Event() {
  for (const int end : pipe_) ::close(end);
}

void Event::tell() const { EXPECT_EQ(::write(pipe_[1], "", 1), 1); }

void Event::await() const {
  constexpr int kMilliseconds = std::chrono::milliseconds(kPatient).count();
  // The byte that was written stays there for others.
  pollfd told{pipe_[0], POLLIN, 0};
  EXPECT_EQ(::poll(&told, 1, kMilliseconds), 1);
}

at::Tensor sum_over_processes(const at::Tensor& tensor, const ProcessGroup& group) {
  std::vector<at::Tensor> tensors = {tensor.clone(at::MemoryFormat::Contiguous)};
  group->allreduce(tensors)->wait();
  return tensors[0];
}

Port::Port() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  // A socket that is bound, but does not listen, keeps the port from all who do not name it, and
  // with this option from nobody who does.
  const int yes = 1;
  EXPECT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(socket_, generic, size), 0);
  EXPECT_EQ(::getsockname(socket_, generic, &size), 0);
  number_ = ntohs(address.sin_port);
}

Port::~Port() { ::close(socket_); }

void set_launch_environment(int64_t rank, int64_t size, uint16_t port) {
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(size));
  set("LOCAL_WORLD_SIZE", std::to_string(size));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
}

}  // namespace heed::test
