// SPDX-License-Identifier: BSD-3-Clause
#include "support/simulated_cuda/graph.h"

#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "support/simulated_cuda/device_memory.h"
#include "support/simulated_cuda/recording.h"

namespace heed::test {

using at::Tensor;

class Recording {
 public:
  void add(std::function<void()> again) {
    const std::scoped_lock lock(mutex_);
    steps_.push_back(std::move(again));
  }

  /// Saves the bytes of memory from before the capture.
  void note_write(const c10::Storage& storage) {
    const std::scoped_lock lock(mutex_);
    if (storage.nbytes() == 0 || new_blocks().count(storage.mutable_data()) > 0) return;
    const auto [place, is_first] = before_.try_emplace(storage.mutable_data());
    if (!is_first) return;
    place->second.resize(storage.nbytes());
    std::memcpy(place->second.data(), host_view(storage.data()), storage.nbytes());
  }

  void watch(const c10::Storage& storage) {
    const std::scoped_lock lock(mutex_);
    using Owner = c10::intrusive_ptr<c10::StorageImpl>;
    watched_.emplace(storage.mutable_data(), Owner::reclaim_copy(storage.unsafeGetStorageImpl()));
  }

  /// As if nothing had run.
  void undo() {
    for (const auto& [device, bytes] : before_) {
      std::memcpy(host_view(device), bytes.data(), bytes.size());
    }
    before_.clear();
    for (const auto& [device, bytes] : new_blocks()) std::memset(host_view(device), 0xff, bytes);
  }

  void replay() const {
    for (const auto& [device, storage] : watched_) {
      const auto owner = storage.lock();
      TORCH_CHECK(owner && owner->data() == device,
                  "simulated CUDA: the graph uses memory that was freed");
    }
    const at::NoGradGuard no_grad;
    for (const auto& step : steps_) step();
  }

  int64_t launches() const { return static_cast<int64_t>(steps_.size()); }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> steps_;
  std::map<void*, std::vector<char>> before_;
  std::map<void*, c10::weak_intrusive_ptr<c10::StorageImpl>> watched_;
};

namespace {

std::atomic<Recording*> current{nullptr};

/// A tensor with these numbers in this memory, which somebody else owns.
Tensor borrowed(const Tensor& tensor) {
  const auto& owner = tensor.storage();
  current.load()->watch(owner);
  c10::Storage storage(c10::Storage::use_byte_size_t(), owner.nbytes(),
                       c10::DataPtr(owner.mutable_data(), kDevice), nullptr, /*resizable=*/false);
  auto copy = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), tensor.key_set(),
                                                       tensor.dtype());
  copy.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return copy;
}

}  // namespace

bool is_capturing() { return current.load() != nullptr; }

void refuse_in_capture(const std::string& what) {
  TORCH_CHECK(!is_capturing(), "simulated CUDA: a graph must not use ", what);
}

void note_write(const Tensor& tensor) {
  if (auto* const recording = current.load(); recording != nullptr && tensor.is_cuda()) {
    recording->note_write(tensor.storage());
  }
}

void record(std::function<void()> again) { current.load()->add(std::move(again)); }

Tensor kept(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (!tensor.is_cuda()) return tensor.clone();
  const auto& storage = tensor.storage();
  const bool is_own = storage.nbytes() == 0 || new_blocks().count(storage.mutable_data()) > 0;
  if (!is_own) return borrowed(tensor);
  return Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

c10::IValue kept(const c10::IValue& value) {
  if (value.isTensor()) return kept(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(kept(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor> tensor : value.toOptionalTensorList()) {
      list.push_back(kept_argument(tensor));
    }
    return list;
  }
  return value;
}

CapturedGraph::CapturedGraph() : recording_(std::make_shared<Recording>()) {}

CapturedGraph::~CapturedGraph() = default;

void CapturedGraph::replay() const { recording_->replay(); }

int64_t CapturedGraph::launches() const { return recording_->launches(); }

Capture::Capture(CapturedGraph& graph) {
  TORCH_CHECK(!is_capturing(), "simulated CUDA: a capture is under way");
  TORCH_CHECK(graph.launches() == 0, "simulated CUDA: the graph has been captured");
  watch_new_blocks();
  current = graph.recording_.get();
}

Capture::~Capture() {
  current.exchange(nullptr)->undo();
  forget_new_blocks();
}

}  // namespace heed::test
