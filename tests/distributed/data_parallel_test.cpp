// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/distributed/data_parallel.h>
#include <torch/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <iterator>

#include "distributed/data_parallel_models.h"
#include "distributed/processes.h"
#include "support/expect.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test::of_data_parallel {
namespace {

constexpr int64_t kBatch = 12;  // divisible by 2, 3 and 4
constexpr int64_t kSteps = 6;

Decoder make_decoder(uint64_t seed) {
  torch::manual_seed(moved(seed));
  return Decoder(DecoderOptions(/*vocab_size=*/11, llama_options(16, 4, 2), /*num_layers=*/2));
}

/// A sum of squares of the means, in float.
at::Tensor sequential_loss(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

at::Tensor decoder_loss(const at::Tensor& scores, const at::Tensor& next) {
  return at::cross_entropy_loss(scores.flatten(0, 1), next.flatten());
}

struct Batch {
  at::Tensor input, target;
};

Batch sequential_batch() { return {at::randn({kBatch, 8}), at::randn({kBatch, 3})}; }

Batch decoder_batch() {
  const auto tokens = at::randint(11, {kBatch, 10}, at::kLong);
  return {tokens.narrow(1, 0, 9), tokens.narrow(1, 1, 9)};
}

/// Process `rank`'s part of `size`.
Batch share(const Batch& batch, int64_t rank, int64_t size) {
  return {batch.input.chunk(size)[static_cast<size_t>(rank)],
          batch.target.chunk(size)[static_cast<size_t>(rank)]};
}

Batch share(const Batch& batch, const ProcessGroup& group) {
  return share(batch, group->getRank(), group->getSize());
}

template <typename Module>
torch::optim::SGD make_optimizer(const Module& module) {
  return torch::optim::SGD(module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// Trains with the group and alone, and compares. `loss_of_share` is the loss of a process's share
/// of a batch, through DataParallel; `loss_of_all` that of the whole batch.
template <typename Make, typename MakeBatch, typename LossOfShare, typename LossOfAll>
void expect_losses_train_as_one(const ProcessGroup& group, const DataParallelOptions& options,
                                const Make& make, const MakeBatch& make_batch,
                                const LossOfShare& loss_of_share, const LossOfAll& loss_of_all,
                                int64_t steps = kSteps, double tolerance = 1e-6) {
  auto model = make(static_cast<uint64_t>(group->getRank()));  // each starts differently
  auto whole = make(0);
  DataParallel parallel(model, group, options);
  auto optimizer = make_optimizer(model), whole_optimizer = make_optimizer(whole);
  torch::manual_seed(moved(1));
  for (int64_t step = 0; step < steps; ++step) {
    const auto batch = make_batch();
    optimizer.zero_grad();
    loss_of_share(parallel, model, share(batch, group)).backward();
    optimizer.step();
    whole_optimizer.zero_grad();
    loss_of_all(whole, batch).backward();
    whole_optimizer.step();
  }
  EXPECT_TRUE(are_close(model->parameters(), whole->parameters(), tolerance));
}

/// Trains with a loss of the outputs.
template <typename Make, typename MakeBatch, typename Loss>
void expect_trains_as_one(const ProcessGroup& group, const DataParallelOptions& options,
                          const Make& make, const MakeBatch& make_batch, const Loss& loss,
                          int64_t steps = kSteps, double tolerance = 1e-6) {
  expect_losses_train_as_one(
      group, options, make, make_batch,
      [&](DataParallel& parallel, auto& model, const Batch& own) {
        return loss(parallel.forward(model, own.input), own.target);
      },
      [&](auto& whole, const Batch& batch) {
        return loss(whole->forward(batch.input), batch.target);
      },
      steps, tolerance);
}

TEST(DataParallel, TrainsASequentialAsOneProcessDoes) {
  for (const int64_t size : {1, 2, 3, 4}) {
    in_processes(size, [](const ProcessGroup& group) {
      for (const bool view : {false, true}) {
        expect_trains_as_one(group, small_buckets().gradient_as_bucket_view(view), make_sequential,
                             sequential_batch, sequential_loss);
      }
    });
  }
}

/// The loss has the gradients of its last layer before its backward pass begins.
TEST(DataParallel, TrainsADecoderByItsLoss) {
  in_processes(2, [](const ProcessGroup& group) {
    expect_losses_train_as_one(
        group, small_buckets(), make_decoder, decoder_batch,
        [](DataParallel& parallel, const Decoder& model, const Batch& own) {
          return parallel.forward([&] { return model->loss(own.input, own.target); });
        },
        [](const Decoder& whole, const Batch& batch) {
          return whole->loss(batch.input, batch.target);
        });
  });
}

TEST(DataParallel, TrainsADecoderAsOneProcessDoes) {
  for (const int64_t size : {2, 3, 4}) {
    in_processes(size, [](const ProcessGroup& group) {
      for (const bool unused : {false, true}) {
        expect_trains_as_one(group, small_buckets().find_unused_parameters(unused), make_decoder,
                             decoder_batch, decoder_loss);
      }
    });
  }
}

TEST(DataParallel, CallsAnyFunction) {
  in_processes(2, [](const ProcessGroup& group) {
    auto model = make_decoder(0), whole = make_decoder(0);
    DataParallel parallel(model, group, DataParallelOptions().find_unused_parameters(true));
    torch::manual_seed(moved(1));
    const auto batch = decoder_batch();
    const auto own = share(batch, group);
    const auto [scores, weights] =
        parallel.forward([&] { return model->forward_with_weights(own.input); });
    EXPECT_EQ(weights.size(), 2U);
    decoder_loss(scores, own.target).backward();
    decoder_loss(whole->forward(batch.input), batch.target).backward();
    for (size_t i = 0; i < whole->parameters().size(); ++i) {
      EXPECT_TRUE(is_close(model->parameters()[i].grad(), whole->parameters()[i].grad(), 1e-6));
    }
  });
}

TEST(DataParallel, AccumulatesWithoutSync) {
  for (const int64_t size : {2, 4}) {
    in_processes(size, [](const ProcessGroup& group) {
      auto model = make_sequential(0), whole = make_sequential(0);
      DataParallel parallel(model, group, small_buckets());
      auto optimizer = make_optimizer(model), whole_optimizer = make_optimizer(whole);
      torch::manual_seed(moved(1));
      for (int64_t step = 0; step < kSteps; ++step) {
        const Batch batches[] = {sequential_batch(), sequential_batch(), sequential_batch()};
        optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
        whole_optimizer.zero_grad();
        const auto train = [&](const Batch& batch) {
          const auto own = share(batch, group);
          sequential_loss(parallel.forward(model, own.input), own.target).backward();
        };
        {
          const auto no_sync = parallel.no_sync();
          train(batches[0]);
          train(batches[1]);
        }
        train(batches[2]);
        for (const auto& batch : batches) {
          sequential_loss(whole->forward(batch.input), batch.target).backward();
        }
        optimizer.step();
        whole_optimizer.step();
      }
      EXPECT_TRUE(are_close(model->parameters(), whole->parameters(), 1e-6));
    });
  }
}

TEST(DataParallel, KeepsGradientsOfThisProcessWithoutSync) {
  in_processes(2, [](const ProcessGroup& group) {
    auto model = make_sequential(0), alone = make_sequential(0);
    DataParallel parallel(model, group);
    torch::manual_seed(moved(1));
    const auto own = share(sequential_batch(), group);
    const auto no_sync = parallel.no_sync();
    { const auto inner = parallel.no_sync(); }
    sequential_loss(parallel.forward(model, own.input), own.target).backward();
    sequential_loss(alone->forward(own.input), own.target).backward();
    for (size_t i = 0; i < alone->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(model->parameters()[i].grad(), alone->parameters()[i].grad()));
    }
  });
}

TEST(DataParallel, FindsUnusedParameters) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(0));
    Branches model;
    DataParallel parallel(model, group, DataParallelOptions().find_unused_parameters(true));
    const auto x = at::randn({4, 3});
    for (int64_t step = 0; step < 3; ++step) {
      model->zero_grad();
      parallel.forward([&] { return model->forward(x, group->getRank()).square().sum(); })
          .backward();
      EXPECT_TRUE(model->first->weight.grad().defined());
      EXPECT_TRUE(model->second->weight.grad().defined());
      EXPECT_FALSE(model->third->weight.grad().defined());
    }
    // Half of the gradient of a sum of squares: the other process has none.
    const auto expected = [&](Linear linear) { return linear->forward(x).detach().t().matmul(x); };
    EXPECT_TRUE(is_close(model->first->weight.grad(), expected(model->first), 1e-5));
    EXPECT_TRUE(is_close(model->second->weight.grad(), expected(model->second), 1e-5));
  });
}

/// The set of unused parameters changes from pass to pass, on one process and on both.
TEST(DataParallel, FindsOtherUnusedParametersInEachPass) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(0));
    Branches model;
    DataParallel parallel(model, group, DataParallelOptions().find_unused_parameters(true));
    const auto x = at::randn({4, 3});
    Linear linears[] = {model->first, model->second, model->third};
    const int64_t branches[][2] = {{0, 1}, {0, 0}, {2, 1}, {1, 2}, {0, 1}, {2, 2}};
    for (const auto& branch_of : branches) {
      model->zero_grad();
      const auto branch = branch_of[group->getRank()];
      parallel.forward([&] { return model->forward(x, branch).square().sum(); }).backward();
      for (int64_t i = 0; i < 3; ++i) {
        const auto uses = std::count(std::begin(branch_of), std::end(branch_of), i);
        const auto& gradient = linears[i]->weight.grad();
        ASSERT_EQ(gradient.defined(), uses > 0) << i;
        if (uses == 0) continue;
        const auto of_one = linears[i]->forward(x).detach().t().matmul(x);
        EXPECT_TRUE(is_close(gradient, of_one * uses, 1e-5)) << i;
      }
    }
  });
}

TEST(DataParallel, CopiesParametersAndBuffersOfRank0) {
  in_processes(3, [](const ProcessGroup& group) {
    const auto make = [](int64_t rank) {
      torch::manual_seed(static_cast<uint64_t>(rank));
      torch::nn::BatchNorm1d norm(5);
      norm->weight.detach().normal_();
      norm->running_mean.normal_();
      norm->num_batches_tracked.fill_(rank + 7);
      return norm;
    };
    auto model = make(group->getRank()), first = make(0);
    model->weight.requires_grad_(false);  // is copied, too
    const DataParallel parallel(model, group);
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(at::equal(item.value(), first->named_parameters()[item.key()])) << item.key();
    }
    for (const auto& item : model->named_buffers()) {
      EXPECT_TRUE(at::equal(item.value(), first->named_buffers()[item.key()])) << item.key();
    }
  });
}

TEST(DataParallel, CopiesTransposedParameters) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(static_cast<uint64_t>(group->getRank()));
    Linear model(4, 3), first(4, 3);
    model->weight.set_data(at::randn({4, 3}).t());
    torch::manual_seed(moved(0));
    const Linear skipped(4, 3), also_skipped(4, 3);
    const auto expected = at::randn({4, 3}).t();
    DataParallel parallel(model, group);
    EXPECT_TRUE(at::equal(model->weight, expected));
    parallel.forward(model, at::full({2, 4}, static_cast<double>(group->getRank())))
        .sum()
        .backward();
    EXPECT_TRUE(at::equal(model->weight.grad(), at::full({3, 4}, 1.0)));
  });
}

TEST(DataParallel, ReducesASharedParameterOnce) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(0));
    Linear shared(4, 4);
    Sequential model(shared, torch::nn::Tanh(), shared);
    DataParallel parallel(model, group, small_buckets());
    const auto x = at::randn({2, 4});
    for (int64_t step = 0; step < 3; ++step) {
      model->zero_grad();
      parallel.forward(model, x).sum().backward();
      // Both processes have the same batch, so that the mean is their own gradient.
      const auto expected =
          torch::autograd::grad({model->forward(x).sum()}, {shared->weight, shared->bias});
      EXPECT_TRUE(is_close(shared->weight.grad(), expected[0], 1e-6));
      EXPECT_TRUE(is_close(shared->bias.grad(), expected[1], 1e-6));
    }
  });
}

TEST(DataParallel, TrainsInBfloat16) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto make = [](uint64_t seed) {
      auto model = make_sequential(seed);
      model->to(at::kBFloat16);
      return model;
    };
    const auto make_batch = [] {
      const auto batch = sequential_batch();
      return Batch{batch.input.to(at::kBFloat16), batch.target.to(at::kBFloat16)};
    };
    expect_trains_as_one(group, small_buckets(), make, make_batch, sequential_loss, /*steps=*/3,
                         /*tolerance=*/0.02);
  });
}

TEST(DataParallel, LetsOneProcessEvaluate) {
  in_processes(2, [](const ProcessGroup& group) {
    auto model = make_sequential(0);
    DataParallel parallel(model, group, small_buckets());
    const auto x = at::randn({4, 8});
    for (int64_t step = 0; step < 3; ++step) {
      if (group->getRank() == 0) {
        model->eval();
        const at::NoGradGuard no_grad;
        for (int64_t i = 0; i < 3; ++i) parallel.forward(model, x);
      }
      model->train();
      // A pass without a backward pass does no harm.
      parallel.forward(model, x);
      parallel.forward(model, x).sum().backward();
    }
  });
}

}  // namespace
}  // namespace heed::test::of_data_parallel
