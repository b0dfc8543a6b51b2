// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/core.h>
#include <heed/distributed.h>

#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>

#include "team.h"

namespace heed::examples {

namespace {

using distributed::ProcessGroup;

std::runtime_error must_divide(const std::string& what, int64_t size, int64_t parts) {
  return std::runtime_error(fmt::format("{} ({}) must be a multiple of {}", what, size, parts));
}

distributed::Mesh make_mesh(const ProcessGroup& group, const TeamSizes& sizes) {
  const int64_t processes = group->getSize();
  const auto others = sizes.context * sizes.tensor;
  if (sizes.data == 0 && processes % others != 0) {
    throw std::runtime_error(fmt::format(
        "--context-parallel ({}) * --tensor-parallel ({}) must divide the number of processes ({})",
        sizes.context, sizes.tensor, processes));
  }
  const auto data = sizes.data > 0 ? sizes.data : processes / others;
  if (data * others != processes) {
    throw std::runtime_error(
        fmt::format("--data-parallel ({}) * --context-parallel ({}) * --tensor-parallel ({}) must "
                    "be the number of processes ({})",
                    data, sizes.context, sizes.tensor, processes));
  }
  return distributed::Mesh(
      group, distributed::MeshOptions().data(data).context(sizes.context).tensor(sizes.tensor));
}

/// Throws an error that names the operation and this process.
template <typename Run>
void run_named(const ProcessGroup& group, const std::string& operation, const Run& run) {
  try {
    run();
  } catch (const std::exception& error) {
    const auto* named = dynamic_cast<const c10::Error*>(&error);
    throw std::runtime_error(fmt::format("{} failed in process {} of {}: {}", operation,
                                         group->getRank(), group->getSize(),
                                         named ? named->what_without_backtrace() : error.what()));
  }
}

double sum(const ProcessGroup& group, double value) {
  std::vector<at::Tensor> tensors = {at::full({1}, value, at::kDouble)};
  if (group->getSize() > 1) {
    run_named(group, "sum of a number", [&] { group->allreduce(tensors)->wait(); });
  }
  return tensors[0].item<double>();
}

void broadcast(const ProcessGroup& group, at::Tensor tensor) {
  std::vector<at::Tensor> tensors = {std::move(tensor)};
  run_named(group, "broadcast of a text", [&] { group->broadcast(tensors)->wait(); });
}

/// The text of rank 0, in all processes.
std::string broadcast(const ProcessGroup& group, const std::string& text) {
  const auto size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  broadcast(group, size);
  if (size.item<int64_t>() == 0) return "";
  const auto bytes =
      group->getRank() == 0 ? to_bytes(text) : at::empty({size.item<int64_t>()}, at::kByte);
  broadcast(group, bytes);
  return to_text(bytes);
}

/// While it exists, the random numbers of this process differ from those of the others; after it
/// they are in step again.
class OwnRandomNumbers {
 public:
  explicit OwnRandomNumbers(int64_t stream)
      : generator_(at::globalContext().defaultGenerator(at::kCPU)), state_(generator_.get_state()) {
    const auto seed = at::check_generator<at::CPUGeneratorImpl>(generator_)->random64();
    generator_.set_current_seed(seed + static_cast<uint64_t>(stream));
  }
  // As if none had been drawn: the batches that follow are those of one process.
  ~OwnRandomNumbers() { generator_.set_state(state_); }
  OwnRandomNumbers(const OwnRandomNumbers&) = delete;
  OwnRandomNumbers& operator=(const OwnRandomNumbers&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

class ProcessTeam : public Team {
 public:
  explicit ProcessTeam(const TeamSizes& sizes)
      : group_(distributed::init_process_group()), mesh_(make_mesh(group_, sizes)) {}

  bool leads() const override { return group_->getRank() == 0; }

  std::string lead(const std::function<std::string()>& work) const override {
    std::string text;
    std::exception_ptr failure;
    if (leads()) {
      try {
        text = work();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    const bool failed = any(failure != nullptr);
    if (failure) std::rethrow_exception(failure);
    if (failed) throw OtherFailed();
    return broadcast(group_, text);
  }

  void check_same(const std::string& name, const std::string& text) const override {
    const bool differs = broadcast(group_, text) != text;
    if (any(differs)) throw std::runtime_error(name + " must be the same in all processes");
  }

  void split(Decoder& model) override {
    if (splits_weights()) distributed::parallelize(*model, mesh_.tensor());
    distributed::share_sequence(*model, mesh_.context());
    if (mesh_.replicas()->getSize() > 1) parallel_.emplace(model, mesh_.replicas());
  }

  bool splits_weights() const override { return mesh_.tensor()->getSize() > 1; }

  at::Tensor own_rows(const at::Tensor& batch) const override {
    const int64_t parts = mesh_.data()->getSize();
    if (batch.size(0) % parts != 0) throw must_divide("--batch-size", batch.size(0), parts);
    const auto rows = batch.size(0) / parts;
    return batch.narrow(0, mesh_.data_rank() * rows, rows);
  }

  at::Tensor loss(Decoder& model, const at::Tensor& windows) const override {
    const auto context = windows.size(1) - 1;
    const int64_t parts = 2 * mesh_.context()->getSize();
    if (parts > 2 && context % parts != 0) throw must_divide("--context", context, parts);
    const auto share = [&](int64_t first) {
      return distributed::shard_sequence(windows.narrow(1, first, context), 1, mesh_.context());
    };
    return model->loss(share(0), share(1));
  }

  at::Tensor own_loss(const std::function<at::Tensor()>& loss, bool last_batch) override {
    if (!parallel_) return loss();
    const OwnRandomNumbers own(mesh_.replicas()->getRank());
    if (last_batch) return parallel_->forward(loss);
    const auto more = parallel_->no_sync();
    return parallel_->forward(loss);
  }

  double mean(double value) const override {
    return sum(mesh_.replicas(), value) / static_cast<double>(mesh_.replicas()->getSize());
  }
  bool any(bool value) const override { return sum(group_, value ? 1.0 : 0.0) > 0.0; }

  void step(FusedAdamW& optimizer, Decoder& model, double most) const override {
    if (!splits_weights()) return Team::step(optimizer, model, most);
    distributed::clip_grad_norm_(*model, most, mesh_.tensor());
    optimizer.step();
  }

  at::Tensor whole(const Decoder& model, const std::string& name,
                   const at::Tensor& part) const override {
    const auto shard = shard_of(model, name);
    return shard ? distributed::gather_shards(part, *shard, mesh_.tensor()) : part;
  }

  at::Tensor part(const Decoder& model, const std::string& name,
                  const at::Tensor& whole) const override {
    const auto shard = shard_of(model, name);
    return shard ? whole.narrow(shard->dim, shard->first, shard->size) : whole;
  }

 private:
  static std::optional<TensorShard> shard_of(const Decoder& model, const std::string& name) {
    const auto shards = distributed::shards_of(*model);
    const auto found = shards.find(name);
    return found == shards.end() ? std::nullopt : std::make_optional(found->second);
  }

  ProcessGroup group_;
  distributed::Mesh mesh_;
  std::optional<distributed::DataParallel> parallel_;  // of the model
};

}  // namespace

std::unique_ptr<Team> make_process_team(const TeamSizes& sizes) {
  return std::make_unique<ProcessTeam>(sizes);
}

}  // namespace heed::examples
