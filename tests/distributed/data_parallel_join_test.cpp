// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/distributed/data_parallel.h>
#include <heed/distributed/zero_redundancy_optimizer.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "distributed/data_parallel_models.h"
#include "distributed/processes.h"
#include "support/expect.h"
#include "support/seeds.h"

/// DataParallel::join: processes that have different numbers of batches.

namespace heed::test::of_join {
namespace {

using namespace of_data_parallel;
using distributed::JoinOptions;
using distributed::ZeroRedundancyOptimizer;
using Counts = std::vector<int64_t>;

struct Batch {
  at::Tensor input, target;
};

Sequential make_model(int64_t seed) {
  auto model = make_sequential(static_cast<uint64_t>(seed));
  model->to(at::kDouble);
  return model;
}

/// Batch `number` of process `rank`, the same in all processes.
Batch batch_of(int64_t rank, int64_t number) {
  torch::manual_seed(moved(static_cast<uint64_t>(1000 * rank + number + 1)));
  return {at::randn({4, 8}, at::kDouble), at::randn({4, 3}, at::kDouble)};
}

at::Tensor loss_of(const at::Tensor& output, const Batch& batch) {
  return at::mse_loss(output, batch.target);
}

torch::optim::SGD make_sgd(const Sequential& model, double momentum = 0.9) {
  return torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.1).momentum(momentum));
}

/// One epoch of this process: `counts` has the number of batches of each process.
template <typename Optimizer>
void train_epoch(DataParallel& parallel, const Sequential& model, Optimizer& optimizer,
                 const Counts& counts, const ProcessGroup& group, const JoinOptions& options = {}) {
  const int64_t rank = group->getRank();
  parallel.join(
      [&] {
        for (int64_t i = 0; i < counts[static_cast<size_t>(rank)]; ++i) {
          const auto batch = batch_of(rank, i);
          optimizer.zero_grad();
          loss_of(parallel.forward(model, batch.input), batch).backward();
          optimizer.step();
        }
      },
      options);
}

/// That epoch in one process: each step adds up the losses of the processes that have a batch.
template <typename Optimizer>
void train_whole_epoch(Sequential model, Optimizer& optimizer, const Counts& counts,
                       bool divide_by_all = true) {
  for (int64_t i = 0; i < *std::max_element(counts.begin(), counts.end()); ++i) {
    optimizer.zero_grad();
    auto sum = at::zeros({}, at::kDouble);
    int64_t active = 0;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      if (i >= counts[rank]) continue;
      const auto batch = batch_of(static_cast<int64_t>(rank), i);
      sum = sum + loss_of(model->forward(batch.input), batch);
      ++active;
    }
    (sum / (divide_by_all ? static_cast<int64_t>(counts.size()) : active)).backward();
    optimizer.step();
  }
}

const std::vector<Counts> kCounts = {{2, 5}, {5, 2},       {3, 3},       {0, 4},      {4, 0},
                                     {0, 0}, {1, 3, 0, 2}, {3, 0, 3, 1}, {0, 1, 1, 5}};

/// Gradients in float64 that are summed in another order.
constexpr double kTolerance = 1e-12;

TEST(DataParallelJoin, TrainsAsOneProcessDoes) {
  for (const auto& counts : kCounts) {
    in_processes(static_cast<int64_t>(counts.size()), [&](const ProcessGroup& group) {
      for (const int64_t kind : {0, 1, 2, 3}) {
        const bool by_all = kind % 2 == 0, unused = kind >= 2;
        SCOPED_TRACE(testing::PrintToString(counts) + ", kind " + std::to_string(kind));
        auto model = make_model(group->getRank());
        auto whole = make_model(0);
        DataParallel parallel(
            model, group,
            small_buckets().gradient_as_bucket_view(by_all).find_unused_parameters(unused));
        auto optimizer = make_sgd(model), whole_optimizer = make_sgd(whole);
        train_epoch(parallel, model, optimizer, counts, group,
                    JoinOptions().divide_by_initial_world_size(by_all));
        train_whole_epoch(whole, whole_optimizer, counts, by_all);
        EXPECT_TRUE(are_close(model->parameters(), whole->parameters(), kTolerance));
      }
    });
  }
}

/// Afterwards, gradients are divided by the number of all processes again.
TEST(DataParallelJoin, CanBeRepeated) {
  in_processes(2, [](const ProcessGroup& group) {
    for (const bool by_all : {true, false}) {
      auto model = make_model(0), whole = make_model(0);
      DataParallel parallel(model, group, small_buckets());
      auto optimizer = make_sgd(model, /*momentum=*/0), whole_optimizer = make_sgd(whole, 0);
      const auto options = JoinOptions().divide_by_initial_world_size(by_all);
      for (const auto& counts : {Counts{1, 2}, Counts{3, 0}, Counts{2, 3}}) {
        train_epoch(parallel, model, optimizer, counts, group, options);
        train_whole_epoch(whole, whole_optimizer, counts, by_all);
        EXPECT_TRUE(are_close(model->parameters(), whole->parameters(), kTolerance));
      }
      const auto batch = batch_of(group->getRank(), 0);
      optimizer.zero_grad();
      loss_of(parallel.forward(model, batch.input), batch).backward();
      optimizer.step();
      train_whole_epoch(whole, whole_optimizer, {1, 1});
      EXPECT_TRUE(are_close(model->parameters(), whole->parameters(), kTolerance));
    }
  });
}

/// With `step`, the state of the optimizer stays equal in all processes.
template <typename MakeOptimizer>
void expect_state_stays_equal(const Counts& counts, const MakeOptimizer& make_optimizer) {
  in_processes(static_cast<int64_t>(counts.size()), [&](const ProcessGroup& group) {
    for (const int64_t kind : {0, 1, 2, 3}) {
      auto model = make_model(0), whole = make_model(0);
      DataParallel parallel(
          model, group,
          small_buckets().gradient_as_bucket_view(kind % 2 == 0).find_unused_parameters(kind >= 2));
      auto optimizer = make_optimizer(model, group);
      torch::optim::AdamW whole_optimizer(whole->parameters(), 1e-2);
      const auto options = JoinOptions().step([&] { optimizer->step(); });
      for (const auto& epoch : {counts, Counts(counts.rbegin(), counts.rend())}) {
        train_epoch(parallel, model, *optimizer, epoch, group, options);
        train_whole_epoch(whole, whole_optimizer, epoch);
      }
      // AdamW divides gradients by their size, and so the error of small ones.
      EXPECT_TRUE(are_close(model->parameters(), whole->parameters(), 1e-8));
    }
  });
}

TEST(DataParallelJoin, StepsTheOptimizerOfAllProcesses) {
  for (const auto& counts : {Counts{2, 4}, Counts{0, 3}, Counts{3, 1, 0, 2}}) {
    expect_state_stays_equal(counts, [](const Sequential& model, const ProcessGroup&) {
      return std::make_unique<torch::optim::AdamW>(model->parameters(), 1e-2);
    });
  }
}

TEST(DataParallelJoin, StepsAZeroRedundancyOptimizer) {
  for (const auto& counts : {Counts{2, 4}, Counts{3, 1, 0, 2}}) {
    expect_state_stays_equal(counts, [](const Sequential& model, const ProcessGroup& group) {
      return std::make_unique<ZeroRedundancyOptimizer>(
          torch::optim::AdamW(model->parameters(), 1e-2), group);
    });
  }
}

/// The parameters that `step` sees in a process without batches have the gradients of the others,
/// in any layout, and none where no process has one.
TEST(DataParallelJoin, GivesAllProcessesTheGradients) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(0));
    Branches model;
    model->first->weight.set_data(at::randn({3, 2}).t());
    DataParallel parallel(model, group, small_buckets().find_unused_parameters(true));
    const auto x = at::randn({4, 3});
    int64_t steps = 0;
    const auto check = [&](int64_t branch) {
      ++steps;
      const Linear linears[] = {model->first, model->second, model->third};
      for (int64_t i = 0; i < 3; ++i) {
        const auto& gradient = linears[i]->weight.grad();
        ASSERT_EQ(gradient.defined(), i == branch) << i;
        if (i != branch) continue;
        EXPECT_TRUE(is_close(gradient, x.sum(0).expand({2, 3}) / 2, 1e-5)) << i;
      }
    };
    const std::vector<int64_t> branches = {0, 2, 0};
    parallel.join(
        [&] {
          if (group->getRank() == 1) return;
          for (const auto branch : branches) {
            model->zero_grad();
            parallel.forward([&] { return model->forward(x, branch).sum(); }).backward();
            check(branch);
          }
        },
        JoinOptions().step([&] {
          check(branches[static_cast<size_t>(steps)]);
          model->zero_grad(/*set_to_none=*/false);
        }));
    EXPECT_EQ(steps, 3);
  });
}

TEST(DataParallelJoin, AccumulatesWithoutSync) {
  in_processes(2, [](const ProcessGroup& group) {
    auto model = make_model(0), whole = make_model(0);
    DataParallel parallel(model, group);
    auto optimizer = make_sgd(model), whole_optimizer = make_sgd(whole);
    const int64_t rank = group->getRank(), steps = rank == 0 ? 1 : 3;
    parallel.join([&] {
      for (int64_t i = 0; i < steps; ++i) {
        const auto train = [&](int64_t number) {
          const auto batch = batch_of(rank, number);
          loss_of(parallel.forward(model, batch.input), batch).backward();
        };
        optimizer.zero_grad();
        {
          const auto no_sync = parallel.no_sync();
          train(2 * i);
        }
        train(2 * i + 1);
        optimizer.step();
      }
    });
    for (int64_t i = 0; i < 3; ++i) {
      whole_optimizer.zero_grad();
      for (int64_t n = 2 * i; n < 2 * i + 2; ++n) {
        for (int64_t r = i == 0 ? 0 : 1; r < 2; ++r) {
          const auto batch = batch_of(r, n);
          (loss_of(whole->forward(batch.input), batch) / 2).backward();
        }
      }
      whole_optimizer.step();
    }
    EXPECT_TRUE(are_close(model->parameters(), whole->parameters(), kTolerance));
  });
}

TEST(DataParallelJoin, CopiesBuffersOfTheLastProcess) {
  in_processes(3, [](const ProcessGroup& group) {
    torch::nn::BatchNorm1d norm(2);
    DataParallel parallel(norm, group);
    const auto rank = group->getRank();
    parallel.join([&] {
      for (int64_t i = 0; i < (rank == 1 ? 4 : 2); ++i) {
        parallel.forward(norm, at::randn({5, 2})).sum().backward();
      }
    });
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 4);
  });
}

TEST(DataParallelJoin, LetsOneProcessEvaluate) {
  in_processes(2, [](const ProcessGroup& group) {
    auto model = make_model(0), whole = make_model(0);
    DataParallel parallel(model, group);
    auto optimizer = make_sgd(model), whole_optimizer = make_sgd(whole);
    const auto evaluate = [&] {
      const at::NoGradGuard no_grad;
      parallel.forward(model, batch_of(0, 0).input);
    };
    parallel.join([&] {
      evaluate();
      if (group->getRank() == 0) return;
      const auto batch = batch_of(1, 0);
      loss_of(parallel.forward(model, batch.input), batch).backward();
      evaluate();
      optimizer.step();
    });
    train_whole_epoch(whole, whole_optimizer, {0, 1});
    EXPECT_TRUE(are_close(model->parameters(), whole->parameters(), kTolerance));
  });
}

TEST(DataParallelJoinErrors, NameWhatIsWrong) {
  in_processes(2, [](const ProcessGroup& group) {
    auto model = make_model(0);
    DataParallel parallel(model, group);
    const bool odd = group->getRank() == 1;
    const auto nothing = [] {};
    EXPECT_ERROR(
        "DataParallel::join: option of rank 1 (divide_by_initial_world_size false) must equal that "
        "of rank 0 (divide_by_initial_world_size true)",
        parallel.join(nothing, JoinOptions().divide_by_initial_world_size(!odd)));
    EXPECT_ERROR("DataParallel::join: option of rank 1 (step) must equal that of rank 0 (no step)",
                 parallel.join(nothing, odd ? JoinOptions().step(nothing) : JoinOptions()));
    EXPECT_ERROR(odd ? "DataParallel::join: train must not be empty"
                     : "DataParallel::join: train must not be empty (in process 1 of 2)",
                 parallel.join(odd ? std::function<void()>() : nothing));
    parallel.join(nothing);  // the group still works
  });
}

/// Expects that `fail`, the `train` of rank 1, ends with the error `failure`, and that rank 0,
/// which has no batches or many, ends at once with an error of its own.
void expect_failure(
    const std::function<void(DataParallel& parallel, const Sequential& model)>& fail,
    const std::string& failure) {
  for (const bool has_batches : {false, true}) {
    const auto ended = run_group(2, [&](const ProcessGroup& group) {
      ::alarm(static_cast<unsigned>(kPatient.count()));
      auto model = make_model(0);
      DataParallel parallel(model, group, small_buckets());
      parallel.join([&] {
        if (group->getRank() == 1) return fail(parallel, model);
        while (has_batches) {
          parallel.forward(model, batch_of(0, 0).input).sum().backward();
        }
      });
    });
    EXPECT_EQ(ended[1].output, failure + "\n");
    EXPECT_EQ(ended[0].exit_code, 1);
    EXPECT_THAT(ended[0].output,
                testing::MatchesRegex("(all-reduce of gradients|broadcast of gradients|"
                                      "all-reduce of the number of processes that have batches) "
                                      "failed in process 0 of 2: [^\n]+\n"));
    EXPECT_LT(ended[0].seconds, kSoon);
  }
}

TEST(DataParallelJoinErrors, ReachAllProcessesAtOnce) {
  expect_failure(
      [](DataParallel& parallel, const Sequential& model) {
        parallel.forward(model, batch_of(1, 0).input).sum().backward();
        throw std::runtime_error("no more data");
      },
      "no more data");
  expect_failure(
      [](DataParallel& parallel, const Sequential& model) {
        parallel.forward(model, batch_of(1, 0).input);
        parallel.forward(model, batch_of(1, 1).input).sum().backward();
      },
      "DataParallel::join: each forward pass must be followed by its backward pass");
  expect_failure([](DataParallel& parallel,
                    const Sequential& model) { parallel.forward(model, batch_of(1, 0).input); },
                 "DataParallel::join: each forward pass must be followed by its backward pass");
}

TEST(DataParallelJoinErrors, CloseTheGroup) {
  in_processes(2, [](const ProcessGroup& all) {
    const auto group = distributed::subgroup(all, {0, 1}, "join");
    auto model = make_model(0);
    DataParallel parallel(model, group);
    const auto rank = group->getRank();
    const auto train = [&] {
      if (rank == 1) throw std::runtime_error("no more data");
    };
    EXPECT_ANY_THROW(parallel.join(train));
    const auto next = error_text<c10::DistError>([&] { parallel.join(train); });
    const std::string reason =
        rank == 1 ? "DataParallel::join failed in process 1 of 2: no more data"
                  : "all-reduce of the number of processes that have batches failed in process 0 "
                    "of 2: ";
    EXPECT_THAT(
        next, testing::StartsWith("DataParallel::join: comparison of option failed in "
                                  "process " +
                                  std::to_string(rank) + " of 2: the group is closed: " + reason));
  });
}

TEST(DataParallelJoinErrors, RefuseJoinWithinJoin) {
  in_processes(2, [](const ProcessGroup& all) {
    auto model = make_model(0);
    DataParallel parallel(model, distributed::subgroup(all, {0, 1}, "join"));
    EXPECT_ERROR("DataParallel::join: must not be called within join",
                 parallel.join([&] { parallel.join([] {}); }));
  });
}

}  // namespace
}  // namespace heed::test::of_join
