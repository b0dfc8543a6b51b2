// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <heed/distributed/data_parallel.h>
#include <heed/distributed/zero_redundancy_optimizer.h>
#include <heed/fused_adamw.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>
#include <torch/utils.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "distributed/processes.h"
#include "support/expect.h"
#include "support/seeds.h"

namespace heed::test::of_zero_redundancy_optimizer {
namespace {

using distributed::ZeroRedundancyOptimizer;
using torch::nn::Linear;
using torch::nn::Sequential;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::SGD;
using torch::optim::SGDOptions;

Sequential make_model() {
  torch::manual_seed(moved(0));
  return Sequential(Linear(8, 16), torch::nn::Tanh(), Linear(16, 16), torch::nn::Tanh(),
                    Linear(16, 3));
}

/// As language models have it: weights decay, biases do not.
template <typename Any = AdamW>
Any make_adamw(const Sequential& model) {
  std::vector<at::Tensor> matrices, vectors;
  for (const auto& parameter : model->parameters()) {
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  }
  return Any(std::vector<torch::optim::OptimizerParamGroup>{
      {matrices, std::make_unique<AdamWOptions>(AdamWOptions(0.01).weight_decay(0.1))},
      {vectors, std::make_unique<AdamWOptions>(AdamWOptions(0.02).weight_decay(0.0))}});
}

Adam make_adam(const Sequential& model) {
  return Adam(model->parameters(), AdamOptions(0.01).amsgrad(true));
}

SGD make_sgd(const Sequential& model) {
  return SGD(model->parameters(), SGDOptions(0.1).momentum(0.9));
}

/// Steps whose gradients are the same in all processes.
void train(Sequential& model, Optimizer& optimizer, int64_t first, int64_t last) {
  for (auto step = first; step < last; ++step) {
    torch::manual_seed(moved(static_cast<uint64_t>(step + 100)));
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(0.01 / static_cast<double>(step + 1));
    }
    optimizer.zero_grad();
    model->forward(at::randn({4, 8})).square().mean().backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1);
    optimizer.step();
  }
}

void expect_equal(const Sequential& actual, const Sequential& expected) {
  for (const auto& item : expected->named_parameters()) {
    EXPECT_TRUE(at::equal(actual->named_parameters()[item.key()], item.value())) << item.key();
  }
}

int64_t state_elements(const Optimizer& optimizer) {
  int64_t sum = 0;
  for (const auto& [key, state] : optimizer.state()) {
    const auto& own = static_cast<const torch::optim::AdamWParamState&>(*state);
    sum += own.exp_avg().numel() + own.exp_avg_sq().numel();
  }
  return sum;
}

std::string path_of(const char* name) {
  return testing::TempDir() + name + std::to_string(::getpid()) + ".pt";
}

/// A model whose optimizer's state is split, and one whose optimizer is alone.
template <typename Whole>
struct Models {
  Models(const ProcessGroup& group, Whole (*make)(const Sequential&))
      : optimizer(make(model), group), whole(make(alone)) {}

  void expect_equal_steps(int64_t first, int64_t last) {
    train(model, optimizer, first, last);
    train(alone, whole, first, last);
    expect_equal(model, alone);
  }

  Sequential model = make_model(), alone = make_model();
  ZeroRedundancyOptimizer optimizer;
  Whole whole;
};

template <typename Any>
void load_from(Any& optimizer, const std::string& path) {
  torch::serialize::InputArchive archive;
  archive.load_from(path);
  optimizer.load(archive);
}

TEST(ZeroRedundancyOptimizer, GivesTheNumbersOfTheOptimizerAlone) {
  for (const int64_t size : {1, 2, 3, 4}) {
    in_processes(size, [](const ProcessGroup& group) {
      Models(group, make_adamw<>).expect_equal_steps(0, 4);
      Models(group, make_adamw<FusedAdamW>).expect_equal_steps(0, 4);
      Models(group, make_adam).expect_equal_steps(0, 4);
      Models(group, make_sgd).expect_equal_steps(0, 4);
    });
  }
}

/// The first and the third weight are one, in a group and in two.
AdamW make_repeating_adamw(const Sequential& model) {
  const auto parameters = model->parameters();
  std::vector<at::Tensor> repeating = {parameters[0], parameters[2], parameters[1], parameters[0]};
  return AdamW(std::vector<torch::optim::OptimizerParamGroup>{
      {repeating, std::make_unique<AdamWOptions>(AdamWOptions(0.01).weight_decay(0.1))},
      {{parameters[2], parameters[4]}, std::make_unique<AdamWOptions>(AdamWOptions(0.02))}});
}

TEST(ZeroRedundancyOptimizer, GivesAParameterThatStandsTwiceOneOwner) {
  const auto path = path_of("zero_repeating");
  for (const int64_t size : {2, 3}) {
    in_processes(size, [&](const ProcessGroup& group) {
      Models(group, make_repeating_adamw).expect_equal_steps(0, 4);
      // The state too, through a file.
      Models models(group, make_repeating_adamw);
      models.expect_equal_steps(0, 2);
      torch::serialize::OutputArchive saved;
      models.optimizer.save(saved);
      if (group->getRank() == 0) saved.save_to(path);
      group->barrier()->wait();
      ZeroRedundancyOptimizer resumed(make_repeating_adamw(models.model), group);
      load_from(resumed, path);
      train(models.model, resumed, 2, 4);
      train(models.alone, models.whole, 2, 4);
      expect_equal(models.model, models.alone);
    });
  }
  std::remove(path.c_str());
}

TEST(ZeroRedundancyOptimizer, WorksWithMoreProcessesThanParameters) {
  in_processes(4, [](const ProcessGroup& group) {
    Linear model(5, 2);
    torch::manual_seed(moved(0));
    // With one parameter, all processes but one have none.
    for (const auto& parameters : {model->parameters(), std::vector<at::Tensor>{model->weight}}) {
      model->weight.detach().fill_(0.5);
      ZeroRedundancyOptimizer optimizer(AdamW(parameters), group);
      model->forward(at::randn({2, 5})).sum().backward();
      optimizer.step();
      EXPECT_FALSE(at::equal(model->weight, at::full_like(model->weight, 0.5)));
      torch::serialize::OutputArchive archive;
      optimizer.save(archive);
    }
  });
}

TEST(ZeroRedundancyOptimizer, MixesDtypes) {
  in_processes(2, [](const ProcessGroup& group) {
    auto model = make_model(), alone = make_model();
    for (const auto& one : {model, alone}) {
      one->children()[2]->to(at::kBFloat16);
      one->children()[4]->to(at::kDouble);
    }
    ZeroRedundancyOptimizer optimizer(make_adam(model), group);
    auto whole = make_adam(alone);
    for (int64_t step = 0; step < 3; ++step) {
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        const auto gradient = at::randn(model->parameters()[i].sizes());
        for (const auto& one : {model, alone}) {
          auto parameter = one->parameters()[i];
          parameter.mutable_grad() = gradient.to(parameter.scalar_type());
        }
      }
      optimizer.step();
      whole.step();
    }
    expect_equal(model, alone);
  });
}

FusedAdamW make_fused(const Sequential& model) {
  auto parameters = model->parameters();
  parameters.push_back(parameters[0]);
  return FusedAdamW(parameters, 1e-3);
}

/// Steps that are lost without masters, one of a parameter that stands twice; through a file, too.
TEST(ZeroRedundancyOptimizer, SplitsMasters) {
  const auto path = path_of("zero_masters");
  for (const int64_t size : {2, 3}) {
    in_processes(size, [&](const ProcessGroup& group) {
      auto model = make_model(), alone = make_model();
      for (auto one : {model, alone}) one->to(at::kBFloat16);
      ZeroRedundancyOptimizer optimizer(make_fused(model), group);
      auto whole = make_fused(alone);
      const auto run = [&](Optimizer& split, uint64_t step) {
        torch::manual_seed(moved(step));
        for (size_t i = 0; i < model->parameters().size(); ++i) {
          const auto gradient = at::randn(model->parameters()[i].sizes()).to(at::kBFloat16);
          for (const auto& one : {model, alone}) {
            auto parameter = one->parameters()[i];
            parameter.mutable_grad() = gradient.clone();
          }
        }
        split.step();
        whole.step();
        expect_equal(model, alone);
      };
      for (uint64_t step = 0; step < 3; ++step) run(optimizer, step);
      torch::serialize::OutputArchive saved;
      optimizer.save(saved);
      if (group->getRank() == 0) saved.save_to(path);
      group->barrier()->wait();
      ZeroRedundancyOptimizer resumed(make_fused(model), group);
      load_from(resumed, path);
      for (uint64_t step = 3; step < 20; ++step) run(resumed, step);
    });
  }
  std::remove(path.c_str());
}

TEST(ZeroRedundancyOptimizer, KeepsItsShareOfTheState) {
  for (const int64_t size : {2, 3, 4}) {
    in_processes(size, [size](const ProcessGroup& group) {
      torch::manual_seed(moved(0));
      Sequential model;
      for (int64_t i = 0; i < 12; ++i) model->push_back(Linear(16, 16));
      ZeroRedundancyOptimizer optimizer(AdamW(model->parameters()), group);
      model->forward(at::randn({2, 16})).sum().backward();
      optimizer.step();
      EXPECT_TRUE(optimizer.state().empty());
      const auto own = state_elements(optimizer.local());
      const int64_t all = 2 * 12 * (16 * 16 + 16);
      EXPECT_LE(own * size, all * 11 / 10);
      EXPECT_GE(own * size, all * 9 / 10);
    });
  }
}

/// Adam's state of the parameters of `model`, in their order.
std::vector<at::Tensor> adam_state(const Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(
          *optimizer.state().at(parameter.unsafeGetTensorImpl()));
      tensors.push_back(state.exp_avg());
      tensors.push_back(state.exp_avg_sq());
      tensors.push_back(at::full({1}, state.step(), at::kLong));
    }
  }
  return tensors;
}

TEST(ZeroRedundancyOptimizer, SavesWhatTheOptimizerAloneSaves) {
  const auto path = path_of("zero_saved");
  in_processes(3, [&](const ProcessGroup& group) {
    Models models(group, make_adamw<>);
    models.expect_equal_steps(0, 3);
    torch::serialize::OutputArchive archive;
    models.optimizer.save(archive);
    if (group->getRank() == 0) {
      archive.save_to(path);
      auto loaded = make_adamw<>(models.alone);
      load_from(loaded, path);
      EXPECT_TRUE(are_equal(adam_state(loaded), adam_state(models.whole)));
      EXPECT_EQ(loaded.param_groups()[0].options().get_lr(),
                models.whole.param_groups()[0].options().get_lr());
    }
    // Saving changes nothing.
    models.expect_equal_steps(3, 5);
  });
  for (const int64_t size : {1, 2, 4}) {
    in_processes(size, [&](const ProcessGroup& group) {
      auto model = make_model(), alone = make_model();
      auto whole = make_adamw(alone);
      train(alone, whole, 0, 3);
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        model->parameters()[i].detach().copy_(alone->parameters()[i]);
      }
      ZeroRedundancyOptimizer optimizer(make_adamw(model), group);
      load_from(optimizer, path);
      EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(),
                whole.param_groups()[0].options().get_lr());
      EXPECT_EQ(state_elements(optimizer.local()) < state_elements(whole), size > 1);
      train(model, optimizer, 3, 5);
      train(alone, whole, 3, 5);
      expect_equal(model, alone);
    });
  }
  std::remove(path.c_str());
}

TEST(ZeroRedundancyOptimizer, TakesAnOptimizerThatHasState) {
  in_processes(2, [](const ProcessGroup& group) {
    auto model = make_model(), alone = make_model();
    auto begun = make_adamw(model), whole = make_adamw(alone);
    train(model, begun, 0, 2);
    ZeroRedundancyOptimizer optimizer(std::move(begun), group);
    train(model, optimizer, 2, 4);
    train(alone, whole, 0, 4);
    expect_equal(model, alone);
  });
}

TEST(ZeroRedundancyOptimizer, KeepsItsStateIfAnArchiveDoesNotFit) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto path = path_of("zero_other");
    Models models(group, make_adamw<>);
    models.expect_equal_steps(0, 2);
    torch::serialize::OutputArchive other;
    make_adam(models.alone).save(other);  // of one group
    other.save_to(path);
    EXPECT_THROW(load_from(models.optimizer, path), c10::Error);
    std::remove(path.c_str());
    models.expect_equal_steps(2, 4);
  });
}

TEST(ZeroRedundancyOptimizer, TrainsWithDataParallel) {
  in_processes(2, [](const ProcessGroup& group) {
    auto model = make_model(), alone = make_model();
    distributed::DataParallel parallel(model, group);
    ZeroRedundancyOptimizer optimizer(make_sgd(model), group);
    auto whole = make_sgd(alone);
    torch::manual_seed(moved(1));
    for (int64_t step = 0; step < 4; ++step) {
      const auto x = at::randn({8, 8});
      optimizer.zero_grad();
      whole.zero_grad();
      const auto own = x.chunk(2)[static_cast<size_t>(group->getRank())];
      parallel.forward(model, own).square().mean().backward();
      alone->forward(x).square().mean().backward();
      for (const auto& one : {model, alone}) {
        torch::nn::utils::clip_grad_norm_(one->parameters(), 0.1);
      }
      optimizer.step();
      whole.step();
    }
    EXPECT_TRUE(are_close(model->parameters(), alone->parameters(), 1e-6));
  });
}

TEST(ZeroRedundancyOptimizerErrors, NameWhatIsWrong) {
  in_processes(2, [](const ProcessGroup& group) {
    auto model = make_model();
    const bool other = group->getRank() == 1;
    const auto error = [&](auto make) {
      return value_error([&] { ZeroRedundancyOptimizer optimizer(make(), group); });
    };
    const std::string where = other ? "" : " (in process 1 of 2)";
    EXPECT_EQ(error([&] {
                return other ? nullptr
                             : std::unique_ptr<Optimizer>(new SGD(model->parameters(), 0.1));
              }),
              "ZeroRedundancyOptimizer: optimizer must not be null" + where);
    EXPECT_EQ(error([&] { return torch::optim::LBFGS(model->parameters()); }),
              "ZeroRedundancyOptimizer: optimizer (LBFGS) must update each parameter by itself");
    EXPECT_EQ(error([&] { return SGD(std::vector<at::Tensor>(), 0.1); }),
              "ZeroRedundancyOptimizer: optimizer must have a parameter");
    EXPECT_EQ(
        error([&] { return SGD(model->parameters(), other ? 0.2 : 0.1); }),
        "ZeroRedundancyOptimizer: optimizer of rank 1 (group 0: learning rate 0.2) must equal "
        "that of rank 0 (group 0: learning rate 0.1)");
    EXPECT_EQ(
        error([&]() -> std::unique_ptr<Optimizer> {
          if (other) return std::make_unique<Adam>(model->parameters());
          return std::make_unique<SGD>(model->parameters(), 0.1);
        }),
        "ZeroRedundancyOptimizer: optimizer of rank 1 (torch::optim::Adam) must equal that of "
        "rank 0 (torch::optim::SGD)");
    EXPECT_EQ(error([&] {
                auto parameters = model->parameters();
                if (other) std::swap(parameters[1], parameters[3]);
                if (other) std::swap(parameters[0], parameters[2]);
                return SGD(parameters, 0.1);
              }),
              "ZeroRedundancyOptimizer: optimizer of rank 1 (parameter 0 of group 0: Float [16, "
              "16]) must equal that of rank 0 (parameter 0 of group 0: Float [16, 8])");
    EXPECT_ERROR("ZeroRedundancyOptimizer: group must not be null",
                 ZeroRedundancyOptimizer(make_sgd(model), ProcessGroup()));
    ZeroRedundancyOptimizer optimizer(make_sgd(model), group);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({at::randn({2})}));
    EXPECT_ERROR("ZeroRedundancyOptimizer: number of parameters (7) must stay 6", optimizer.step());
  });
}

TEST(ZeroRedundancyOptimizerErrors, NameTheRankWhenAProcessIsKilled) {
  const auto ended = run_group(2, [](const ProcessGroup& group) {
    auto model = make_model();
    ZeroRedundancyOptimizer optimizer(make_adamw(model), group);
    for (int64_t i = 0; i < 50; ++i) {
      if (i == 3 && group->getRank() == 1) std::raise(SIGKILL);
      train(model, optimizer, i, i + 1);
    }
  });
  const std::string expected = "broadcast of updated parameters failed in process 0 of 2: ";
  EXPECT_EQ(ended[0].output.substr(0, expected.size()), expected) << ended[0].output;
  EXPECT_LT(ended[0].seconds, kSoon);
}

}  // namespace
}  // namespace heed::test::of_zero_redundancy_optimizer
