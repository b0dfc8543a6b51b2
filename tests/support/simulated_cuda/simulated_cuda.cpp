// SPDX-License-Identifier: BSD-3-Clause
#include "support/simulated_cuda/simulated_cuda.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "support/simulated_cuda/device_memory.h"
#include "support/simulated_cuda/device_tensors.h"
#include "support/simulated_cuda/pinned_memory.h"
#include "support/simulated_cuda/recording.h"

namespace heed::test {

namespace {

using at::Tensor;
using torch::jit::Stack;

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override { return allocate_on_device(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(host_view(to), host_view(from), count);
  }
};

DeviceAllocator& device_allocator() {
  static auto* const instance = new DeviceAllocator;
  return *instance;
}

/// Views are made on the host.
bool is_view(const c10::FunctionSchema& schema) {
  const auto& results = schema.returns();
  return std::any_of(results.begin(), results.end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool draws_numbers(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return schema.name() == "aten::native_dropout" ||
         std::any_of(arguments.begin(), arguments.end(),
                     [](const auto& argument) { return argument.name() == "generator"; });
}

struct Counts {
  std::mutex mutex;
  DeviceWork work;
};

Counts& counts() {
  static auto* const instance = new Counts;
  return *instance;
}

/// Operators that return numbers or sizes that depend on numbers.
bool reads_numbers(const std::string& name) {
  static const auto* const names = new std::set<std::string>{"aten::_local_scalar_dense",
                                                             "aten::nonzero",
                                                             "aten::masked_select",
                                                             "aten::equal",
                                                             "aten::_unique2",
                                                             "aten::unique_dim",
                                                             "aten::unique_consecutive",
                                                             "aten::bincount",
                                                             "aten::repeat_interleave"};
  return names->count(name) > 0;
}

}  // namespace

void count_launch(const std::string& name) {
  auto& all = counts();
  const std::scoped_lock lock(all.mutex);
  ++all.work.operators[name];
}

void count_wait(const std::string& name) {
  TORCH_CHECK(!is_capturing(), "CUDA error: operation not permitted when stream is capturing (",
              name, ")");
  auto& all = counts();
  const std::scoped_lock lock(all.mutex);
  ++all.work.waits[name];
}

Tensor on_host(const Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  // The storage stays as long as the view does.
  auto owner = std::make_unique<c10::Storage>(tensor.storage());
  auto* const data = host_view(owner->data());
  const auto bytes = owner->nbytes();
  c10::DataPtr pointer(
      data, owner.release(), [](void* context) { delete static_cast<c10::Storage*>(context); },
      c10::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(pointer), nullptr,
                       /*resizable=*/false);
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

Tensor on_device(const Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cuda()) return tensor;
  const auto& from = tensor.storage();
  auto pointer = allocate_on_device(from.nbytes());
  if (from.nbytes() > 0) std::memcpy(host_view(pointer.get()), from.data(), from.nbytes());
  c10::Storage storage(c10::Storage::use_byte_size_t(), from.nbytes(), std::move(pointer),
                       &device_allocator(), /*resizable=*/true);
  auto copy = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), tensor.dtype());
  copy.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return copy;
}

namespace {

/// Runs one operator of CUDA tensors on the CPU.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack) : op_(op), stack_(stack) {}

  void run() {
    const auto& schema = op_.schema();
    if (!is_view(schema)) count_launch(schema.name());
    if (reads_numbers(schema.name())) count_wait(schema.name());
    const auto count = static_cast<ptrdiff_t>(schema.arguments().size());
    const Stack arguments(stack_.end() - count, stack_.end());
    compute();
    for (auto& [original, written] : resized_) {
      const auto moved = on_device(written);
      auto* const impl = original.unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(moved.storage());
      impl->set_sizes_and_strides(moved.sizes(), moved.strides(), moved.storage_offset());
    }
    for (auto i = stack_.size() - schema.returns().size(); i < stack_.size(); ++i) {
      stack_[i] = to_device(stack_[i]);
    }
    if (is_capturing()) record_run(arguments);
  }

 private:
  /// Leaves results of the CPU on the stack.
  void compute() {
    const auto& schema = op_.schema();
    const auto first = stack_.size() - schema.arguments().size();
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      auto& value = stack_[first + i];
      const auto* alias = schema.arguments()[i].alias_info();
      value = to_host(value, alias != nullptr && alias->isWrite());
    }
    check_devices(schema.name());
    check_dtypes(schema.name());
    std::optional<Draws> draws;
    if (draws_numbers(schema)) draws.emplace();
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
  }

  void record_run(const Stack& arguments) const {
    const auto all_kept = [](const Stack& values) {
      Stack copies;
      for (const auto& value : values) copies.push_back(kept(value));
      return copies;
    };
    const auto count = static_cast<ptrdiff_t>(op_.schema().returns().size());
    record([op = op_, given = all_kept(arguments),
            results = all_kept(Stack(stack_.end() - count, stack_.end()))] {
      auto values = given;
      Call again(op, values);
      again.compute();
      for (size_t i = 0; i < results.size(); ++i) again.write(values[i], results[i]);
    });
  }

  /// Where a result is new; what an argument holds has been written.
  void write(const c10::IValue& computed, const c10::IValue& result) const {
    if (result.isTensorList()) {
      const auto from = computed.toTensorVector(), to = result.toTensorVector();
      for (size_t i = 0; i < to.size(); ++i) write(from[i], to[i]);
    }
    if (!result.isTensor() || !result.toTensor().defined()) return;
    const auto& from = computed.toTensor();
    const bool is_new = std::none_of(moved_.begin(), moved_.end(), [&](const Moved& moved) {
      return moved.host.is_same(from) || from.storage().is_alias_of(moved.host.storage());
    });
    if (is_new) on_host(result.toTensor()).copy_(from);
  }

  /// While it lives, the CPU's generator draws the numbers of the device's.
  class Draws {
   public:
    Draws() : cpu_(at::globalContext().defaultGenerator(at::kCPU)), state_(cpu_.get_state()) {
      refuse_in_capture("random numbers");
      cpu_.set_state(own_generator().get_state());
    }
    ~Draws() {
      own_generator().set_state(cpu_.get_state());
      cpu_.set_state(state_);
    }
    Draws(const Draws&) = delete;
    Draws& operator=(const Draws&) = delete;

   private:
    at::Generator cpu_;
    Tensor state_;
  };

  struct Moved {
    Tensor device, host;
  };

  Tensor host_of(const Tensor& tensor, bool is_written) {
    if (!tensor.defined()) return tensor;
    if (tensor.is_cpu()) {
      if (tensor.dim() > 0) host_tensor_ = tensor;
      return tensor;
    }
    if (is_written && tensor.numel() == 0) {
      // LibTorch resizes what it writes results to.
      resized_.emplace_back(tensor, at::empty(tensor.sizes(), tensor.options().device(at::kCPU)));
      return resized_.back().second;
    }
    if (is_written) note_write(tensor);
    moved_.push_back({tensor, on_host(tensor)});
    return moved_.back().host;
  }

  c10::IValue to_host(const c10::IValue& value, bool is_written) {
    if (value.isTensor()) return host_of(value.toTensor(), is_written);
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector())
        list.push_back(host_of(tensor, is_written));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor> tensor : value.toOptionalTensorList()) {
        if (tensor && tensor->defined()) note_index(*tensor);
        list.push_back(tensor ? std::optional<Tensor>(on_host(*tensor)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isGenerator()) return c10::IValue();  // the device's; see Draws
    return value;
  }

  /// The places where a mask is true are found on the device, and their number is read.
  void note_index(const Tensor& index) {
    const auto type = index.scalar_type();
    // `index` itself calls `nonzero`.
    const bool counts = op_.schema().name() != "aten::index";
    if (counts && index.is_cuda() && (type == at::kBool || type == at::kByte)) {
      count_wait(op_.schema().name() + " with a mask");
    }
  }

  void check_devices(const std::string& name) const {
    TORCH_CHECK(!host_tensor_.defined() || moved_.empty() || name == "aten::set_",
                "Expected all tensors to be on the same device, but found at least two devices, "
                "cuda:0 and cpu! (when checking arguments of ",
                name, ")");
  }

  /// AmpKernels.cu:150 of 2.11.
  void check_dtypes(const std::string& name) const {
    if (name != "aten::_amp_foreach_non_finite_check_and_unscale_") return;
    for (const auto& moved : moved_) {
      TORCH_CHECK(
          moved.device.scalar_type() != at::kBFloat16,
          "\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'");
    }
  }

  /// A result that lies where an argument does is a view of it.
  Tensor device_of(const Tensor& result) const {
    if (!result.defined()) return result;
    for (const auto& [original, written] : resized_) {
      if (written.is_same(result)) return original;
    }
    for (const auto& [device, host] : moved_) {
      if (host.is_same(result)) return device;
      if (result.nbytes() == 0 || !result.storage().is_alias_of(host.storage())) continue;
      auto view = at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, c10::Storage(device.storage()), device.key_set(), result.dtype());
      view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(),
                                                        result.storage_offset());
      return view;
    }
    return on_device(result);
  }

  c10::IValue to_device(const c10::IValue& value) const {
    if (value.isTensor()) return device_of(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(device_of(tensor));
    return list;
  }

  const c10::OperatorHandle& op_;
  Stack& stack_;
  std::vector<Moved> moved_;
  std::vector<std::pair<Tensor, Tensor>> resized_;
  Tensor host_tensor_;
};

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  Call(op, *stack).run();
}

Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
             std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   at::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                     std::optional<at::Device> /*device*/, std::optional<bool> /*pinned*/) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), &device_allocator(),
      c10::DispatchKeySet(c10::DispatchKey::CUDA), at::dtype_or_default(dtype));
}

/// `copy_` and `_to_copy` come to this. The host waits until what it copies has arrived; memory of
/// the host is copied before the call returns, unless it is pinned and the copy may go on.
Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  count_launch("aten::copy_");
  if (!to.is_cuda()) count_wait("copy to the host");
  if (!from.is_cuda() && from.numel() > 0) {
    if (!non_blocking || !is_pinned(from.const_data_ptr())) count_wait("copy from the host");
    refuse_in_capture("memory of the host");
  }
  note_write(to);
  on_host(to).copy_(on_host(from));
  if (is_capturing()) {
    record([to = kept(to), from = kept(from)] { on_host(to).copy_(on_host(from)); });
  }
  return to;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  auto target = to;
  return copy_(target, from, non_blocking);
}

const Tensor& resize_(const Tensor& tensor, c10::SymIntArrayRef sizes,
                      std::optional<at::MemoryFormat> /*format*/) {
  const auto shape = C10_AS_INTARRAYREF_SLOW(sizes);
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(shape);
  const auto bytes = static_cast<size_t>(tensor.numel() + tensor.storage_offset()) *
                     static_cast<size_t>(tensor.element_size());
  auto* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (storage->nbytes() >= bytes) return tensor;
  auto pointer = allocate_on_device(bytes);
  if (storage->nbytes() > 0) {
    std::memcpy(host_view(pointer.get()), host_view(storage->data()), storage->nbytes());
  }
  storage->set_data_ptr(std::move(pointer));
  storage->set_nbytes(bytes);
  return tensor;
}

at::Scalar local_scalar_dense(const Tensor& tensor) {
  count_wait("aten::_local_scalar_dense");
  return on_host(tensor).item();
}

}  // namespace

int64_t DeviceWork::launches() const {
  int64_t sum = 0;
  for (const auto& [name, count] : operators) sum += count;
  return sum;
}

int64_t DeviceWork::synchronizations() const {
  int64_t sum = 0;
  for (const auto& [name, count] : waits) sum += count;
  return sum;
}

WorkOfDevice::WorkOfDevice() {
  count_peak_anew();
  auto& all = counts();
  const std::scoped_lock lock(all.mutex);
  before_ = all.work;
}

DeviceWork WorkOfDevice::work() const {
  DeviceWork since;
  const auto subtract = [](const auto& all, const auto& before, auto& to) {
    for (const auto& [name, count] : all) {
      const auto found = before.find(name);
      const auto more = count - (found == before.end() ? 0 : found->second);
      if (more > 0) to[name] = more;
    }
  };
  auto& all = counts();
  const std::scoped_lock lock(all.mutex);
  subtract(all.work.operators, before_.operators, since.operators);
  subtract(all.work.waits, before_.waits, since.waits);
  since.peak_bytes = peak_of_counted_bytes();
  return since;
}

namespace {

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("_copy_from", copy_from);
  library.impl("resize_", resize_);
  library.impl("_local_scalar_dense", local_scalar_dense);
}

[[maybe_unused]] const bool kRegistered = [] {
  c10::SetAllocator(c10::DeviceType::CUDA, &device_allocator());
  return true;
}();

}  // namespace

}  // namespace heed::test
