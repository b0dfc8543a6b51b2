// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>
#include <heed/distributed/zero_redundancy_optimizer.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <sstream>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "core/seen_tensors.h"
#include "distributed/collectives.h"

namespace heed::distributed {

namespace {

using torch::optim::Optimizer;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using State = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

constexpr const char* kZeroRedundancy = "ZeroRedundancyOptimizer";

int64_t number_of_parameters(const Groups& groups) {
  size_t count = 0;
  for (const auto& group : groups) count += group.params().size();
  return static_cast<int64_t>(count);
}

void check_optimizer(const Optimizer* optimizer) {
  HEED_CHECK(optimizer != nullptr, "{}: optimizer must not be null", kZeroRedundancy);
  HEED_CHECK(dynamic_cast<const torch::optim::LBFGS*>(optimizer) == nullptr,
             "{}: optimizer (LBFGS) must update each parameter by itself", kZeroRedundancy);
  HEED_CHECK(number_of_parameters(optimizer->param_groups()) > 0,
             "{}: optimizer must have a parameter", kZeroRedundancy);
}

std::string describe(const Optimizer& optimizer) {
  auto text = c10::demangle(typeid(optimizer).name());
  const auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    text += fmt::format("\ngroup {}: learning rate {}", i, groups[i].options().get_lr());
    const auto& parameters = groups[i].params();
    for (size_t j = 0; j < parameters.size(); ++j) {
      text += fmt::format("\nparameter {} of group {}: {}", j, i, detail::describe(parameters[j]));
    }
  }
  return text + "\nno more parameters";
}

/// Assigns parameters to processes: the largest first, each to the process that has the fewest
/// elements. Returns the rank of each parameter of each group; one that stands twice has one rank.
std::vector<std::vector<int64_t>> assign(const Groups& groups, int64_t processes) {
  std::vector<std::vector<int64_t>> owners(groups.size());
  std::vector<std::pair<size_t, size_t>> places;
  for (size_t i = 0; i < groups.size(); ++i) {
    owners[i].resize(groups[i].params().size());
    for (size_t j = 0; j < owners[i].size(); ++j) places.emplace_back(i, j);
  }
  const auto elements = [&](const std::pair<size_t, size_t>& place) {
    return groups[place.first].params()[place.second].numel();
  };
  std::stable_sort(places.begin(), places.end(), [&](const auto& one, const auto& other) {
    return elements(one) > elements(other);
  });
  std::vector<int64_t> loads(static_cast<size_t>(processes));
  std::unordered_map<const c10::TensorImpl*, int64_t> owner_of;
  for (const auto& place : places) {
    const auto& parameter = groups[place.first].params()[place.second];
    const auto least = std::min_element(loads.begin(), loads.end());
    const auto [owner, is_new] =
        owner_of.emplace(parameter.unsafeGetTensorImpl(), least - loads.begin());
    if (is_new) *least += parameter.numel();
    owners[place.first][place.second] = owner->second;
  }
  return owners;
}

std::string to_text(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void from_text(Optimizer& optimizer, const std::string& text, at::Device device) {
  std::istringstream stream(text);
  torch::serialize::InputArchive archive;
  archive.load_from(stream, device);
  optimizer.load(archive);
}

std::unique_ptr<torch::optim::OptimizerOptions> defaults_of(const Optimizer* optimizer) {
  return optimizer == nullptr ? nullptr : optimizer->defaults().clone();
}

void move_state(Optimizer& from, State& to) {
  for (auto& [key, value] : from.state()) {
    if (value) to[key] = std::move(value);
  }
  from.state().clear();
}

}  // namespace

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::unique_ptr<Optimizer> optimizer,
                                                 ProcessGroup group)
    : Optimizer(Groups(), defaults_of(optimizer.get())),
      group_(std::move(group)),
      local_(std::move(optimizer)) {
  HEED_CHECK(group_, "{}: group must not be null", kZeroRedundancy);
  detail::check_everywhere(group_, kZeroRedundancy, [&] { check_optimizer(local_.get()); });
  detail::check_same(group_, kZeroRedundancy, "optimizer", describe(*local_));
  param_groups_ = Groups(local_->param_groups());
  number_of_parameters_ = number_of_parameters(param_groups_);
  owners_ = assign(param_groups_, group_->getSize());
  tensors_of_.resize(static_cast<size_t>(group_->getSize()));
  heed::detail::SeenTensors seen;
  for (size_t i = 0; i < owners_.size(); ++i) {
    for (size_t j = 0; j < owners_[i].size(); ++j) {
      const auto& parameter = param_groups_[i].params()[j];
      if (seen.add(parameter)) tensors_of_[static_cast<size_t>(owners_[i][j])].push_back(parameter);
    }
  }
  keep_own();
}

/// Copies the options to `local_`: the user or a scheduler changes those of the base class.
void ZeroRedundancyOptimizer::copy_options() const {
  HEED_CHECK(number_of_parameters(param_groups_) == number_of_parameters_,
             "{}: number of parameters ({}) must stay {}", kZeroRedundancy,
             number_of_parameters(param_groups_), number_of_parameters_);
  auto& groups = local_->param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].set_options(param_groups_[i].options().clone());
  }
}

/// Gives `local_` the parameters of process `rank`, or of all processes. To load a state, a
/// parameter that stands twice gets a substitute at its second place: otherwise LibTorch would
/// replace the state that it has loaded for the first place by nothing.
void ZeroRedundancyOptimizer::select(std::optional<int64_t> rank, bool to_load) const {
  heed::detail::SeenTensors seen;
  for (size_t i = 0; i < owners_.size(); ++i) {
    auto& chosen = local_->param_groups()[i].params();
    chosen.clear();
    for (size_t j = 0; j < owners_[i].size(); ++j) {
      if (rank && owners_[i][j] != *rank) continue;
      const auto& parameter = param_groups_[i].params()[j];
      chosen.push_back(!seen.add(parameter) && to_load ? at::empty({0}) : parameter);
    }
  }
}

/// Gives `local_` this process's parameters, and keeps their state only.
void ZeroRedundancyOptimizer::keep_own() const {
  select(group_->getRank());
  State all;
  move_state(*local_, all);
  for (const auto& tensor : tensors_of_[static_cast<size_t>(group_->getRank())]) {
    const auto found = all.find(tensor.unsafeGetTensorImpl());
    if (found != all.end()) local_->state()[found->first] = std::move(found->second);
  }
}

at::Tensor ZeroRedundancyOptimizer::step(LossClosure closure) {
  copy_options();
  return detail::run_exchange(group_, "ZeroRedundancyOptimizer::step", [&] {
    auto loss = local_->step(std::move(closure));
    detail::broadcast_all(group_, "broadcast of updated parameters", tensors_of_);
    return loss;
  });
}

void ZeroRedundancyOptimizer::save(torch::serialize::OutputArchive& archive) const {
  constexpr const char* kOperation = "gathering of the optimizer's state";
  copy_options();
  if (group_->getRank() != 0) {
    return detail::run_exchange(
        group_, kOperation, [&] { detail::send_text(group_, kOperation, to_text(*local_), 0); });
  }
  State all;
  move_state(*local_, all);
  const auto restore = c10::make_scope_exit([&] {
    move_state(*local_, all);
    local_->state() = std::move(all);
    keep_own();
  });
  detail::run_exchange(group_, kOperation, [&] {
    for (int64_t rank = 1; rank < group_->getSize(); ++rank) {
      const auto text = detail::receive_text(group_, kOperation, rank);
      select(rank, /*to_load=*/true);
      from_text(*local_, text, tensors_of_[0][0].device());
      move_state(*local_, all);
    }
  });
  select(std::nullopt);
  local_->state() = std::exchange(all, State());
  copy_options();
  local_->save(archive);
}

void ZeroRedundancyOptimizer::load(torch::serialize::InputArchive& archive) {
  State before;
  move_state(*local_, before);
  const auto restore = c10::make_scope_exit([&] {
    if (!before.empty()) local_->state() = std::move(before);
    keep_own();
  });
  select(std::nullopt, /*to_load=*/true);
  local_->load(archive);
  before.clear();
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    param_groups_[i].set_options(local_->param_groups()[i].options().clone());
  }
}

}  // namespace heed::distributed
