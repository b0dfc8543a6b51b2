#include "trainer.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/core.h>
#include <heed/autocast.h>
#include <torch/serialize/archive.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "support/check_loss.h"
#include "support/distinct_parameters.h"
#include "support/input_file.h"

namespace heed::examples {

namespace {

constexpr double kLastRate = 0.1;  // of the learning rate

Decoder make_seeded(const TrainedModel& trained, const TrainingOptions& training,
                    at::Device device) {
  torch::manual_seed(training.seed);
  auto model = trained.make();
  model->to(device);
  return model;
}

/// Matrices decay, the norms' weights do not.
torch::optim::AdamW make_optimizer(const Decoder& model, const TrainingOptions& options) {
  std::vector<at::Tensor> matrices, vectors;
  for (const auto& parameter : distinct_parameters(*model)) {
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  }
  const auto settings = [&](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.95}).weight_decay(decay));
  };
  return torch::optim::AdamW(std::vector<torch::optim::OptimizerParamGroup>{
      {matrices, settings(options.weight_decay)}, {vectors, settings(0)}});
}

/// Of the step after `done` ones.
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

/// Of what draws random numbers: the batches on the CPU, dropout on the device.
std::vector<std::pair<std::string, at::Generator>> generators(at::Device device) {
  std::vector<std::pair<std::string, at::Generator>> all = {
      {"generator", at::globalContext().defaultGenerator(at::kCPU)}};
  if (!device.is_cpu()) {
    all.emplace_back("device_generator", at::globalContext().defaultGenerator(device));
  }
  return all;
}

/// [held out, 2]: step and loss.
at::Tensor held_out_losses(const LossHistory& history) {
  const auto losses = at::empty({static_cast<int64_t>(history.held_out.size()), 2}, at::kDouble);
  auto* place = losses.mutable_data_ptr<double>();
  for (const auto& [step, loss] : history.held_out) {
    *place++ = static_cast<double>(step);
    *place++ = loss;
  }
  return losses;
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

/// Runs `read` on the archive of the file, which the leader reads.
template <typename Read>
void read_archive(const std::string& path, at::Device device, const Team& team, const Read& read) {
  std::istringstream file(team.lead([&] {
    auto input = open_input(path);
    return std::string(std::istreambuf_iterator<char>(input), {});
  }));
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(file, device);
    read(archive);
  } catch (const c10::Error&) {
    throw std::runtime_error("cannot read " + path + ": it is damaged, or no training's state");
  }
}

/// What AdamW keeps for a parameter, each of its means changed by `change`.
template <typename Change>
std::unique_ptr<torch::optim::OptimizerParamState> changed_state(
    const torch::optim::OptimizerParamState& state, const Change& change) {
  auto copy = std::make_unique<torch::optim::AdamWParamState>(
      static_cast<const torch::optim::AdamWParamState&>(state));
  copy->exp_avg(change(copy->exp_avg()));
  copy->exp_avg_sq(change(copy->exp_avg_sq()));
  return copy;
}

/// Gives `to` the state of `from`, whose parameters have the same names, with each mean changed by
/// `change(name, mean)`.
template <typename Change>
void copy_state(const Decoder& from_model, const torch::optim::AdamW& from, const Decoder& to_model,
                torch::optim::AdamW& to, const Change& change) {
  const auto targets = to_model->named_parameters();
  for (const auto& parameter : from_model->named_parameters()) {
    const auto state = from.state().find(parameter.value().unsafeGetTensorImpl());
    if (state == from.state().end()) continue;  // no step has been done
    const auto& name = parameter.key();
    to.state()[targets[name].unsafeGetTensorImpl()] =
        changed_state(*state->second, [&](const at::Tensor& mean) { return change(name, mean); });
  }
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
  for (const auto& parameter : distinct_parameters(*model_)) parameters_ += parameter.numel();
  team_.split(model_);
}

double Trainer::tokens_a_step() const {
  return static_cast<double>(options_.accumulate) * static_cast<double>(options_.batch_size) *
         static_cast<double>(trained_.context);
}

/// What stands in `text` [N] from each of `starts` [B] on: [B, context + 1] int64.
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
  team_.clip(model_, options_.clip);
  optimizer_.step();
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

double Trainer::evaluate() { return evaluate(held_out_.size(0)); }

/// A model that is about to be filled. It draws no random numbers.
Decoder Trainer::empty_model() const {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const auto state = generator.get_state();
  auto model = trained_.make();
  generator.set_state(state);
  model->to(device_);
  return model;
}

Decoder Trainer::model() const {
  if (!team_.splits_weights()) return model_;
  auto whole = empty_model();
  const torch::NoGradGuard no_grad;
  auto parameters = whole->named_parameters();
  for (const auto& parameter : model_->named_parameters()) {
    parameters[parameter.key()].copy_(team_.whole(model_, parameter.key(), parameter.value()));
  }
  return whole;
}

std::string Trainer::save(const std::string& about) const {
  torch::serialize::OutputArchive archive, model, optimizer;
  archive.write("about", c10::IValue(about));
  auto whole = this->model();
  whole->save(model);
  archive.write("model", model);
  if (team_.splits_weights()) {
    auto whole_optimizer = make_optimizer(whole, options_);
    copy_state(model_, optimizer_, whole, whole_optimizer,
               [&](const std::string& name, const at::Tensor& mean) {
                 return team_.whole(model_, name, mean);
               });
    whole_optimizer.save(optimizer);
  } else {
    optimizer_.save(optimizer);
  }
  archive.write("optimizer", optimizer);
  for (const auto& [name, generator] : generators(device_)) {
    archive.write(name, generator.get_state());
  }
  archive.write("training_losses", at::tensor(history_.training, at::kDouble));
  archive.write("held_out_losses", held_out_losses(history_));
  if (!team_.leads()) return "";  // the others only give their parts
  std::ostringstream file;
  archive.save_to(file);
  return file.str();
}

void Trainer::load(const std::string& path) {
  read_archive(path, device_, team_, [&](torch::serialize::InputArchive& archive) {
    torch::serialize::InputArchive model, optimizer;
    archive.read("model", model);
    archive.read("optimizer", optimizer);
    take_parts(model, optimizer);
    for (auto& [name, generator] : generators(device_)) {
      at::Tensor state;
      archive.read(name, state);
      generator.set_state(state.cpu());
    }
    at::Tensor training, held_out;
    archive.read("training_losses", training);
    archive.read("held_out_losses", held_out);
    history_ = to_history(training.cpu(), held_out.cpu());
  });
}

/// Of the whole model and the whole optimizer's state.
void Trainer::take_parts(torch::serialize::InputArchive& model,
                         torch::serialize::InputArchive& optimizer) {
  auto whole = empty_model();
  whole->load(model);
  auto whole_optimizer = make_optimizer(whole, options_);
  whole_optimizer.load(optimizer);
  const torch::NoGradGuard no_grad;
  auto parameters = model_->named_parameters();
  for (const auto& parameter : whole->named_parameters()) {
    parameters[parameter.key()].copy_(team_.part(model_, parameter.key(), parameter.value()));
  }
  copy_state(whole, whole_optimizer, model_, optimizer_,
             [&](const std::string& name, const at::Tensor& mean) {
               return team_.part(model_, name, mean).clone();
             });
}

std::string read_about(const std::string& path, const Team& team) {
  std::string about;
  read_archive(path, at::kCPU, team, [&](torch::serialize::InputArchive& archive) {
    c10::IValue value;
    archive.read("about", value);
    about = value.toStringRef();
  });
  return about;
}

}  // namespace heed::examples
