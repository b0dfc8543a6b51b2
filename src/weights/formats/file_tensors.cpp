// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/file_tensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace heed::detail {

// `Unread` and `Reading` are outside of the unnamed namespace because ValueCopies::Copy has
// members of them: GCC warns of members whose type has no linkage.

/// The context of a storage without memory: where its bytes are in a file.
struct Unread {
  Bytes bytes;
  size_t offset;
};

namespace {

void forget(void* unread) { delete static_cast<Unread*>(unread); }

const Unread* unread_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  return tensor.storage().data_ptr().cast_context<Unread>(&forget);
}

/// The number of bytes from the first element to the end of the last.
size_t reach(const Extent& extent) {
  int64_t last = 0;
  for (size_t i = 0; i < extent.sizes.size(); ++i) {
    if (extent.sizes[i] == 0) return 0;
    last += (extent.sizes[i] - 1) * extent.strides[i];
  }
  return static_cast<size_t>(last + 1) * c10::elementSize(extent.dtype);
}

/// Reads bytes, and checks those of bools again: the file may have been written to since
/// `tensor_at` checked them.
void read_checked(const Unread& unread, size_t at, void* to, size_t count, at::ScalarType dtype) {
  unread.bytes.read(unread.offset + at, to, count);
  HEED_CHECK(dtype != at::kBool || holds_bools({static_cast<const char*>(to), count}),
             "{} must stay as it is while it is read; the bytes of a Bool tensor must be "
             "0 or 1",
             unread.bytes.source());
}

c10::Storage storage_of(size_t size) {
  return at::empty({static_cast<int64_t>(size)}, at::kByte).storage();
}

/// The runs of consecutive elements of the file that make up a view, in the view's row-major
/// order.
class Runs {
 public:
  explicit Runs(const at::Tensor& view) : view_(view), outer_(view.dim()) {
    while (outer_ > 0 && (view.size(outer_ - 1) == 1 || view.stride(outer_ - 1) == length_)) {
      length_ *= view.size(--outer_);
    }
  }

  /// The elements of one run.
  int64_t length() const { return length_; }

  /// Whether reading run by run is no slower than reading the whole range of the file at once.
  bool are_long() const {
    constexpr int64_t kSector = 512;  // a disk reads no less
    return length_ == view_.numel() || length_ * view_.element_size() >= kSector;
  }

  /// The place of the view's element `index` in its storage.
  int64_t place(int64_t index) const {
    auto place = view_.storage_offset() + index % length_;
    auto run = index / length_;
    for (auto dim = outer_; dim-- > 0; run /= view_.size(dim)) {
      place += run % view_.size(dim) * view_.stride(dim);
    }
    return place;
  }

 private:
  const at::Tensor& view_;
  int64_t outer_;  // dims around the runs
  int64_t length_ = 1;
};

/// Reads elements [first, first + count) of a view, in row-major order.
void read_elements(const Unread& unread, const at::Tensor& view, int64_t first, int64_t count,
                   void* to) {
  const Runs runs(view);
  const auto width = view.element_size();
  auto* place = static_cast<char*>(to);
  while (count > 0) {
    const auto size = std::min(count, runs.length() - first % runs.length());
    const auto bytes = static_cast<size_t>(size) * width;
    read_checked(unread, static_cast<size_t>(runs.place(first)) * width, place, bytes,
                 view.scalar_type());
    place += bytes;
    first += size;
    count -= size;
  }
}

/// The dims of a tensor in the order of its memory, the last one innermost.
std::vector<int64_t> memory_order(const at::Tensor& tensor) {
  std::vector<int64_t> dims(static_cast<size_t>(tensor.dim()));
  std::iota(dims.begin(), dims.end(), int64_t{0});
  std::stable_sort(dims.begin(), dims.end(),
                   [&](auto a, auto b) { return tensor.stride(a) > tensor.stride(b); });
  return dims;
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> result(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    result[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return result;
}

at::Tensor over(const c10::Storage& storage, at::ScalarType dtype, int64_t offset,
                at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::empty({0}, dtype).set_(storage, offset, sizes, strides);
}

}  // namespace

/// Reads the values of a view: run by run if the runs are long, otherwise the whole range of the
/// file from its first element to its last.
class Reading {
 public:
  Reading(const Unread& unread, at::Tensor tensor)
      : unread_(unread),
        tensor_(std::move(tensor)),
        order_(memory_order(tensor_)),
        rows_(tensor_.permute(order_)),
        is_by_runs_(Runs(rows_).are_long()) {}

  /// The number of bytes that `read` writes.
  size_t bytes() const {
    return is_by_runs_ ? tensor_.nbytes()
                       : reach({0, tensor_.scalar_type(), tensor_.sizes(), tensor_.strides()});
  }

  void read(void* to) const {
    if (is_by_runs_) return read_elements(unread_, rows_, 0, rows_.numel(), to);
    const auto first = static_cast<size_t>(tensor_.storage_offset()) * tensor_.element_size();
    read_checked(unread_, first, to, bytes(), tensor_.scalar_type());
  }

  /// The tensor, over the memory that `read` writes to.
  at::Tensor view(const c10::Storage& storage) const {
    const auto dtype = tensor_.scalar_type();
    if (!is_by_runs_) return over(storage, dtype, 0, tensor_.sizes(), tensor_.strides());
    return over(storage, dtype, 0, rows_.sizes(), c10::contiguous_strides(rows_.sizes()))
        .permute(inverse(order_));
  }

 private:
  const Unread& unread_;
  at::Tensor tensor_;
  std::vector<int64_t> order_;
  at::Tensor rows_;  // tensor_ with its dims in the order of memory
  bool is_by_runs_;
};

at::Tensor tensor_at(const Bytes& bytes, const Extent& extent, const char* format,
                     const std::string& place) {
  const auto size = reach(extent);
  HEED_CHECK(extent.dtype != at::kBool || bytes.hold_bools(extent.offset, size),
             "{} must be a sound {} file; {}: the bytes of a Bool tensor must be 0 or 1",
             bytes.source(), format, place);
  at::DataPtr none(nullptr, new Unread{bytes, extent.offset}, &forget, at::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), size, std::move(none),
                       /*allocator=*/nullptr, /*resizable=*/false);
  // Made without LibTorch's dispatcher, because a file may have very many tensors.
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(extent.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(extent.sizes, extent.strides);
  return tensor;
}

at::Tensor with_values(const at::Tensor& tensor) {
  const auto* unread = unread_of(tensor);
  if (unread == nullptr) return tensor;
  const Reading reading(*unread, tensor);
  const auto storage = storage_of(reading.bytes());
  reading.read(storage.mutable_data());
  return reading.view(storage);
}

bool share_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  const auto *one = unread_of(a), *other = unread_of(b);
  return one != nullptr && other != nullptr &&
         one->bytes.is_at(one->offset, other->bytes, other->offset) &&
         a.scalar_type() == b.scalar_type() && a.storage_offset() == b.storage_offset() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

/// One of the copies. `run` allocates no memory.
class ValueCopies::Copy {
 public:
  Copy(at::Tensor from, at::Tensor to)
      : from_(std::move(from)), to_(std::move(to)), unread_(unread_of(from_)) {
    if (unread_ == nullptr) return;
    const bool lazy = to_.is_conj() || to_.is_neg();
    if (!Runs(from_).are_long() || !to_.is_contiguous() || lazy) {
      whole_.emplace(*unread_, from_);
    } else if (!is_read_in_place()) {
      window_ = to_.view(-1).narrow(0, 0, std::min(from_.numel(), most_at_once()));
    }
  }

  /// The bytes of memory that the copy needs besides its two tensors.
  size_t bytes() const {
    if (whole_) return whole_->bytes();
    return window_.defined() ? static_cast<size_t>(window_.numel()) * from_.element_size() : 0;
  }

  void prepare(const c10::Storage& memory) {
    if (whole_) staged_ = whole_->view(memory);
    if (window_.defined())
      staged_ = over(memory, from_.scalar_type(), 0, window_.sizes(), window_.strides());
  }

  void run() {
    if (unread_ == nullptr) {
      to_.copy_(from_);
    } else if (whole_) {
      whole_->read(memory());
      to_.copy_(staged_);
    } else if (window_.defined()) {
      run_piece_by_piece();
    } else {
      read_elements(*unread_, from_, 0, from_.numel(), to_.mutable_data_ptr());
      to_.unsafeGetTensorImpl()->bump_version();  // as copy_ does, for autograd
    }
  }

 private:
  bool is_read_in_place() const {
    return to_.is_cpu() && to_.scalar_type() == from_.scalar_type() &&
           to_.scalar_type() != at::kBool;
  }

  int64_t most_at_once() const { return static_cast<int64_t>(kPiece / from_.element_size()); }

  void* memory() const { return staged_.storage().mutable_data(); }

  /// Reads and converts the values piece by piece: the window moves over the elements of `to`.
  void run_piece_by_piece() {
    auto& window = *window_.unsafeGetTensorImpl();
    auto& staged = *staged_.unsafeGetTensorImpl();
    const auto count = from_.numel();
    for (int64_t at = 0; at < count; at += most_at_once()) {
      const auto size = std::min(most_at_once(), count - at);
      read_elements(*unread_, from_, at, size, memory());
      staged.set_sizes_contiguous({size});
      window.set_sizes_contiguous({size});
      window.set_storage_offset(to_.storage_offset() + at);
      window_.copy_(staged_);
    }
  }

  at::Tensor from_, to_;
  const Unread* unread_;          // null: the values of `from` are in memory
  std::optional<Reading> whole_;  // if set, all values are read before they are copied
  at::Tensor window_;             // if defined, the elements of `to` that are converted next
  at::Tensor staged_;             // the values read, in memory that all copies share
};

ValueCopies::ValueCopies() = default;
ValueCopies::~ValueCopies() = default;

void ValueCopies::add(const at::Tensor& from, const at::Tensor& to) {
  const at::NoGradGuard no_grad;
  copies_.emplace_back(from, to);
}

void ValueCopies::prepare() {
  size_t most = 0;
  for (const auto& copy : copies_) most = std::max(most, copy.bytes());
  const auto memory = storage_of(most);
  for (auto& copy : copies_) copy.prepare(memory);
}

void ValueCopies::run() {
  const at::NoGradGuard no_grad;
  for (auto& copy : copies_) copy.run();
}

void copy_values(const at::Tensor& from, const at::Tensor& to) {
  ValueCopies copies;
  copies.add(from, to);
  copies.prepare();
  copies.run();
}

}  // namespace heed::detail
