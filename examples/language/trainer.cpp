// SPDX-License-Identifier: BSD-3-Clause
#include "trainer.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/core.h>
#include <heed/autocast.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "support/checks.h"
#include "support/distinct_parameters.h"

namespace heed::examples {

namespace {

constexpr double kLastRate = 0.1;                // of the learning rate
constexpr const char* kGenerator = "generator";  // the CPU's

Decoder make_seeded(const TrainedModel& trained, const TrainingOptions& training,
                    at::Device device) {
  torch::manual_seed(training.seed);
  auto model = trained.make();
  model->to(device);
  return model;
}

torch::OrderedDict<std::string, at::Tensor> named_trained_parameters(const Decoder& model) {
  torch::OrderedDict<std::string, at::Tensor> trained;
  for (const auto& parameter : model->named_parameters()) {
    if (parameter.value().requires_grad()) trained.insert(parameter.key(), parameter.value());
  }
  return trained;
}

/// Matrices decay, the norms' weights do not.
FusedAdamW make_optimizer(const Decoder& model, const TrainingOptions& options) {
  std::vector<at::Tensor> matrices, vectors;
  for (const auto& parameter : named_trained_parameters(model)) {
    (parameter.value().dim() > 1 ? matrices : vectors).push_back(parameter.value());
  }
  const auto settings = [&](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.95}).weight_decay(decay));
  };
  return FusedAdamW(std::vector<torch::optim::OptimizerParamGroup>{
      {matrices, settings(options.weight_decay)}, {vectors, settings(0)}});
}

/// The learning rate of the step after `done` ones.
double learning_rate(const TrainingOptions& options, int64_t done) {
  if (done < options.warm_up) {
    return options.learning_rate * static_cast<double>(done + 1) /
           static_cast<double>(options.warm_up);
  }
  const auto part = static_cast<double>(done - options.warm_up) /
                    static_cast<double>(std::max<int64_t>(1, options.steps - options.warm_up));
  return options.learning_rate *
         (kLastRate + (1 - kLastRate) * (1 + std::cos(M_PI * std::min(part, 1.0))) / 2);
}

/// The generators of all random numbers, with their names in a checkpoint: batches draw on the CPU,
/// dropout on the device.
std::vector<std::pair<std::string, at::Generator>> generators(at::Device device) {
  std::vector<std::pair<std::string, at::Generator>> all = {
      {kGenerator, at::globalContext().defaultGenerator(at::kCPU)}};
  if (!device.is_cpu()) {
    all.emplace_back("device_generator", at::globalContext().defaultGenerator(device));
  }
  return all;
}

/// [held out, 2]: step and loss.
at::Tensor held_out_losses(const LossHistory& history) {
  std::vector<double> numbers;
  for (const auto& [step, loss] : history.held_out) {
    numbers.insert(numbers.end(), {static_cast<double>(step), loss});
  }
  return at::tensor(numbers, at::kDouble).view({-1, 2});
}

LossHistory to_history(const at::Tensor& training, const at::Tensor& held_out) {
  LossHistory history;
  const auto* losses = training.const_data_ptr<double>();
  history.training.assign(losses, losses + training.numel());
  const auto* rows = held_out.const_data_ptr<double>();
  for (int64_t i = 0; i < held_out.size(0); ++i) {
    history.held_out.emplace_back(static_cast<int64_t>(rows[2 * i]), rows[2 * i + 1]);
  }
  return history;
}

/// The names of what a checkpoint has of a parameter.
std::string weight_of(const std::string& name) { return "model." + name; }
std::string steps_of(const std::string& name) { return "optimizer.step." + name; }
std::string mean_of(const std::string& name) { return "optimizer.exp_avg." + name; }
std::string square_of(const std::string& name) { return "optimizer.exp_avg_sq." + name; }

std::map<std::string, std::vector<int64_t>> shapes_of(const Decoder& model) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& parameter : named_trained_parameters(model)) {
    shapes[parameter.key()] = parameter.value().sizes().vec();
  }
  return shapes;
}

/// LibTorch takes a state with which its generator reads beyond its 624 numbers, of which `next`
/// are used and `left` are left. Both stand in the state, see at::CPUGeneratorImpl::get_state.
bool is_generator_state(const at::Tensor& state) {
  constexpr int64_t kNumbers = 624;
  const auto now = at::globalContext().defaultGenerator(at::kCPU).get_state();
  if (state.numel() != now.numel()) return false;
  int32_t left = 0, is_seeded = 0;
  int64_t next = 0;
  const auto* bytes = static_cast<const char*>(state.const_data_ptr());
  std::memcpy(&left, bytes + 8, sizeof(left));
  std::memcpy(&is_seeded, bytes + 12, sizeof(is_seeded));
  std::memcpy(&next, bytes + 16, sizeof(next));
  return is_seeded == 1 && left >= 1 && left <= kNumbers && next >= 0 &&
         next <= kNumbers + 1 - left;
}

bool all_finite(const at::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

/// A tensor that `find` returns in the leader, in all processes.
template <typename Find>
at::Tensor shared(const Team& team, at::ScalarType dtype, const std::vector<int64_t>& sizes,
                  const Find& find) {
  at::Tensor found;
  const auto bytes = team.lead([&] {
    found = find();
    return to_text(found);
  });
  return team.leads() ? found : to_bytes(bytes).view(dtype).view(sizes);
}

}  // namespace

Trainer::Trainer(const TrainedModel& trained, const TrainingOptions& training,
                 const TokenCorpus& corpus, at::Device device, Team& team)
    : team_(team),
      trained_(trained),
      options_(training),
      device_(device),
      training_(corpus.training.to(device)),
      held_out_(corpus.held_out.to(device)),
      model_(make_seeded(trained, training, device)),
      optimizer_(make_optimizer(model_, training)) {
  if (held_out_.size(0) <= trained.context) {
    throw std::runtime_error(
        fmt::format("the text's held-out tenth, {} {}, must be longer than the context ({})",
                    held_out_.size(0), trained.tokens, trained.context));
  }
  for (const auto& parameter : distinct_parameters(*model_)) {
    parameters_ += parameter.numel();
    if (parameter.requires_grad()) trained_parameters_ += parameter.numel();
  }
  shapes_ = shapes_of(model_);
  team_.split(model_);
}

double Trainer::tokens_a_step() const {
  return static_cast<double>(options_.accumulate) * static_cast<double>(options_.batch_size) *
         static_cast<double>(trained_.context);
}

/// The tokens of `text` [N] from each of `starts` [B] on: [B, context + 1] int64.
at::Tensor Trainer::windows(const at::Tensor& text, const at::Tensor& starts) const {
  const auto places = starts.unsqueeze(1) + at::arange(trained_.context + 1);
  return text.index({places.to(device_)}).to(at::kLong);
}

/// The mean over all tokens of `windows` [B, context + 1] but the first ones.
at::Tensor Trainer::loss(const at::Tensor& windows) {
  const auto dtype = options_.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const Autocast autocast(device_.type(), dtype);
  return team_.loss(model_, windows);
}

void Trainer::step() {
  model_->train();
  for (auto& group : optimizer_.param_groups()) {
    group.options().set_lr(learning_rate(options_, steps_done()));
  }
  optimizer_.zero_grad();
  const auto last = training_.size(0) - trained_.context;
  const auto batches = static_cast<double>(options_.accumulate);
  double mean = 0;
  for (int64_t i = 0; i < options_.accumulate; ++i) {
    const auto starts = team_.own_rows(at::randint(last, {options_.batch_size}, at::kLong));
    const auto batch_loss =
        team_.own_loss([&] { return loss(windows(training_, starts)) / batches; },
                       /*last_batch=*/i + 1 == options_.accumulate);
    batch_loss.backward();
    mean += batch_loss.item<double>();
  }
  mean = team_.mean(mean);
  check_loss(mean);
  team_.step(optimizer_, model_, options_.clip);
  history_.training.push_back(mean);
}

double Trainer::evaluate(int64_t most) {
  const torch::NoGradGuard no_grad;
  model_->eval();
  const auto context = trained_.context;
  const auto all = (held_out_.size(0) - 1) / context;
  const auto count = std::min(most, all);
  const auto starts = (at::arange(count) * all).floor_divide(count) * context;  // evenly spread
  double sum = 0;
  for (const auto& part : starts.split(options_.batch_size)) {
    sum += loss(windows(held_out_, part)).item<double>() * static_cast<double>(part.size(0));
  }
  const auto mean = team_.mean(sum / static_cast<double>(count));
  check_loss(mean);
  return mean;
}

Decoder Trainer::model() const {
  if (!team_.splits_weights()) return model_;
  // It is about to be filled, and draws no random numbers.
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const auto state = generator.get_state();
  auto whole = trained_.make();
  generator.set_state(state);
  whole->to(device_);
  const torch::NoGradGuard no_grad;
  auto parameters = whole->named_parameters();
  for (const auto& parameter : model_->named_parameters()) {
    parameters[parameter.key()].copy_(team_.whole(model_, parameter.key(), parameter.value()));
  }
  return whole;
}

void Trainer::save(const std::string& path, const std::string& about) const {
  NamedTensors tensors;
  for (const auto& parameter : named_trained_parameters(model_)) {
    const auto& name = parameter.key();
    const auto keep_whole = [&](const std::string& full, const at::Tensor& part) {
      const auto whole = team_.whole(model_, name, part.detach());
      if (team_.leads()) tensors[full] = whole;  // the others only give their parts
    };
    keep_whole(weight_of(name), parameter.value());
    const auto found = optimizer_.state().find(parameter.value().unsafeGetTensorImpl());
    if (found == optimizer_.state().end()) continue;  // no step has been done
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
    tensors[steps_of(name)] = at::scalar_tensor(state.step(), at::kLong);
    keep_whole(mean_of(name), state.exp_avg());
    keep_whole(square_of(name), state.exp_avg_sq());
  }
  for (const auto& [name, generator] : generators(device_)) tensors[name] = generator.get_state();
  tensors["training_losses"] = at::tensor(history_.training, at::kDouble);
  tensors["held_out_losses"] = held_out_losses(history_);
  team_.run_in_leader([&] { write_checkpoint(tensors, about, path); });
}

/// Throws std::runtime_error unless the state is one of this training. In the leader.
void Trainer::check(const Checkpoint& checkpoint) const {
  for (const auto& [name, sizes] : shapes_) {
    checkpoint.at(weight_of(name), at::kFloat, sizes);
    if (!checkpoint.has(steps_of(name))) continue;  // no step has been done
    const auto steps = checkpoint.at(steps_of(name), at::kLong, {}).item<int64_t>();
    checkpoint.check(steps > 0 && steps <= options_.steps, steps_of(name) + " is out of range");
    checkpoint.at(mean_of(name), at::kFloat, sizes);
    checkpoint.at(square_of(name), at::kFloat, sizes);
  }
  for (const auto& [name, generator] : generators(device_)) {
    const auto& state = checkpoint.at(name, at::kByte, {-1});
    checkpoint.check(name != kGenerator || is_generator_state(state),
                     name + " is no generator's state");
  }
  const auto& training = checkpoint.at("training_losses", at::kDouble, {-1});
  const auto& held_out = checkpoint.at("held_out_losses", at::kDouble, {-1, 2});
  checkpoint.check(training.numel() <= options_.steps && all_finite(training),
                   "training_losses must be finite, and one a step");
  const auto steps = held_out.select(1, 0);
  const auto are_steps = (steps >= 0).logical_and_(steps <= training.numel()).all().item<bool>();
  checkpoint.check(are_steps && all_finite(held_out),
                   "held_out_losses must be finite, each with a step that was done");
}

void Trainer::load(const Checkpoint& checkpoint) {
  team_.run_in_leader([&] { check(checkpoint); });
  const auto read = [&](const std::string& name, at::ScalarType dtype,
                        const std::vector<int64_t>& sizes) {
    return shared(team_, dtype, sizes, [&] { return checkpoint.at(name, dtype, sizes); });
  };
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : named_trained_parameters(model_)) {
    const auto& name = parameter.key();
    const auto part = [&](const std::string& full) {
      return team_.part(model_, name, read(full, at::kFloat, shapes_.at(name))).to(device_);
    };
    parameter.value().copy_(part(weight_of(name)));
    const auto state_there =
        team_.lead([&] { return std::string(checkpoint.has(steps_of(name)) ? "yes" : ""); });
    if (state_there.empty()) continue;
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    state->step(read(steps_of(name), at::kLong, {}).item<int64_t>());
    state->exp_avg(part(mean_of(name)).clone());
    state->exp_avg_sq(part(square_of(name)).clone());
    optimizer_.state()[parameter.value().unsafeGetTensorImpl()] = std::move(state);
  }
  for (auto& [name, generator] : generators(device_)) {
    generator.set_state(read(name, at::kByte, {-1}));
  }
  history_ = to_history(read("training_losses", at::kDouble, {-1}),
                        read("held_out_losses", at::kDouble, {-1, 2}));
}

}  // namespace heed::examples
