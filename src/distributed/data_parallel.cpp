// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <heed/distributed/data_parallel.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include "core/checks.h"
#include "core/seen_tensors.h"
#include "distributed/collectives.h"
#include "distributed/named_group.h"
#include "distributed/sharded_experts.h"

namespace heed::distributed {

namespace {

constexpr const char* kDataParallel = "DataParallel";
constexpr const char* kJoin = "DataParallel::join";
constexpr const char* kCounting = "the number of processes that have batches";
constexpr int64_t kFirstBucketBytes = 1 << 20;

using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

/// A guard for making the buckets: autograd then does not see gradients in them as views. C++'s
/// Optimizer::zero_grad detaches gradients in place, which views do not allow.
using WithoutViews = at::AutoDispatchBelowADInplaceOrView;

/// The parameters that require grad, each once, although modules may share them. Those of experts
/// that `parallelize_experts` has split have the gradients of all processes already.
Parameters reduced_parameters(const torch::nn::Module& module) {
  const auto of_experts = detail::expert_parameters(module);
  Parameters parameters;
  heed::detail::SeenTensors seen;
  for (const auto& item : module.named_parameters()) {
    const auto& parameter = item.value();
    const bool is_own = of_experts.count(parameter.unsafeGetTensorImpl()) > 0;
    if (parameter.requires_grad() && !is_own && seen.add(parameter)) {
      parameters.emplace_back(item.key(), parameter);
    }
  }
  return parameters;
}

template <typename Embedding>
bool has_sparse_gradient(const torch::nn::Module& module) {
  const auto* embedding = module.as<Embedding>();
  return embedding != nullptr && embedding->options.sparse();
}

void check_module(const torch::nn::Module* module, const DataParallelOptions& options) {
  HEED_CHECK(module != nullptr, "{}: module must not be null", kDataParallel);
  heed::detail::check_positive(kDataParallel, "bucket_bytes", options.bucket_bytes());
  const auto parameters = reduced_parameters(*module);
  HEED_CHECK(!parameters.empty(), "{}: module must have a parameter that requires grad",
             kDataParallel);
  const auto& [first_name, first] = parameters[0];
  for (const auto& [name, parameter] : parameters) {
    HEED_CHECK(parameter.device() == first.device(),
               "{}: device of parameter {} ({}) must equal that of parameter {} ({})",
               kDataParallel, name, parameter.device().str(), first_name, first.device().str());
  }
  for (const auto& item : module->named_modules("module")) {
    HEED_CHECK(!has_sparse_gradient<torch::nn::EmbeddingImpl>(*item.value()) &&
                   !has_sparse_gradient<torch::nn::EmbeddingBagImpl>(*item.value()),
               "{}: {} must not have sparse gradients", kDataParallel, item.key());
  }
}

std::string describe(const torch::nn::Module& module) {
  std::string text;
  for (const auto& [name, experts] : detail::sharded_experts_of(module)) {
    text +=
        fmt::format("{}: split among processes {:x}\n", name, static_cast<uint64_t>(experts->id()));
  }
  const auto of_experts = detail::expert_parameters(module);
  for (const auto& item : module.named_parameters()) {
    if (of_experts.count(item.value().unsafeGetTensorImpl()) > 0) continue;
    text += fmt::format("parameter {}: {}{}\n", item.key(), detail::describe(item.value()),
                        item.value().requires_grad() ? ", requires grad" : "");
  }
  text += "no more parameters\n";
  for (const auto& item : module.named_buffers()) {
    text += fmt::format("buffer {}: {}\n", item.key(), detail::describe(item.value()));
  }
  return text + "no more buffers";
}

std::string describe(const DataParallelOptions& options) {
  return fmt::format("bucket_bytes {}\ngradient_as_bucket_view {}\nfind_unused_parameters {}",
                     options.bucket_bytes(), options.gradient_as_bucket_view(),
                     options.find_unused_parameters());
}

std::string describe(const JoinOptions& options) {
  return fmt::format("divide_by_initial_world_size {}\n{}", options.divide_by_initial_world_size(),
                     options.step() ? "step" : "no step");
}

/// Copies parameters and buffers of process `root` to the others.
void copy_from(int64_t root, const torch::nn::Module& module, const ProcessGroup& group) {
  std::vector<std::vector<at::Tensor>> tensors_of(static_cast<size_t>(root + 1));
  auto& tensors = tensors_of.back();
  heed::detail::SeenTensors seen;
  const auto of_experts = detail::expert_parameters(module);
  for (const auto& all : {module.parameters(), module.buffers()}) {
    for (const auto& tensor : all) {
      if (!tensor.defined() || of_experts.count(tensor.unsafeGetTensorImpl()) > 0) continue;
      if (seen.add(tensor)) tensors.push_back(tensor);
    }
  }
  detail::broadcast_all(group, "broadcast of parameters and buffers", tensors_of);
}

/// Calls the Reducer's constructor, which has more arguments in later versions of LibTorch.
template <typename... Arguments>
std::shared_ptr<c10d::Reducer> construct_reducer(Arguments... arguments) {
  using c10d::Reducer;
  constexpr bool kSkipUnused = false, kPythonReducer = false;
  using Caps = std::vector<int64_t>;
  if constexpr (std::is_constructible_v<Reducer, Arguments..., bool, bool, Caps>) {
    return std::make_shared<Reducer>(std::move(arguments)..., kSkipUnused, kPythonReducer, Caps());
  } else if constexpr (std::is_constructible_v<Reducer, Arguments..., bool, bool>) {
    return std::make_shared<Reducer>(std::move(arguments)..., kSkipUnused, kPythonReducer);
  } else if constexpr (std::is_constructible_v<Reducer, Arguments..., bool>) {
    return std::make_shared<Reducer>(std::move(arguments)..., kSkipUnused);
  } else {
    return std::make_shared<Reducer>(std::move(arguments)...);
  }
}

std::shared_ptr<c10d::Reducer> make_reducer(const Parameters& parameters, const ProcessGroup& group,
                                            const DataParallelOptions& options) {
  std::vector<at::Tensor> tensors;
  std::unordered_map<size_t, std::string> names;
  for (const auto& [name, tensor] : parameters) {
    names.emplace(tensors.size(), name);
    tensors.push_back(tensor);
  }
  const auto bucket_bytes = options.bucket_bytes();
  const auto first_bytes = std::min(bucket_bytes, kFirstBucketBytes);
  // One bucket is enough at first: the first backward pass shows the order of the gradients, and
  // buckets are made again. If parameters may be unused, the order may change, and these buckets
  // stay.
  std::vector<size_t> limits = {std::numeric_limits<size_t>::max()};
  if (options.find_unused_parameters()) {
    limits = {static_cast<size_t>(first_bytes), static_cast<size_t>(bucket_bytes)};
  }
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(tensors, limits));
  std::reverse(buckets.begin(), buckets.end());  // gradients come last parameter first
  const auto named = detail::name_errors(group, tensors[0].device().type(), "gradients");
  const WithoutViews without_views;
  return construct_reducer(tensors, buckets, named, std::vector<bool>(tensors.size(), false),
                           bucket_bytes, options.find_unused_parameters(),
                           options.gradient_as_bucket_view(), names, first_bytes);
}

/// The indices that the Reducer's error lists; empty if its text has changed. The Reducer tells
/// them nowhere else: its function that returns them is private, and which gradients have arrived
/// says too little, because with find_unused_parameters the Reducer awaits only some.
std::vector<size_t> unused_indices(const std::string& error) {
  constexpr std::string_view kBefore = "indices which did not receive grad for rank ";
  const auto place = error.find(kBefore);
  const auto colon = place == std::string::npos ? place : error.find(':', place);
  std::vector<size_t> indices;
  if (colon == std::string::npos) return indices;
  std::istringstream text(error.substr(colon + 1));
  for (size_t index = 0; text >> index;) indices.push_back(index);
  return indices;
}

}  // namespace

/// Checks that each gradient belongs to a backward pass whose gradients are reduced.
struct DataParallel::Passes {
  /// The hook of one parameter, called before each gradient that is added to it.
  class Hook : public torch::autograd::FunctionPreHook {
   public:
    Hook(std::shared_ptr<Passes> passes, std::string name)
        : passes_(std::move(passes)), name_(std::move(name)) {}

    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& gradients) override {
      passes_->is_announced = false;
      // The Reducer ignores a gradient that it does not expect.
      if (passes_->sync != nullptr && *passes_->sync && !passes_->unreduced) {
        HEED_CHECK(arrived_in_ < passes_->forwards,
                   "{}: each backward pass must be of a result of forward, and the only one; the "
                   "gradient of parameter {} would not be averaged over the processes: call "
                   "parallel.forward(model, ...), not the module itself",
                   kDataParallel, name_);
        arrived_in_ = passes_->forwards;
      }
      return gradients;
    }

   private:
    const std::shared_ptr<Passes> passes_;
    const std::string name_;
    int64_t arrived_in_ = 0;  // the forward pass whose gradient has arrived
  };

  const bool* sync;        // the DataParallel's; null when it is gone
  int64_t forwards = 0;    // forward passes whose gradients are reduced
  bool unreduced = false;  // whether the last forward pass is not reduced
  // Whether processes that have no batches await the backward pass of a forward pass.
  bool is_announced = false;
};

DataParallel::NoSync::NoSync(bool& sync) : sync_(sync), previous_(sync) { sync_ = false; }

DataParallel::NoSync::~NoSync() { sync_ = previous_; }

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, ProcessGroup group,
                           const DataParallelOptions& options)
    : module_(std::move(module)), group_(std::move(group)), options_(options) {
  HEED_CHECK(group_, "{}: group must not be null", kDataParallel);
  detail::check_everywhere(group_, kDataParallel, [&] {
    check_module(module_.get(), options);
    detail::check_experts_group(kDataParallel, *module_, group_);
  });
  detail::check_same(group_, kDataParallel, "option", describe(options));
  detail::check_same(group_, kDataParallel, "module", describe(*module_));
  copy_from(0, *module_, group_);
  const auto parameters = reduced_parameters(*module_);
  reducer_ = make_reducer(parameters, group_, options);
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  watch(parameters);
  for (const auto& each : detail::sharded_experts_of(*module_)) {
    each.experts->average_gradients(true);
  }
}

DataParallel::~DataParallel() {
  passes_->sync = nullptr;
  for (const auto& each : detail::sharded_experts_of(*module_)) {
    each.experts->average_gradients(false);
  }
}

void DataParallel::watch(const Parameters& parameters) {
  passes_ = std::make_shared<Passes>(Passes{&sync_});
  reduced_.reserve(parameters.size());
  for (const auto& [name, parameter] : parameters) {
    const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    accumulator->add_pre_hook(std::make_unique<Passes::Hook>(passes_, name));
    reduced_.push_back({name, parameter, parameter.numel(), accumulator.get()});
  }
}

void DataParallel::check_finished() {
  HEED_CHECK(!passes_->is_announced, "{}: each forward pass must be followed by its backward pass",
             kJoin);
  try {
    reducer_->check_finalized();
  } catch (const c10::Error& error) {
    const auto unused = c10::fmap(unused_indices(error.what_without_backtrace()),
                                  [&](size_t index) { return reduced_.at(index).name; });
    HEED_CHECK(
        false,
        "{}: every parameter that requires grad must get a gradient in each backward pass, or "
        "find_unused_parameters must be set; without a gradient in the last pass of process {} of "
        "{}: {}",
        kDataParallel, group_->getRank(), group_->getSize(), c10::Join(", ", unused));
  }
}

/// Throws if a parameter has been replaced. LibTorch then gives it another accumulator, whose
/// gradients would not be reduced, and the Reducer only has room for gradients of the old size.
void DataParallel::check_watched() const {
  for (const auto& [name, parameter, size, accumulator] : reduced_) {
    const auto present = torch::autograd::impl::try_get_grad_accumulator(parameter);
    HEED_CHECK(present.get() == accumulator && parameter.numel() == size,
               "{}: parameter {} was replaced after DataParallel was constructed, as torch::load "
               "and parallelize do: load and split first, or copy the values",
               kDataParallel, name);
  }
}

bool DataParallel::begin_forward() {
  if (!at::GradMode::is_enabled()) return false;
  passes_->unreduced = !sync_;
  if (!sync_) return false;
  check_watched();
  check_finished();
  reducer_->prepare_for_forward();
  if (join_ != nullptr) announce_pass();
  const WithoutViews without_views;
  reducer_->rebuild_buckets();
  return true;
}

void DataParallel::end_forward(std::vector<at::Tensor> outputs) {
  if (options_.find_unused_parameters()) {
    const auto requires_grad = [](const at::Tensor& output) {
      return output.defined() && output.requires_grad();
    };
    outputs.erase(std::remove_if(outputs.begin(), outputs.end(), std::not_fn(requires_grad)),
                  outputs.end());
    HEED_CHECK(!outputs.empty(),
               "{}: the result of the function must have a tensor that requires grad, because "
               "find_unused_parameters is set",
               kDataParallel);
  } else {
    outputs.clear();
  }
  reducer_->prepare_for_backward(outputs);
  ++passes_->forwards;
}

at::Tensor DataParallel::counter(int64_t number) const {
  return at::full({1}, number, reduced_[0].parameter.options().dtype(at::kLong));
}

/// Tells the processes that have no batches that a pass begins. The Reducer divides by the number
/// of the others when that has been counted.
void DataParallel::announce_pass() {
  std::vector<at::Tensor> count = {counter(1)};
  const auto named = detail::name_errors(group_, count[0].device().type(), kCounting);
  reducer_->set_forward_pass_work_handle(named->allreduce(count),
                                         join_->divide_by_initial_world_size());
  passes_->is_announced = true;
}

/// Does what the Reducer of a process does in a pass, with gradients of zero.
void DataParallel::answer_pass() {
  const at::NoGradGuard no_grad;
  const WithoutViews without_views;
  reducer_->rebuild_buckets();
  auto buckets = reducer_->get_grad_buckets();
  const auto sums =
      c10::fmap(buckets, [&](c10d::GradBucket bucket) { return reducer_->run_comm_hook(bucket); });
  for (const auto& sum : sums) sum->waitAndThrow();
  at::Tensor used;  // how many processes use each parameter
  if (options_.find_unused_parameters()) {
    used = at::zeros_like(reducer_->get_local_used_map_on_device());
    detail::all_reduce(group_, "all-reduce of gradients", used);
  }
  reducer_->push_rebuilt_params_for_all_indices();
  if (join_->step()) take_gradients(buckets, used);
}

/// Gives the parameters the gradients that they have in the processes that have batches.
void DataParallel::take_gradients(const std::vector<c10d::GradBucket>& buckets,
                                  const at::Tensor& used) const {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> gradient_of;
  for (const auto& bucket : buckets) {
    const auto parameters = bucket.getParameters(), gradients = bucket.getGradients();
    for (size_t i = 0; i < parameters.size(); ++i) {
      // Buckets hold the gradients of dense parameters in the parameters' layout.
      const auto& like = parameters[i];
      gradient_of[like.unsafeGetTensorImpl()] =
          like.is_non_overlapping_and_dense()
              ? gradients[i].as_strided(like.sizes(), like.strides())
              : gradients[i];
    }
  }
  const auto uses = used.defined() ? used.cpu() : used;
  for (size_t i = 0; i < reduced_.size(); ++i) {
    auto parameter = reduced_[i].parameter;
    const bool is_used = !uses.defined() || uses[static_cast<int64_t>(i)].item<int64_t>() > 0;
    parameter.mutable_grad() =
        is_used ? gradient_of.at(parameter.unsafeGetTensorImpl()) : at::Tensor();
  }
}

/// Answers the passes of other processes until none has batches. Returns whether one had.
bool DataParallel::answer_others() {
  for (bool answered = false;; answered = true) {
    auto count = counter(0);
    detail::all_reduce(group_, fmt::format("all-reduce of {}", kCounting), count);
    if (count.item<int64_t>() == 0) return answered;
    answer_pass();
    if (join_->step()) join_->step()();
  }
}

void DataParallel::join(const std::function<void()>& train, const JoinOptions& options) {
  HEED_CHECK(join_ == nullptr, "{}: must not be called within join", kJoin);
  detail::check_same(group_, kJoin, "option", [&] {
    HEED_CHECK(train, "{}: train must not be empty", kJoin);
    HEED_CHECK(detail::sharded_experts_of(*module_).empty(),
               "{}: module must not have experts that parallelize_experts has split: those of a "
               "process without batches would answer nobody",
               kJoin);
    return describe(options);
  });
  join_ = &options;
  const auto leave = c10::make_scope_exit([&] {
    join_ = nullptr;
    passes_->is_announced = false;
    reducer_->set_forward_pass_work_handle({}, /*useStaticWorldSize=*/true);
  });
  detail::run_exchange(group_, kJoin, [&] {
    train();
    check_finished();
    // The parameters of a process that took part in the last pass are the newest.
    auto newest = counter(answer_others() ? -1 : group_->getRank());
    detail::all_reduce_max(group_, "choice of the newest parameters", newest);
    copy_from(newest.item<int64_t>(), *module_, group_);
  });
}

}  // namespace heed::distributed
