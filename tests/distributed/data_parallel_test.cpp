#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/distributed/data_parallel.h>
#include <heed/distributed/parallelize.h>
#include <heed/feed_forward.h>
#include <torch/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>
#include <torch/utils.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "distributed/processes.h"
#include "support/expect.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test::of_data_parallel {
namespace {

using distributed::DataParallel;
using distributed::DataParallelOptions;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr int64_t kBatch = 12;  // divisible by 2, 3 and 4
constexpr int64_t kSteps = 6;

/// Several buckets, also of a small module.
DataParallelOptions small_buckets() { return DataParallelOptions().bucket_bytes(1000); }

Sequential make_sequential(uint64_t seed) {
  torch::manual_seed(moved(seed));
  return Sequential(Linear(8, 32), torch::nn::Tanh(), Linear(32, 32), torch::nn::Tanh(),
                    Linear(32, 3));
}

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

/// Trains with the group and alone, and compares.
template <typename Make, typename MakeBatch, typename Loss>
void expect_trains_as_one(const ProcessGroup& group, const DataParallelOptions& options,
                          const Make& make, const MakeBatch& make_batch, const Loss& loss,
                          int64_t steps = kSteps, double tolerance = 1e-6) {
  auto model = make(static_cast<uint64_t>(group->getRank()));  // each starts differently
  auto whole = make(0);
  DataParallel parallel(model, group, options);
  auto optimizer = make_optimizer(model), whole_optimizer = make_optimizer(whole);
  torch::manual_seed(moved(1));
  for (int64_t step = 0; step < steps; ++step) {
    const auto batch = make_batch();
    const auto own = share(batch, group);
    optimizer.zero_grad();
    loss(parallel.forward(model, own.input), own.target).backward();
    optimizer.step();
    whole_optimizer.zero_grad();
    loss(whole->forward(batch.input), batch.target).backward();
    whole_optimizer.step();
  }
  EXPECT_TRUE(are_close(model->parameters(), whole->parameters(), tolerance));
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

/// Three branches, of which a forward pass takes one.
class BranchesImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x, int64_t branch) {
    return (branch == 0 ? first : branch == 1 ? second : third)->forward(x);
  }
  Linear first = register_module("first", Linear(3, 2));
  Linear second = register_module("second", Linear(3, 2));
  Linear third = register_module("third", Linear(3, 2));
};
TORCH_MODULE(Branches);

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

std::string not_averaged(const std::string& parameter) {
  return "DataParallel: each backward pass must be of a result of forward, and the only one; the "
         "gradient of parameter " +
         parameter +
         " would not be averaged over the processes: call parallel.forward(model, ...), not the "
         "module itself";
}

TEST(DataParallelErrors, RefuseGradientsThatWouldNotBeReduced) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::nn::Linear model(torch::nn::LinearOptions(3, 2).bias(false));
    auto parallel = std::make_unique<DataParallel>(model, group);
    const auto x = at::randn({4, 3});
    // The first, which changes nothing, and one after a pass as it should be.
    EXPECT_ERROR(not_averaged("weight"), model->forward(x).sum().backward());
    EXPECT_FALSE(model->weight.grad().defined());
    parallel->forward(model, x).sum().backward();
    const auto gradient = model->weight.grad().clone();
    EXPECT_ERROR(not_averaged("weight"), model->forward(x).sum().backward());
    EXPECT_TRUE(model->weight.grad().equal(gradient));
    // Two backward passes of one forward pass, and two forward passes before them.
    auto loss = parallel->forward(model, x).sum();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_ERROR(not_averaged("weight"), loss.backward());
    const auto first = parallel->forward(model, x).sum();
    const auto second = parallel->forward(model, x).sum();
    first.backward();
    EXPECT_ERROR(not_averaged("weight"), second.backward());
    // A part of what was accumulated before the pass that reduces it comes late.
    auto late = [&] {
      const auto no_sync = parallel->no_sync();
      model->forward(x).sum().backward();
      return parallel->forward(model, x).sum();
    }();
    model->forward(x).sum().backward();
    parallel->forward(model, x).sum().backward();
    EXPECT_ERROR(not_averaged("weight"), late.backward());
    // Without a DataParallel, and where nothing is added to the parameters.
    torch::autograd::grad({model->forward(x).sum()}, {model->weight});
    parallel.reset();
    model->forward(x).sum().backward();
  });
}

TEST(DataParallelErrors, NameTheUnusedParameters) {
  in_processes(2, [](const ProcessGroup& group) {
    Branches model;
    DataParallel parallel(model, group, small_buckets());
    const auto x = at::randn({4, 3});
    const auto loss = [&] { return parallel.forward(model, x, 1).sum(); };
    loss().backward();
    EXPECT_EQ(
        value_error(loss),
        "DataParallel: every parameter that requires grad must get a gradient in each backward "
        "pass, or find_unused_parameters must be set; without a gradient in the last pass of "
        "process " +
            std::to_string(group->getRank()) +
            " of 2: first.weight, first.bias, third.weight, third.bias");
  });
}

TEST(DataParallelErrors, NameTheParameterThatWasReplaced) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::nn::Linear model(3, 2);
    DataParallel parallel(model, group);
    const auto x = at::randn({4, 3});
    parallel.forward(model, x).sum().backward();
    std::stringstream file;
    torch::serialize::OutputArchive saved;
    model->save(saved);
    saved.save_to(file);
    torch::serialize::InputArchive archive;
    archive.load_from(file);
    model->load(archive);
    EXPECT_ERROR(
        "DataParallel: parameter weight was replaced after DataParallel was constructed, as "
        "torch::load and parallelize do: load and split first, or copy the values",
        parallel.forward(model, x));
  });
}

TEST(DataParallelErrors, NameTheParameterThatWasSplit) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(1));
    FeedForward model(FeedForwardOptions(/*emb_dim=*/4));
    DataParallel parallel(model, group);
    distributed::parallelize(*model, group);
    EXPECT_ERROR(
        "DataParallel: parameter fc_in.weight was replaced after DataParallel was constructed, as "
        "torch::load and parallelize do: load and split first, or copy the values",
        parallel.forward(model, at::randn({2, 4})));
  });
}

TEST(DataParallelErrors, NeedATensorToFindUnusedParameters) {
  in_processes(2, [](const ProcessGroup& group) {
    Branches model;
    DataParallel parallel(model, group, DataParallelOptions().find_unused_parameters(true));
    EXPECT_EQ(value_error([&] { parallel.forward([] { return 1.0; }); }),
              "DataParallel: the result of the function must have a tensor that requires grad, "
              "because find_unused_parameters is set");
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

std::string refusal(const std::function<void()>& construct) { return value_error(construct); }

/// Rank 1 gives another module; all processes must say `expected`.
void expect_refused(const std::function<Sequential(bool other)>& make,
                    const std::string& expected) {
  in_processes(2, [&](const ProcessGroup& group) {
    const auto module = make(group->getRank() == 1);
    EXPECT_EQ(refusal([&] { DataParallel parallel(module, group); }), expected);
  });
}

TEST(DataParallelErrors, NameWhatDiffers) {
  expect_refused([](bool other) { return Sequential(Linear(8, other ? 5 : 4)); },
                 "DataParallel: module of rank 1 (parameter 0.weight: Float [5, 8], requires grad) "
                 "must equal that of rank 0 (parameter 0.weight: Float [4, 8], requires grad)");
  expect_refused(
      [](bool other) {
        return other ? Sequential(torch::nn::Tanh(), Linear(8, 4))
                     : Sequential(Linear(8, 4), torch::nn::Tanh());
      },
      "DataParallel: module of rank 1 (parameter 1.weight: Float [4, 8], requires grad) must equal "
      "that of rank 0 (parameter 0.weight: Float [4, 8], requires grad)");
  expect_refused(
      [](bool other) {
        Sequential module(Linear(8, 4));
        if (other) module->to(at::kDouble);
        return module;
      },
      "DataParallel: module of rank 1 (parameter 0.weight: Double [4, 8], requires grad) must "
      "equal "
      "that of rank 0 (parameter 0.weight: Float [4, 8], requires grad)");
  expect_refused(
      [](bool other) {
        Sequential module(Linear(8, 4));
        if (other) module->parameters()[1].requires_grad_(false);
        return module;
      },
      "DataParallel: module of rank 1 (parameter 0.bias: Float [4]) must equal that of rank 0 "
      "(parameter 0.bias: Float [4], requires grad)");
  expect_refused(
      [](bool other) {
        Sequential module(Linear(8, 4));
        if (!other) module->push_back(Linear(4, 2));
        return module;
      },
      "DataParallel: module of rank 1 (no more parameters) must equal that of rank 0 (parameter "
      "1.weight: Float [2, 4], requires grad)");
  expect_refused(
      [](bool other) {
        Sequential module(Linear(8, 4));
        if (other) module->register_buffer("shift", at::randn({2}));
        return module;
      },
      "DataParallel: module of rank 1 (buffer shift: Float [2]) must equal that of rank 0 (no more "
      "buffers)");
}

TEST(DataParallelErrors, NameTheOptionThatDiffers) {
  const auto expect = [](const DataParallelOptions& options, const std::string& expected) {
    in_processes(3, [&](const ProcessGroup& group) {
      const auto own = group->getRank() == 2 ? options : DataParallelOptions();
      EXPECT_EQ(refusal([&] { DataParallel parallel(Linear(2, 2), group, own); }), expected);
    });
  };
  expect(DataParallelOptions().bucket_bytes(7),
         "DataParallel: option of rank 2 (bucket_bytes 7) must equal that of rank 0 (bucket_bytes "
         "26214400)");
  expect(DataParallelOptions().find_unused_parameters(true),
         "DataParallel: option of rank 2 (find_unused_parameters true) must equal that of rank 0 "
         "(find_unused_parameters false)");
}

TEST(DataParallelErrors, ReachAllProcesses) {
  const auto expect = [](const std::function<std::shared_ptr<torch::nn::Module>()>& make,
                         const std::string& expected, const DataParallelOptions& options = {}) {
    in_processes(2, [&](const ProcessGroup& group) {
      const bool wrong = group->getRank() == 1;
      const auto module = wrong ? make() : Linear(2, 2).ptr();
      EXPECT_EQ(refusal([&] {
                  DataParallel parallel(module, group, wrong ? options : DataParallelOptions());
                }),
                wrong ? expected : expected + " (in process 1 of 2)");
    });
  };
  expect([] { return nullptr; }, "DataParallel: module must not be null");
  expect([] { return torch::nn::Tanh().ptr(); },
         "DataParallel: module must have a parameter that requires grad");
  expect([] { return Linear(2, 2).ptr(); }, "DataParallel: bucket_bytes (0) must be at least 1",
         DataParallelOptions().bucket_bytes(0));
  expect(
      [] {
        using torch::nn::EmbeddingOptions;
        return Sequential(torch::nn::Embedding(EmbeddingOptions(3, 2).sparse(true))).ptr();
      },
      "DataParallel: module.0 must not have sparse gradients");
  expect(
      [] {
        Linear module(2, 2);
        module->bias = module->register_parameter(
            "elsewhere", at::randn({2}, at::TensorOptions().device(at::kMeta)));
        return module.ptr();
      },
      "DataParallel: device of parameter elsewhere (meta) must equal that of parameter weight "
      "(cpu)");
}

TEST(DataParallelErrors, NameANullGroup) {
  EXPECT_EQ(refusal([] { DataParallel parallel(Linear(nullptr), ProcessGroup()); }),
            "DataParallel: group must not be null");
}

/// The output of rank 0 if rank 1 does `stop` in the forward pass of `step`.
Ended survivor(const DataParallelOptions& options, int64_t step,
               const std::function<void()>& stop) {
  const auto ended = run_group(2, std::chrono::seconds(2), [&](const ProcessGroup& group) {
    auto model = make_sequential(0);
    DataParallel parallel(model, group, options);
    const auto x = at::randn({4, 8});
    for (int64_t i = 0; i < 50; ++i) {
      if (i == step && group->getRank() == 1) stop();
      parallel.forward(model, x).sum().backward();
    }
  });
  return ended[0];
}

void expect_named_failure(const Ended& ended, const std::string& expected) {
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.output.substr(0, expected.size()), expected) << ended.output;
  EXPECT_EQ(ended.output.find('\n'), ended.output.size() - 1) << ended.output;
  EXPECT_LT(ended.seconds, 2 + 5);
}

TEST(DataParallelErrors, NameTheRankWhenAProcessIsKilled) {
  const auto kill = [] { std::raise(SIGKILL); };
  const std::string reduction = "all-reduce of gradients failed in process 0 of 2: ";
  expect_named_failure(survivor({}, 0, kill), reduction);
  expect_named_failure(survivor(small_buckets(), 7, kill), reduction);
  // The buckets are made again after the first backward pass.
  expect_named_failure(survivor(small_buckets(), 1, kill),
                       "broadcast of gradients failed in process 0 of 2: ");
}

TEST(DataParallelErrors, NameTheRankWhenAProcessHangs) {
  expect_named_failure(survivor(small_buckets(), 3, [] { ::sleep(4); }),
                       "all-reduce of gradients failed in process 0 of 2: ");
}

}  // namespace
}  // namespace heed::test::of_data_parallel
