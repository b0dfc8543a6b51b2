// SPDX-License-Identifier: BSD-3-Clause
// Measures heed::distributed for distributed_rounds.py, which starts the processes as torchrun
// does.
//   heed_distributed_bench train|ring|experts|link [NAME=VALUE]...
// Each process prints one line of JSON.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <heed/distributed.h>
#include <heed/memory.h>
#include <heed/mixture_of_experts.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/language_model.h"
#include "support/measured_group.h"
#include "support/process_meter.h"
#include "support/timing.h"

namespace heed::bench {

namespace {

using distributed::ProcessGroup;

/// The default model of train_gpt, as in distributed_peer.py.
constexpr LanguageModelSizes kModel = {
    /*vocabulary=*/256, /*layers=*/4, /*width=*/192,
    /*heads=*/6,        /*groups=*/3, /*hidden=*/512,
    /*context=*/128,    /*batch=*/16};
constexpr int64_t kWarmUpSteps = 5;

/// NAME=VALUE on the command line.
class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 2; i < argc; ++i) {
      const std::string text = argv[i];
      const auto place = text.find('=');
      if (place == std::string::npos) throw std::invalid_argument(text + " must be NAME=VALUE");
      values_[text.substr(0, place)] = text.substr(place + 1);
    }
  }
  std::string text(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? "" : found->second;
  }
  int64_t number(const std::string& name, int64_t otherwise) const {
    const auto value = text(name);
    return value.empty() ? otherwise : std::stoll(value);
  }

 private:
  std::map<std::string, std::string> values_;
};

/// One line of JSON, written at once.
void print(const std::map<std::string, double>& numbers) {
  std::string line;
  for (const auto& [name, value] : numbers) {
    line += fmt::format("{}\"{}\": {}", line.empty() ? "{" : ", ", name, value);
  }
  std::cout << line + "}\n" << std::flush;
}

class Training {
 public:
  Training(const ProcessGroup& world, const Arguments& arguments)
      : mesh_(world, distributed::MeshOptions()
                         .data(arguments.number("data", 1))
                         .context(arguments.number("context", 1))
                         .tensor(arguments.number("tensor", 1))) {
    torch::manual_seed(0);
    auto sizes = kModel;
    sizes.groups = arguments.number("groups", kModel.groups);
    model_ = make_language_model(sizes);
    if (mesh_.tensor()->getSize() > 1) {
      const bool split_norms = arguments.number("sequence_parallel", 0) != 0;
      distributed::parallelize(*model_, mesh_.tensor(),
                               distributed::ParallelizeOptions().sequence_parallel(split_norms));
    }
    if (mesh_.context()->getSize() > 1) distributed::share_sequence(*model_, mesh_.context());
    const auto& replicas = mesh_.replicas();
    if (replicas->getSize() > 1) parallel_.emplace(model_, replicas);
    const auto options = torch::optim::AdamWOptions(2e-3).weight_decay(0.1);
    optimizer_ = std::make_unique<torch::optim::AdamW>(model_->parameters(), options);
    if (arguments.number("zero", 0) != 0) {
      optimizer_ =
          std::make_unique<distributed::ZeroRedundancyOptimizer>(std::move(optimizer_), replicas);
    }
    torch::manual_seed(static_cast<uint64_t>(1 + mesh_.data_rank()));
  }

  double step() {
    const auto batch = kModel.batch / mesh_.data()->getSize();
    const auto tokens = at::randint(kModel.vocabulary, {batch, kModel.context + 1}, at::kLong);
    const auto inputs = own_share(tokens.narrow(1, 0, kModel.context));
    const auto targets = own_share(tokens.narrow(1, 1, kModel.context));
    optimizer_->zero_grad();
    const auto scores = parallel_ ? parallel_->forward(model_, inputs) : model_->forward(inputs);
    const auto loss = loss_of(scores, targets);
    loss.backward();
    // With parts of weights, the norm would be that of a part.
    if (mesh_.tensor()->getSize() == 1) {
      torch::nn::utils::clip_grad_norm_(model_->parameters(), /*max_norm=*/1.0);
    }
    const auto start = wall_seconds();
    optimizer_->step();
    optimizer_seconds_ += wall_seconds() - start;
    return loss.item<double>();
  }

  /// The time of all steps of the optimizer, together.
  double optimizer_seconds() const { return optimizer_seconds_; }

  int64_t parameters() const {
    int64_t count = 0;
    for (const auto& parameter : model_->parameters()) count += parameter.numel();
    return count;
  }

 private:
  at::Tensor own_share(const at::Tensor& tokens) const {
    return mesh_.context()->getSize() > 1
               ? distributed::shard_sequence(tokens, /*dim=*/1, mesh_.context())
               : tokens;
  }
  at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& targets) const {
    if (mesh_.tensor()->getSize() > 1) {
      return distributed::vocab_parallel_cross_entropy(scores, targets, mesh_.tensor());
    }
    return at::cross_entropy_loss(scores.flatten(0, 1), targets.flatten());
  }

  distributed::Mesh mesh_;
  Decoder model_{nullptr};
  std::optional<distributed::DataParallel> parallel_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  double optimizer_seconds_ = 0.0;
};

void train(const ProcessGroup& world, const Arguments& arguments) {
  Training training(world, arguments);
  const auto steps = arguments.number("steps", 20);
  for (int64_t i = 0; i < kWarmUpSteps; ++i) training.step();
  world->barrier()->wait();
  const auto interface = arguments.text("interface");
  const auto wire = bytes_on_wire(interface);
  const auto start = wall_seconds(), computed = process_seconds();
  double loss = 0.0;
  for (int64_t i = 0; i < steps; ++i) loss = training.step();
  world->barrier()->wait();
  const auto seconds = wall_seconds() - start, count = static_cast<double>(steps);
  print({{"tokens_per_second", count * kModel.batch * kModel.context / seconds},
         {"processor_seconds", (process_seconds() - computed) / count},
         {"wire_bytes", static_cast<double>(bytes_on_wire(interface) - wire) / count},
         {"optimizer_seconds", training.optimizer_seconds() / (count + kWarmUpSteps)},
         {"parameters", static_cast<double>(training.parameters())},
         {"loss", loss}});
}

/// Query, key and value of this process.
struct SharedCall {
  SharedCall(const ProcessGroup& group, const Arguments& arguments)
      : causal(arguments.number("causal", 1) != 0),
        backward(arguments.number("backward", 0) != 0),
        ulysses(arguments.number("ulysses", 0) != 0) {
    const auto length = arguments.number("L", 8192) / group->getSize(),
               heads = arguments.number("H", 8), groups = arguments.number("G", heads),
               dim = arguments.number("D", 64);
    query = at::randn({1, heads, length, dim});
    key = at::randn({1, groups, length, dim});
    value = at::randn({1, groups, length, dim});
    if (!backward) return;
    for (auto* tensor : {&query, &key, &value}) tensor->requires_grad_();
  }

  void run(const ProcessGroup& group) {
    const auto options = AttendOptions().causal(causal);
    const auto output = ulysses ? distributed::ulysses_attend(query, key, value, group, options)
                                : distributed::ring_attend(query, key, value, group, options);
    if (!backward) return;
    output.backward(at::ones_like(output));
    for (auto* tensor : {&query, &key, &value}) tensor->mutable_grad().reset();
  }

  bool causal, backward, ulysses;
  at::Tensor query, key, value;
};

/// The messages of a ring, without the computation.
class BareRing {
 public:
  BareRing(const ProcessGroup& group, const SharedCall& call)
      : group_(group), backward_(call.backward), processes_(group->getSize()) {
    const int64_t rank = group->getRank();
    const auto chunk = [&] { return at::zeros({(call.key.numel() + call.value.numel()) / 2}); };
    for (int64_t other = 0; other < processes_; ++other) {
      if (other == rank) continue;
      for (int64_t n = 0; n < 2; ++n) {
        if (sees(other, rank, n, call.causal)) given_.push_back({other, n, chunk()});
        if (sees(rank, other, n, call.causal)) taken_.push_back({other, n, chunk()});
      }
    }
  }

  void run() {
    exchange(given_, taken_);
    if (!backward_) return;
    exchange(given_, taken_);  // keys again
    exchange(taken_, given_);  // gradients go the other way
  }

 private:
  struct Message {
    int64_t other, n;
    at::Tensor buffer;
  };

  /// Whether causal queries of a process may see chunk n of the other.
  bool sees(int64_t reader, int64_t owner, int64_t n, bool causal) const {
    const auto chunk = n == 0 ? owner : 2 * processes_ - 1 - owner;
    return !causal || chunk <= 2 * processes_ - 1 - reader;
  }

  void exchange(std::vector<Message>& from, std::vector<Message>& to) {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    const auto start = [&](Message& message, bool sends) {
      std::vector<at::Tensor> tensors = {message.buffer};
      const auto other = static_cast<int>(message.other), tag = static_cast<int>(message.n);
      works.push_back(sends ? group_->send(tensors, other, tag)
                            : group_->recv(tensors, other, tag));
    };
    for (auto& message : to) start(message, false);
    for (auto& message : from) start(message, true);
    for (const auto& work : works) work->wait();
  }

  ProcessGroup group_;
  bool backward_;
  int64_t processes_;
  std::vector<Message> given_, taken_;
};

/// Median seconds of a call that all processes begin together.
template <typename Run>
double median_of(const ProcessGroup& world, int64_t count, const Run& run) {
  Samples samples;
  for (int64_t i = 0; i < count; ++i) {
    world->barrier()->wait();
    const auto start = wall_seconds();
    run();
    samples.push_back(wall_seconds() - start);
  }
  return median(samples);
}

void ring(const ProcessGroup& world, const Arguments& arguments) {
  const auto repetitions = arguments.number("repetitions", 5);
  const auto interface = arguments.text("interface");
  Traffic traffic;
  const auto group = world->getSize() > 1 ? measure(world, traffic) : world;
  std::map<std::string, double> found;
  {
    SharedCall call(world, arguments);
    call.run(group);  // warms up
    Samples computed, waited, of_all_threads;
    const auto bytes = traffic.bytes, wire = bytes_on_wire(interface);
    found["seconds"] = median_of(world, repetitions, [&] {
      const auto computing = thread_seconds(), all = process_seconds(), waiting = traffic.waited;
      call.run(group);
      computed.push_back(thread_seconds() - computing);
      of_all_threads.push_back(process_seconds() - all);
      waited.push_back(traffic.waited - waiting);
    });
    const auto count = static_cast<double>(repetitions);
    found["computing_seconds"] = median(computed);
    found["processor_seconds"] = median(of_all_threads);
    found["waiting_seconds"] = median(waited);
    found["bytes"] = static_cast<double>(traffic.bytes - bytes) / count;
    found["wire_bytes"] = static_cast<double>(bytes_on_wire(interface) - wire) / count;
    if (world->getSize() > 1 && !call.ulysses) {
      BareRing bare(world, call);
      bare.run();
      Samples of_transfer;
      found["transfer_seconds"] = median_of(world, repetitions, [&] {
        const auto all = process_seconds();
        bare.run();
        of_transfer.push_back(process_seconds() - all);
      });
      found["transfer_processor_seconds"] = median(of_transfer);
    }
  }
  world->barrier()->wait();
  found["peak_bytes"] =
      static_cast<double>(peak_of_process([&] { SharedCall(world, arguments).run(group); }));
  world->barrier()->wait();
  print(found);
}

/// A mixture whose experts are split among the processes, each with its share of the tokens.
void experts(const ProcessGroup& world, const Arguments& arguments) {
  const auto repetitions = arguments.number("repetitions", 5);
  const auto tokens = arguments.number("tokens", 2048) / world->getSize();
  const bool backward = arguments.number("backward", 0) != 0;
  constexpr int64_t kWidth = 512;
  torch::manual_seed(0);
  MixtureOfExperts mixture(MixtureOfExpertsOptions(
      FeedForwardOptions(kWidth).hidden_dim(1024).activation(Activation::swiglu).bias(false),
      /*expert_num=*/8, /*top_k=*/2));
  if (world->getSize() > 1) distributed::parallelize_experts(*mixture, world);
  const auto x = at::randn({tokens, kWidth}).requires_grad_(backward);
  const auto run = [&] {
    const at::AutoGradMode records(backward);
    const auto output = mixture->forward(x);
    if (!backward) return;
    output.backward(at::ones_like(output));
    mixture->zero_grad();
    x.mutable_grad().reset();
  };
  run();  // warms up
  Samples computed;
  const auto seconds = median_of(world, repetitions, [&] {
    const auto start = process_seconds();
    run();
    computed.push_back(process_seconds() - start);
  });
  print({{"seconds", seconds}, {"processor_seconds", median(computed)}});
}

/// Latency and bandwidth between processes 0 and 1, and all-reduces over all.
void link(const ProcessGroup& world, const Arguments& arguments) {
  const auto repetitions = arguments.number("repetitions", 9);
  const auto rank = world->getRank();
  const auto pass = [&](at::Tensor& tensor, int from, int to) {
    std::vector<at::Tensor> tensors = {tensor};
    if (rank == from) world->send(tensors, to, 0)->wait();
    if (rank == to) world->recv(tensors, from, 0)->wait();
  };
  const auto there_and_back = [&](at::Tensor& tensor, int times) {
    for (int i = 0; i < times; ++i) pass(tensor, 0, 1), pass(tensor, 1, 0);
  };
  const auto all_reduce = [&](at::Tensor& tensor) {
    std::vector<at::Tensor> tensors = {tensor};
    world->allreduce(tensors)->wait();
  };
  constexpr int kPasses = 200;
  constexpr int64_t kSmall = 2, kLarge = 1 << 22;  // elements
  auto small = at::zeros({kSmall}), large = at::zeros({kLarge});
  there_and_back(small, kPasses);
  const auto latency =
      median_of(world, repetitions, [&] { there_and_back(small, kPasses); }) / (2 * kPasses);
  there_and_back(large, 1);
  const auto large_pass = median_of(world, repetitions, [&] { there_and_back(large, 1); }) / 2;
  print({{"latency_seconds", latency},
         {"bytes_per_second", static_cast<double>(large.nbytes()) / large_pass},
         {"small_all_reduce_seconds", median_of(world, repetitions, [&] { all_reduce(small); })},
         {"large_all_reduce_seconds", median_of(world, repetitions, [&] { all_reduce(large); })},
         {"large_all_reduce_bytes", static_cast<double>(large.nbytes())}});
}

int run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const Arguments arguments(argc, argv);
  at::set_num_threads(static_cast<int>(arguments.number("threads", 1)));
  const auto world = distributed::init_process_group();
  if (mode == "train") {
    train(world, arguments);
  } else if (mode == "ring") {
    ring(world, arguments);
  } else if (mode == "experts") {
    experts(world, arguments);
  } else if (mode == "link") {
    link(world, arguments);
  } else {
    throw std::invalid_argument("the mode must be train, ring, experts or link");
  }
  world->barrier()->wait();
  return 0;
}

}  // namespace

}  // namespace heed::bench

int main(int argc, char** argv) {
  heed::reuse_memory();
  try {
    return heed::bench::run(argc, argv);
  } catch (const c10::Error& error) {
    std::cerr << "heed_distributed_bench: " << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "heed_distributed_bench: " << error.what() << '\n';
  }
  return 1;
}
