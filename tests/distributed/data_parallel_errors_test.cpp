// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/randn.h>
#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>
#include <heed/distributed/data_parallel.h>
#include <heed/distributed/parallelize.h>
#include <heed/feed_forward.h>
#include <torch/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize/archive.h>
#include <torch/utils.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <sstream>
#include <string>

#include "distributed/data_parallel_models.h"
#include "distributed/processes.h"
#include "support/expect.h"
#include "support/seeds.h"

namespace heed::test::of_data_parallel {
namespace {

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
    EXPECT_ERROR(
        "DataParallel: the result of the function must have a tensor that requires grad, "
        "because find_unused_parameters is set",
        parallel.forward([] { return 1.0; }));
  });
}

/// Both processes must say `expected` after `change` to the module of rank `changed`.
void expect_refused(const std::function<void(Sequential& module)>& change,
                    const std::string& expected, int64_t changed = 1) {
  in_processes(2, [&](const ProcessGroup& group) {
    Sequential module(Linear(8, 4));
    if (group->getRank() == changed) change(module);
    EXPECT_ERROR(expected, DataParallel(module, group));
  });
}

TEST(DataParallelErrors, NameWhatDiffers) {
  expect_refused([](Sequential& module) { module = Sequential(Linear(8, 5)); },
                 "DataParallel: module of rank 1 (parameter 0.weight: Float [5, 8], requires grad) "
                 "must equal that of rank 0 (parameter 0.weight: Float [4, 8], requires grad)");
  expect_refused(
      [](Sequential& module) { module = Sequential(torch::nn::Tanh(), Linear(8, 4)); },
      "DataParallel: module of rank 1 (parameter 1.weight: Float [4, 8], requires grad) must equal "
      "that of rank 0 (parameter 0.weight: Float [4, 8], requires grad)");
  expect_refused(
      [](Sequential& module) { module->to(at::kDouble); },
      "DataParallel: module of rank 1 (parameter 0.weight: Double [4, 8], requires grad) must "
      "equal that of rank 0 (parameter 0.weight: Float [4, 8], requires grad)");
  expect_refused(
      [](Sequential& module) { module->parameters()[1].requires_grad_(false); },
      "DataParallel: module of rank 1 (parameter 0.bias: Float [4]) must equal that of rank 0 "
      "(parameter 0.bias: Float [4], requires grad)");
  expect_refused(
      [](Sequential& module) { module->push_back(Linear(4, 2)); },
      "DataParallel: module of rank 1 (no more parameters) must equal that of rank 0 (parameter "
      "1.weight: Float [2, 4], requires grad)",
      /*changed=*/0);
  expect_refused(
      [](Sequential& module) { module->register_buffer("shift", at::randn({2})); },
      "DataParallel: module of rank 1 (buffer shift: Float [2]) must equal that of rank 0 (no more "
      "buffers)");
}

TEST(DataParallelErrors, NameTheOptionThatDiffers) {
  const auto expect = [](const DataParallelOptions& options, const std::string& expected) {
    in_processes(3, [&](const ProcessGroup& group) {
      const auto own = group->getRank() == 2 ? options : DataParallelOptions();
      EXPECT_ERROR(expected, DataParallel(Linear(2, 2), group, own));
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
      EXPECT_ERROR(wrong ? expected : expected + " (in process 1 of 2)",
                   DataParallel(module, group, wrong ? options : DataParallelOptions()));
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
  EXPECT_ERROR("DataParallel: group must not be null",
               DataParallel(Linear(nullptr), ProcessGroup()));
}

/// The output of rank 0 if rank 1 does `stop` in the forward pass of `step`. Rank 0 tells `over`
/// when it has failed.
Ended survivor(const DataParallelOptions& options, int64_t step,
               const std::function<void(const Event& over)>& stop,
               std::chrono::milliseconds timeout = kPatient) {
  const Event over;
  const auto work = [&](const ProcessGroup& group) {
    const auto tell = c10::make_scope_exit([&] {
      if (group->getRank() == 0) over.tell();
    });
    auto model = make_sequential(0);
    DataParallel parallel(model, group, options);
    const auto x = at::randn({4, 8});
    for (int64_t i = 0; i < 50; ++i) {
      if (i == step && group->getRank() == 1) stop(over);
      parallel.forward(model, x).sum().backward();
    }
  };
  return run_group(2, work, timeout)[0];
}

void expect_named_failure(const Ended& ended, const std::string& expected) {
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.output.substr(0, expected.size()), expected) << ended.output;
  EXPECT_EQ(ended.output.find('\n'), ended.output.size() - 1) << ended.output;
  EXPECT_LT(ended.seconds, kSoon);
}

TEST(DataParallelErrors, NameTheRankWhenAProcessIsKilled) {
  const auto kill = [](const Event&) { std::raise(SIGKILL); };
  const std::string reduction = "all-reduce of gradients failed in process 0 of 2: ";
  expect_named_failure(survivor({}, 0, kill), reduction);
  expect_named_failure(survivor(small_buckets(), 7, kill), reduction);
  // The buckets are made again after the first backward pass.
  expect_named_failure(survivor(small_buckets(), 1, kill),
                       "broadcast of gradients failed in process 0 of 2: ");
}

TEST(DataParallelErrors, NameTheRankWhenAProcessHangs) {
  const auto hang = [](const Event& over) { over.await(); };
  expect_named_failure(survivor(small_buckets(), 3, hang, kBrief),
                       "all-reduce of gradients failed in process 0 of 2: ");
}

}  // namespace
}  // namespace heed::test::of_data_parallel
