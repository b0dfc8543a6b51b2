// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/distributed/process_group.h>
#include <heed/export.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace c10d {
class GradBucket;
class Logger;
class Reducer;
}  // namespace c10d

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace heed::distributed {

/// Options of `DataParallel`. All processes must give the same.
struct HEED_API DataParallelOptions {
  /// Size of a bucket. Gradients are reduced by buckets: each bucket as soon as its last gradient
  /// has been computed, while the backward pass continues. The first bucket has at most 1 MiB. At
  /// least 1.
  HEED_NUMBER_ARG(int64_t, bucket_bytes) = 25 << 20;
  /// Whether `grad()` of the parameters points into the buckets. This saves memory of the size of
  /// the gradients.
  TORCH_ARG(bool, gradient_as_bucket_view) = true;
  /// Whether a forward pass may leave out parameters. It costs a search of the graph in each pass.
  /// The function given to `forward` should then return the loss, and must return a tensor that
  /// requires grad.
  TORCH_ARG(bool, find_unused_parameters) = false;
};

/// Options of `DataParallel::join`. All processes must give the same.
struct HEED_API JoinOptions {
  /// Whether gradients are divided by the number of all processes, so that each batch counts alike.
  /// Otherwise they are divided by the number of processes that still have batches.
  TORCH_ARG(bool, divide_by_initial_world_size) = true;
  /// Called in a process that has no more batches, after each pass of the others; the parameters
  /// then have the gradients that they have in the others. With `optimizer.step()` here, the
  /// optimizer's state stays equal in all processes, and the optimizer may be a
  /// `ZeroRedundancyOptimizer`, which all processes must call.
  TORCH_ARG(std::function<void()>, step) = nullptr;
};

namespace detail {

template <typename Value, typename = void>
struct IsRange : std::false_type {};
template <typename Value>
struct IsRange<Value, std::void_t<decltype(std::begin(std::declval<const Value&>()))>>
    : std::true_type {};

template <typename Value, typename = void>
struct IsTuple : std::false_type {};
template <typename Value>
struct IsTuple<Value, std::void_t<decltype(sizeof(std::tuple_size<Value>))>> : std::true_type {};

/// Calls the forward function of a module holder (its operator() does not work for a Sequential),
/// or any other function.
template <typename Function, typename... Arguments>
auto call_forward(Function&& function, Arguments&&... arguments) {
  if constexpr (torch::detail::is_module_holder<std::decay_t<Function>>::value) {
    return function.ptr()->forward(std::forward<Arguments>(arguments)...);
  } else {
    return std::forward<Function>(function)(std::forward<Arguments>(arguments)...);
  }
}

/// Appends the tensors in a tensor, a range, a tuple, or any nesting of them.
template <typename Value>
void append_tensors(std::vector<at::Tensor>& tensors, const Value& value) {
  if constexpr (std::is_convertible_v<const Value&, at::Tensor>) {
    tensors.push_back(value);
  } else if constexpr (IsRange<Value>::value) {
    for (const auto& element : value) append_tensors(tensors, element);
  } else if constexpr (IsTuple<Value>::value) {
    std::apply([&](const auto&... elements) { (append_tensors(tensors, elements), ...); }, value);
  }
}

}  // namespace detail

/// Trains one module with several processes: each computes the gradients of its part of the batch,
/// and the backward pass averages them over the processes of a group. Li et al. 2020
/// (arXiv:2006.15704).
///
/// @code
/// heed::Decoder model(options);
/// heed::distributed::DataParallel parallel(model, group);
/// heed::FusedAdamW optimizer(model->parameters(), 1e-3);
/// auto tokens = torch::randint(100, {4, 11});  // this process's share of the batch
/// auto loss = parallel.forward(
///     [&] { return model->loss(tokens.narrow(1, 0, 10), tokens.narrow(1, 1, 10)); });
/// loss.backward();  // averages the gradients over the processes
/// optimizer.step();
/// @endcode
///
/// If the loss is a mean and all shares have the same size, the gradients are those of the whole
/// batch. The parameters and buffers start with the values of rank 0; later, buffers are
/// not synchronized. It works on c10d::Reducer, as Python's DistributedDataParallel does. All
/// processes must run the same number of forward and backward passes, except within `join`. If a
/// process ends, the backward pass of the others throws c10::DistError.
///
/// Experts that `parallelize_experts` has split among the same processes keep their values; their
/// gradients, which come from the tokens of all processes, are divided by the number of processes.
///
/// Only the backward pass of a result of `forward` is averaged, and only once: that of a result of
/// the module itself, or a second one of the same result, throws c10::ValueError.
class HEED_API DataParallel {
 public:
  /// While this object exists, backward passes add to this process's gradients and do not reduce
  /// them. See `no_sync`.
  class HEED_API NoSync {
   public:
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend class DataParallel;
    explicit NoSync(bool& sync);
    bool& sync_;
    const bool previous_;
  };

  /// Compares the module and the options with those of the other processes, then copies parameters
  /// and buffers from rank 0.
  /// Throws c10::ValueError in all processes when the module or an option differs from that of rank
  /// 0, when the module is null, when it has no parameter that requires grad, sparse gradients, or
  /// parameters on two devices, or when an option is out of range; c10::DistError when a process
  /// does not answer.
  DataParallel(std::shared_ptr<torch::nn::Module> module, ProcessGroup group,
               const DataParallelOptions& options = {});

  /// Like the constructor above, for a module holder, such as `heed::Decoder`.
  template <typename Impl>
  DataParallel(const torch::nn::ModuleHolder<Impl>& module, ProcessGroup group,
               const DataParallelOptions& options = {})
      : DataParallel(module.is_empty() ? nullptr : std::shared_ptr<torch::nn::Module>(module.ptr()),
                     std::move(group), options) {}

  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Returns function(arguments...), and prepares the backward pass of the result. `function` is
  /// the module holder itself, or a lambda that calls the module in any way and may compute the
  /// loss:
  ///
  /// @code
  /// parallel.forward([&] { return model->forward(x, mask).square().mean(); }).backward();
  /// @endcode
  ///
  /// When grad mode is off, it only calls the function; then one process may call it alone.
  /// Throws c10::ValueError when a parameter had no gradient in the last backward pass, when a
  /// parameter has been replaced or split since the construction, as torch::load and parallelize
  /// do, or when find_unused_parameters is set and the result has no tensor that requires grad.
  template <typename Function, typename... Arguments>
  auto forward(Function&& function, Arguments&&... arguments) {
    const bool reduces = begin_forward();
    auto result = detail::call_forward(std::forward<Function>(function),
                                       std::forward<Arguments>(arguments)...);
    if (reduces) {
      std::vector<at::Tensor> outputs;
      detail::append_tensors(outputs, result);
      end_forward(std::move(outputs));
    }
    return result;
  }

  /// Turns the reduction off while the returned object exists, to accumulate gradients over several
  /// batches. Compute the last batch without it: its backward pass reduces the sum. What counts is
  /// whether the object exists during the forward pass.
  ///
  /// @code
  /// {
  ///   auto no_sync = parallel.no_sync();
  ///   parallel.forward(model, first).square().mean().backward();
  /// }
  /// parallel.forward(model, second).square().mean().backward();
  /// @endcode
  [[nodiscard]] NoSync no_sync() { return NoSync(sync_); }

  /// Calls `train`, in which each process may have another number of batches. A process whose
  /// `train` has returned answers the others with gradients of zero until all have returned.
  /// Parameters and buffers of a process that had batches until the end are then copied to all.
  ///
  /// @code
  /// auto step = [&] { optimizer.step(); };
  /// parallel.join(
  ///     [&] {
  ///       for (const auto& batch : batches) {
  ///         optimizer.zero_grad();
  ///         parallel.forward(model, batch).square().mean().backward();
  ///         step();
  ///       }
  ///     },
  ///     heed::distributed::JoinOptions().step(step));
  /// @endcode
  ///
  /// Without the option `step`, an optimizer with a state, such as a momentum, has another state in
  /// each process afterwards, as with Python's DistributedDataParallel.join. Each forward pass that
  /// is reduced must be followed by its backward pass. Apart from `step`, nothing in `train` may
  /// use the group in another way: processes that have no more batches would not answer.
  /// Throws what `train` or `step` throws, and closes the group: the others throw c10::DistError.
  /// Throws c10::ValueError when processes give different options, when `train` is empty, when a
  /// forward pass has no backward pass, when join is called within join, and when the module has
  /// experts that `parallelize_experts` has split.
  void join(const std::function<void()>& train, const JoinOptions& options = {});

 private:
  HEED_LOCAL void check_finished();
  HEED_LOCAL void check_watched() const;
  HEED_LOCAL void watch(const std::vector<std::pair<std::string, at::Tensor>>& parameters);
  HEED_LOCAL at::Tensor counter(int64_t number) const;
  HEED_LOCAL void announce_pass();
  HEED_LOCAL void answer_pass();
  HEED_LOCAL void take_gradients(const std::vector<c10d::GradBucket>& buckets,
                                 const at::Tensor& used) const;
  HEED_LOCAL bool answer_others();
  bool begin_forward();
  void end_forward(std::vector<at::Tensor> outputs);

  // A parameter that is reduced, and what it had at the construction.
  struct Reduced {
    std::string name;
    at::Tensor parameter;
    int64_t size;                              // its number of elements
    const torch::autograd::Node* accumulator;  // of its gradient; the Reducer owns it
  };

  std::shared_ptr<torch::nn::Module> module_;
  ProcessGroup group_;
  DataParallelOptions options_;
  std::vector<Reduced> reduced_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the Reducer uses it, and does not own it
  bool sync_ = true;
  const JoinOptions* join_ = nullptr;  // the options of join, while it runs
  struct HEED_LOCAL Passes;
  std::shared_ptr<Passes> passes_;
};

}  // namespace heed::distributed
