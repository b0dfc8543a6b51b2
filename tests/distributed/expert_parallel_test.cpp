// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/adapters.h>
#include <heed/autocast.h>
#include <heed/clip_grad_norm.h>
#include <heed/decoder.h>
#include <heed/distributed/data_parallel.h>
#include <heed/distributed/expert_parallel.h>
#include <heed/distributed/parallelize.h>
#include <heed/distributed/parameter_shards.h>
#include <heed/distributed/sharded_weights.h>
#include <heed/distributed/zero_redundancy_optimizer.h>
#include <heed/fused_adamw.h>
#include <heed/mixture_of_experts.h>
#include <heed/model_cost.h>
#include <heed/pack_weights.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "distributed/counting_group.h"
#include "distributed/processes.h"
#include "distributed/whole_and_parts.h"
#include "support/expect.h"
#include "support/seeds.h"
#include "support/weight_files.h"

/// A mixture whose experts are split among processes, each with tokens of its own, beside one
/// process with the tokens of all.

namespace heed::test::of_expert_parallel {
namespace {

using distributed::parallelize_experts;

constexpr int64_t E = 8, N = 6;

FeedForwardOptions expert_options() {
  return FeedForwardOptions(E).hidden_dim(12).activation(Activation::swiglu);
}

MixtureOfExpertsOptions small_options() { return {expert_options(), N, /*top_k=*/2}; }

template <typename Module>
Module made(const std::function<Module()>& make, at::ScalarType dtype = at::kDouble) {
  auto module = WholeAndParts<Module>::made(make);
  module->to(dtype);
  return module;
}

/// The tokens of each process; some have none.
std::vector<int64_t> uneven(int64_t processes) {
  std::vector<int64_t> counts = {5, 0, 9, 2};
  counts.resize(static_cast<size_t>(processes));
  return counts;
}

/// The part of a tensor of all tokens that a process has.
at::Tensor own_part(const at::Tensor& all, const std::vector<int64_t>& counts, int64_t rank) {
  const auto first = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  return all.narrow(0, first, counts[static_cast<size_t>(rank)]);
}

void expect_part(const at::Tensor& actual, const at::Tensor& whole, const std::string& name,
                 const TensorShards& shards, double tolerance = kRounding) {
  expect_close(actual, part_of(whole, name, shards), name, tolerance);
}

/// Compares outputs and gradients of a mixture in all processes with those of one process.
void expect_same_mixture(const ProcessGroup& group, const MixtureOfExpertsOptions& options,
                         const std::vector<int64_t>& counts, at::ScalarType dtype = at::kDouble,
                         double tolerance = kRounding) {
  const std::function<MixtureOfExperts()> make = [&] { return MixtureOfExperts(options); };
  auto whole = made(make, dtype), parts = made(make, dtype);
  parallelize_experts(*parts, group);
  const auto shards = distributed::shards_of(*parts);
  EXPECT_EQ(shards.size(), whole->experts->parameters().size());
  const auto rank = group->getRank();
  const auto total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto x = random_input({total, E}).to(dtype).requires_grad_();
  const auto weights = random_input({total, E}, /*seed=*/4).to(dtype);
  const auto own = own_part(x.detach(), counts, rank).clone().requires_grad_();
  const auto expected = whole->forward(x);
  const auto actual = parts->forward(own);
  EXPECT_EQ(actual.scalar_type(), dtype);
  expect_close(actual, own_part(expected, counts, rank), "output", tolerance);
  (expected * weights).sum().backward();
  (actual * own_part(weights, counts, rank)).sum().backward();
  expect_close(own.grad(), own_part(x.grad(), counts, rank), "gradient of x", tolerance);
  const auto parameters = parts->named_parameters();
  for (const auto& item : whole->named_parameters()) {
    const auto& name = item.key();
    const auto& gradient = parameters[name].grad();
    if (shards.count(name) == 0) {
      expect_close(sum_over_processes(gradient, group), item.value().grad(), name, tolerance);
    } else if (shards.at(name).size == 0) {
      EXPECT_FALSE(gradient.defined()) << name;
      EXPECT_EQ(parameters[name].numel(), 0) << name;
    } else {
      expect_close(gradient, item.value().grad(), name, tolerance);
    }
  }
}

TEST(ExpertParallel, ComputesWhatOneProcessDoes) {
  for (const int64_t processes : {2, 3}) {
    in_processes(processes, [&](const ProcessGroup& group) {
      for (const auto& counts : {uneven(processes), std::vector<int64_t>(processes, 4),
                                 std::vector<int64_t>(processes, 0)}) {
        expect_same_mixture(group, small_options(), counts);
      }
      const auto biased = FeedForwardOptions(E).hidden_dim(12);  // gelu, with biases
      auto shared = small_options().expert(biased).router_bias(true).shared(expert_options());
      expect_same_mixture(group, shared.shared_gate(true).normalize(false), uneven(processes));
      auto grouped = small_options().score(ExpertScore::sigmoid).choice_bias(true).scale(2.5);
      expect_same_mixture(group, grouped.group_num(3).top_groups(2).group_best(2),
                          uneven(processes));
      expect_same_mixture(group, small_options().top_k(1), uneven(processes));
      expect_same_mixture(group, small_options().top_k(N), uneven(processes));
    });
  }
}

/// Rows are products of their own, and differ in the last bits alone.
TEST(ExpertParallel, ComputesInLowerPrecision) {
  in_processes(3, [](const ProcessGroup& group) {
    expect_same_mixture(group, small_options(), uneven(3), at::kFloat, 1e-5);
    expect_same_mixture(group, small_options(), uneven(3), at::kBFloat16, 5e-2);
  });
}

TEST(ExpertParallel, FollowsAutocast) {
  in_processes(2, [](const ProcessGroup& group) {
    const std::function<MixtureOfExperts()> make = [] { return MixtureOfExperts(small_options()); };
    auto whole = made(make, at::kFloat), parts = made(make, at::kFloat);
    parallelize_experts(*parts, group);
    const Autocast autocast(at::kCPU, at::kBFloat16);
    const torch::NoGradGuard no_grad;
    // With one token, most experts have no rows.
    const auto x = random_input({1, E}).to(at::kFloat);
    const auto expected = whole->forward(x), actual = parts->forward(x);
    EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
    expect_close(actual, expected, "output", 2e-2);
  });
}

/// x needs no gradient in one process, and the experts in another: all take part in the exchange of
/// gradients.
TEST(ExpertParallel, ExchangesGradientsThatOneProcessAsksFor) {
  in_processes(2, [](const ProcessGroup& group) {
    for (const bool freeze : {false, true}) {
      const std::function<MixtureOfExperts()> make = [] {
        return MixtureOfExperts(small_options());
      };
      auto whole = made(make), parts = made(make);
      parallelize_experts(*parts, group);
      const auto rank = group->getRank();
      for (auto& parameter : parts->experts->parameters()) {
        parameter.requires_grad_(!freeze || rank == 0);
      }
      const auto x = random_input({8, E}).requires_grad_();
      const auto own = x.detach().narrow(0, rank * 4, 4).clone().requires_grad_(rank == 1);
      whole->forward(x).sum().backward();
      parts->forward(own).sum().backward();
      EXPECT_EQ(own.grad().defined(), rank == 1);
      if (rank == 1) expect_close(own.grad(), x.grad().narrow(0, 4, 4), "gradient of x");
      const auto index = static_cast<size_t>(rank * N / 2);
      const auto name = std::to_string(index) + ".fc_in.weight";
      const auto gradient = parts->experts->named_parameters()[name].grad();
      EXPECT_EQ(gradient.defined(), !freeze || rank == 0);
      if (gradient.defined()) {
        expect_close(gradient, whole->experts->named_parameters()[name].grad(), name);
      }
    }
  });
}

TEST(ExpertParallel, HasSecondDerivatives) {
  in_processes(2, [](const ProcessGroup& group) {
    const std::function<MixtureOfExperts()> make = [] { return MixtureOfExperts(small_options()); };
    auto whole = made(make), parts = made(make);
    parallelize_experts(*parts, group);
    const auto rank = group->getRank();
    const auto second = [](MixtureOfExperts& module, const at::Tensor& x) {
      const auto first =
          torch::autograd::grad({module->forward(x).square().sum()}, {x}, {}, true, true);
      return torch::autograd::grad({first[0].square().sum()}, {x})[0];
    };
    const auto x = random_input({7, E}).requires_grad_();
    const std::vector<int64_t> counts = {3, 4};
    const auto own = own_part(x.detach(), counts, rank).clone().requires_grad_();
    expect_close(second(parts, own), own_part(second(whole, x), counts, rank), "derivative");
  });
}

DecoderOptions decoder_options() {
  auto block = TransformerBlockOptions(GroupQueryAttentionOptions(E, 2, 1).causal(true));
  block.feed_forward(small_options().shared(expert_options()));
  return DecoderOptions(/*vocab_size=*/11, block, /*num_layers=*/2);
}

Decoder make_decoder() {
  return made<Decoder>([] { return Decoder(decoder_options()); });
}

/// One exchange of numbers of rows, and one of rows to the experts and of rows back.
TEST(ExpertParallel, ExchangesRowsFourTimes) {
  in_processes(2, [](const ProcessGroup& gloo) {
    Counted counted;
    const auto group = counting_group(gloo, counted);
    auto layer = made<MixtureOfExperts>([] { return MixtureOfExperts(small_options()); });
    parallelize_experts(*layer, group);
    counted = {};
    const auto y = layer->forward(random_input({5, E}));
    const int64_t notices = 2 * (N / 2 + 5) * 8, rows = 2 * 5 * 2 * E * 8;  // of both processes
    EXPECT_EQ(counted.operations["all_to_all"], 3);
    EXPECT_EQ(sum_over_processes(torch::tensor(counted.bytes["all_to_all"]), gloo).item<int64_t>(),
              2 * notices + 2 * rows);
    counted = {};
    y.sum().backward();
    // x needs no gradient in any process, so only the outputs' goes to the experts.
    EXPECT_EQ(counted.operations, (std::map<std::string, int64_t>{{"all_to_all", 1}}));
  });
}

/// The losses of all routings, for one process and for several.
at::Tensor routing_losses(const std::vector<ExpertRouting>& routings, const ProcessGroup& group) {
  if (!group) return 0.1 * load_balancing_loss(routings) + 0.01 * router_z_loss(routings);
  return 0.1 * distributed::load_balancing_loss(routings, group) +
         0.01 * distributed::router_z_loss(routings, group);
}

/// DataParallel averages the gradients of everything; the balance is that of all processes' tokens.
TEST(ExpertParallel, TrainsWithDataParallel) {
  for (const bool checkpointing : {false, true}) {
    in_processes(2, [&](const ProcessGroup& group) {
      auto whole = make_decoder(), parts = make_decoder();
      parts->stack->options.checkpointing(checkpointing);
      parallelize_experts(*parts, group);
      distributed::DataParallel parallel(parts, group);
      FusedAdamW whole_optimizer(whole->parameters(), 1e-3);
      FusedAdamW parts_optimizer(parts->parameters(), 1e-3);
      const auto shards = distributed::shards_of(*parts);
      const auto tokens = (torch::arange(4 * 7).view({4, 7}) * 5 + 2).remainder(11);
      const auto own = tokens.narrow(0, group->getRank() * 2, 2);
      const auto loss_of = [&](Decoder& model, const at::Tensor& text, const ProcessGroup& of) {
        if (checkpointing) return model->loss(text.slice(1, 0, -1), text.slice(1, 1));
        const RoutingRecord record;
        const auto loss = model->loss(text.slice(1, 0, -1), text.slice(1, 1));
        return loss + routing_losses(record.routings(), of);
      };
      for (int64_t step = 0; step < 3; ++step) {
        whole_optimizer.zero_grad();
        parts_optimizer.zero_grad();
        loss_of(whole, tokens, nullptr).backward();
        parallel.forward([&] { return loss_of(parts, own, group); }).backward();
        const auto norm = heed::clip_grad_norm_(whole->parameters(), 0.5);
        EXPECT_NEAR(distributed::clip_grad_norm_(*parts, 0.5, group), norm, 1e-9 * norm);
        const auto parameters = parts->named_parameters();
        for (const auto& item : whole->named_parameters()) {
          const auto& gradient = parameters[item.key()].grad();
          if (gradient.defined()) expect_part(gradient, item.value().grad(), item.key(), shards);
        }
        whole_optimizer.step();
        parts_optimizer.step();
      }
      const auto parameters = parts->named_parameters();
      for (const auto& item : whole->named_parameters()) {
        expect_part(parameters[item.key()], item.value(), item.key(), shards);
      }
    });
  }
}

/// An adapter of the attentions, beside experts that are split after it has come.
TEST(ExpertParallel, TrainsAnAdapterOfTheRest) {
  in_processes(2, [](const ProcessGroup& group) {
    auto whole = make_decoder(), parts = make_decoder();
    for (auto* model : {&whole, &parts}) {
      torch::manual_seed(moved(8));
      add_adapter(**model, LoraOptions(2).target_modules({"fc_q", "fc_v", "router"}));
      const at::NoGradGuard no_grad;
      for (auto& parameter : adapter_parameters(**model)) parameter.uniform_(-0.3, 0.3);
    }
    parallelize_experts(*parts, group);
    distributed::DataParallel parallel(parts, group);
    const auto tokens = (torch::arange(4 * 7).view({4, 7}) * 5 + 2).remainder(11);
    const auto own = tokens.narrow(0, group->getRank() * 2, 2);
    const auto loss = whole->loss(tokens.slice(1, 0, -1), tokens.slice(1, 1));
    loss.backward();
    parallel.forward([&] { return parts->loss(own.slice(1, 0, -1), own.slice(1, 1)); }).backward();
    const auto trained = adapter_parameters(*parts), expected = adapter_parameters(*whole);
    ASSERT_EQ(trained.size(), expected.size());
    for (size_t i = 0; i < trained.size(); ++i) {
      expect_close(trained[i].grad(), expected[i].grad(), "gradient of an adapter");
    }
    EXPECT_EQ(value_error([&] { add_adapter(*parts); }),
              "add_adapter: module must not have an adapter already");
    merge_adapter(*whole);
    merge_adapter(*parts);
    expect_close(parts->forward(tokens), whole->forward(tokens), "merged");
  });
}

TEST(ExpertParallel, LossesLeaveOutMaskedRows) {
  in_processes(3, [](const ProcessGroup& group) {
    const auto layer = made<MixtureOfExperts>([] { return MixtureOfExperts(small_options()); });
    const auto counts = uneven(3);
    const auto x = random_input({14, E});
    const auto mask = random_input({14}, /*seed=*/5).gt(0);
    const auto rank = group->getRank();
    const auto own_mask = own_part(mask, counts, rank);
    const auto all = layer->route(x), own = layer->route(own_part(x, counts, rank));
    expect_close(distributed::load_balancing_loss({own}, group, own_mask),
                 load_balancing_loss({all}, mask), "balance");
    expect_close(distributed::router_z_loss({own, own}, group, own_mask),
                 router_z_loss({all, all}, mask), "z");
  });
}

/// The state of the shared parameters is split, that of experts is where they are.
TEST(ExpertParallel, GoesWithZeroRedundancyOptimizerOfTheRest) {
  in_processes(2, [](const ProcessGroup& group) {
    auto whole = make_decoder(), parts = make_decoder();
    parallelize_experts(*parts, group);
    distributed::DataParallel parallel(parts, group);
    const torch::optim::AdamWOptions options(1e-3);
    const auto all = [&] {
      distributed::ZeroRedundancyOptimizer(FusedAdamW(parts->parameters(), options), group);
    };
    EXPECT_THAT(value_error(all), testing::MatchesRegex("ZeroRedundancyOptimizer: optimizer of "
                                                        "rank 1 .* must equal that of rank 0 .*"));
    const auto shards = distributed::shards_of(*parts);
    std::vector<at::Tensor> of_experts, others;
    for (const auto& item : parts->named_parameters()) {
      (shards.count(item.key()) > 0 ? of_experts : others).push_back(item.value());
    }
    distributed::ZeroRedundancyOptimizer optimizer(FusedAdamW(others, options), group);
    FusedAdamW expert_optimizer(of_experts, options), whole_optimizer(whole->parameters(), options);
    const auto tokens = torch::arange(14).view({2, 7}).remainder(11);
    const auto own = tokens.narrow(0, group->getRank(), 1);
    whole->loss(tokens.slice(1, 0, -1), tokens.slice(1, 1)).backward();
    parallel.forward([&] { return parts->loss(own.slice(1, 0, -1), own.slice(1, 1)); }).backward();
    optimizer.step();
    expert_optimizer.step();
    whole_optimizer.step();
    const auto parameters = parts->named_parameters();
    for (const auto& item : whole->named_parameters()) {
      expect_part(parameters[item.key()], item.value(), item.key(), shards);
    }
  });
}

using ExpertParallelFiles = WeightFiles;

TEST_F(ExpertParallelFiles, AreThoseOfOneProcess) {
  in_processes(3, [&](const ProcessGroup& group) {
    auto whole = make_decoder(), parts = make_decoder();
    parallelize_experts(*parts, group);
    distributed::save_weights(*parts, path_, group);
    const auto one = directory_ / "one";
    if (group->getRank() == 0) {
      heed::save_weights(*whole, one);
      EXPECT_EQ(read_bytes(path_), read_bytes(one));
    }
    group->barrier()->wait();
    for (auto& parameter : parts->parameters()) parameter.detach().zero_();
    const auto report = distributed::load_weights(*parts, one, group);
    EXPECT_EQ(report.loaded.size(), whole->named_parameters().size());
    const auto shards = distributed::shards_of(*parts);
    const auto parameters = parts->named_parameters();
    for (const auto& item : whole->named_parameters()) {
      EXPECT_TRUE(parameters[item.key()].equal(part_of(item.value(), item.key(), shards)));
      const auto shard = shards.find(item.key());
      if (shard == shards.end()) continue;
      const auto gathered =
          distributed::gather_shards(parameters[item.key()], shard->second, group);
      EXPECT_TRUE(gathered.equal(item.value()));
    }
  });
}

TEST_F(ExpertParallelFiles, TakeNoAdapterOfSplitExperts) {
  in_processes(2, [&](const ProcessGroup& group) {
    auto model = make_decoder();
    const auto folder = directory_ / ("adapter" + std::to_string(group->getRank()));
    {
      auto other = make_decoder();
      add_adapter(*other, LoraOptions(2).target_modules({"fc_q"}));
      save_adapter(*other, folder);
    }
    parallelize_experts(*model, group);
    const std::string rule =
        ": module must not have experts that are split among processes: give the rest of it an "
        "adapter before parallelize_experts";
    EXPECT_EQ(value_error([&] { add_adapter(*model); }), "add_adapter" + rule);
    const auto of_rest = LoraOptions(2).target_modules({"fc_q"});
    EXPECT_EQ(value_error([&] { add_adapter(*model, of_rest); }), "add_adapter" + rule);
    EXPECT_EQ(value_error([&] { load_adapter(*model, folder); }), "load_adapter" + rule);
    for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.requires_grad());
    auto adapted = made<MixtureOfExperts>([] { return MixtureOfExperts(small_options()); });
    add_adapter(*adapted);
    EXPECT_EQ(value_error([&] { parallelize_experts(*adapted, group); }),
              "parallelize_experts: experts must not have a layer in a Linear's place, such as one "
              "with an adapter");
  });
}

template <typename Module>
void expect_same_draws(const ProcessGroup& group, const std::function<Module()>& make) {
  auto whole = made(make, at::kFloat), parts = made(make, at::kFloat);
  parallelize_experts(*parts, group);
  for (auto* module : {&whole, &parts}) {
    torch::manual_seed(moved(5));
    (*module)->reset_parameters();
  }
  const auto shards = distributed::shards_of(*parts);
  const auto parameters = parts->named_parameters();
  for (const auto& item : whole->named_parameters()) {
    EXPECT_TRUE(parameters[item.key()].equal(part_of(item.value(), item.key(), shards)))
        << item.key();
  }
}

TEST(ExpertParallel, DrawsThePartsOfWhatOneProcessDraws) {
  in_processes(2, [](const ProcessGroup& group) {
    expect_same_draws<MixtureOfExperts>(group, [] { return MixtureOfExperts(small_options()); });
    expect_same_draws<Decoder>(group, [] { return Decoder(decoder_options()); });
  });
}

/// Packed after the split, experts multiply as packed experts of one process do.
TEST(ExpertParallel, PacksTheExpertsOfEachProcess) {
  in_processes(2, [](const ProcessGroup& group) {
    const std::function<MixtureOfExperts()> make = [] { return MixtureOfExperts(small_options()); };
    auto whole = made(make, at::kFloat), parts = made(make, at::kFloat);
    auto packed = made(make, at::kFloat);
    parallelize_experts(*parts, group);
    pack_weights(*whole, PackFormat::int8);
    pack_weights(*parts, PackFormat::int8);
    const auto x = random_input({10, E}).to(at::kFloat);
    const std::vector<int64_t> counts = {7, 3};
    expect_close(parts->forward(own_part(x, counts, group->getRank())),
                 own_part(whole->forward(x), counts, group->getRank()), "output", 1e-5);
    pack_weights(*packed, PackFormat::int8);
    EXPECT_ERROR("parallelize_experts: weights must not be packed by pack_weights: split before",
                 parallelize_experts(*packed, group));
    EXPECT_ERROR(
        "save_weights: process 0 of 2: weights must not be packed by pack_weights where processes "
        "have parts",
        distributed::save_weights(*parts, "unwritten.safetensors", group));
  });
}

TEST(ExpertParallel, CostsWhatATokenDoes) {
  in_processes(2, [](const ProcessGroup& group) {
    auto whole = make_decoder(), parts = make_decoder();
    parallelize_experts(*parts, group);
    const auto all = model_cost(*whole, 1, 4), own = model_cost(*parts, 1, 4);
    EXPECT_EQ(own.total().macs, all.total().macs);
    EXPECT_LT(own.total().parameters, all.total().parameters);
  });
}

TEST(ExpertParallel, ErrorsNameWhatCannotBeSplit) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto refusal = [&](torch::nn::Module& module) {
      return value_error([&] { parallelize_experts(module, group); });
    };
    torch::manual_seed(moved(7));
    EXPECT_EQ(refusal(*MixtureOfExperts(small_options().expert_num(5))),
              "parallelize_experts: expert_num (5) must be a multiple of the number of processes "
              "(2)");
    EXPECT_EQ(refusal(*FeedForward(expert_options())),
              "parallelize_experts: module must be or contain a MixtureOfExperts");
    EXPECT_ERROR("parallelize_experts: group must not be null",
                 parallelize_experts(*MixtureOfExperts(small_options()), nullptr));
    auto model = make_decoder();
    parallelize_experts(*model, group);
    EXPECT_EQ(refusal(*model), "parallelize_experts: module must not be split already");
    EXPECT_ERROR("parallelize: module must not be split already", parallelize(*model, group));
    EXPECT_ERROR("clone: module must not be sharded: clone the whole module before parallelize",
                 model->clone());
    auto tied = made<MixtureOfExperts>([] { return MixtureOfExperts(small_options()); });
    tied->experts->ptr<FeedForwardImpl>(1)->fc_in =
        tied->experts->ptr<FeedForwardImpl>(1)->replace_module(
            "fc_in", tied->experts->ptr<FeedForwardImpl>(0)->fc_in.ptr());
    EXPECT_EQ(refusal(*tied),
              "parallelize_experts: parameters of experts must not be those of another layer too");
    torch::manual_seed(group->getRank());
    EXPECT_THAT(refusal(*MixtureOfExperts(small_options())),
                testing::StartsWith("parallelize_experts: module of rank 1 ("));
  });
}

/// A call that one process cannot make throws in all of them, and the group stays usable.
TEST(ExpertParallel, ErrorsOfACallAreThoseOfAllProcesses) {
  in_processes(3, [](const ProcessGroup& group) {
    const bool odd = group->getRank() == 1;
    auto layer = made<MixtureOfExperts>([] { return MixtureOfExperts(small_options()); });
    parallelize_experts(*layer, group);
    const std::string wrong = "MixtureOfExperts: x dim 1 (9) must equal emb_dim (8); x [4, 9]";
    EXPECT_EQ(value_error([&] {
                layer->forward(random_input({4, odd ? 9 : 8}));
              }),
              odd ? wrong : wrong + " (in process 1 of 3)");
    EXPECT_EQ(value_error([&] {
                const at::AutoGradMode records(!odd);
                layer->forward(random_input({4, 8}));
              }),
              "MixtureOfExperts: gradients must be recorded in all processes or in none; recorded "
              "in rank 1: false, in rank 0: true");
    if (odd) layer->to(at::kFloat);
    EXPECT_EQ(value_error([&] {
                layer->forward(random_input({4, 8}).to(odd ? at::kFloat : at::kDouble));
              }),
              "MixtureOfExperts: dtype of x of rank 1 (Float) must equal that of rank 0 (Double)");
    if (odd) layer->to(at::kDouble);
    EXPECT_EQ(layer->forward(random_input({4, 8})).size(0), 4);
    RoutingRecord record;
    if (!odd) layer->forward(random_input({4, 8}));
    if (odd) layer->forward(random_input({0, 8}));
    EXPECT_EQ(value_error([&] {
                distributed::load_balancing_loss(
                    odd ? std::vector<ExpertRouting>() : record.routings(), group);
              }),
              std::string("load_balancing_loss: routings must not be empty") +
                  (odd ? "" : " (in process 1 of 3)"));
  });
}

/// An expert that throws in one process: the others end at once.
TEST(ExpertParallel, ErrorsOfAnExpertEndAllProcesses) {
  const auto ended = run_group(2, [](const ProcessGroup& group) {
    auto layer = made<MixtureOfExperts>([] { return MixtureOfExperts(small_options()); });
    parallelize_experts(*layer, group);
    if (group->getRank() == 1) layer->experts->to(at::kFloat);
    layer->forward(random_input({6, E}));
  });
  EXPECT_THAT(ended[1].output, testing::HasSubstr("FeedForward: x dtype (Double)"));
  EXPECT_THAT(ended[0].output, testing::StartsWith("MixtureOfExperts: rows from experts failed in "
                                                   "process 0 of 2: "));
  for (const auto& process : ended) EXPECT_LT(process.seconds, kSoon);
}

TEST(ExpertParallel, ErrorsOfDataParallelNameTheGroup) {
  in_processes(4, [](const ProcessGroup& group) {
    auto model = make_decoder();
    const auto rank = group->getRank(), first = rank / 2 * 2;
    const auto half =
        distributed::subgroup(group, {first, first + 1}, "half" + std::to_string(first));
    parallelize_experts(*model, half);
    const auto error = value_error([&] { distributed::DataParallel(model, group); });
    EXPECT_THAT(error, testing::StartsWith(
                           "DataParallel: stack.blocks.0.feed_forward.experts must be split among "
                           "the processes of group: they are split among 2, of which this process "
                           "is "));
    distributed::DataParallel parallel(model, half);
    EXPECT_EQ(value_error([&] { parallel.join([] {}); }),
              "DataParallel::join: module must not have experts that parallelize_experts has "
              "split: those of a process without batches would answer nobody");
  });
}

}  // namespace
}  // namespace heed::test::of_expert_parallel
