// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <cstdint>

namespace heed::detail {

/// A tensor that is not kept, and whether it has been changed in place since.
class Watched {
 public:
  explicit Watched(const at::Tensor& tensor)
      : tensor_(tensor.getIntrusivePtr()), version_(version_of(*tensor.getIntrusivePtr())) {}

  /// Also true if the tensor itself is gone.
  bool is_unchanged() const {
    const auto tensor = tensor_.lock();
    return !tensor || version_of(*tensor) == version_;
  }
  /// The tensor; undefined if it is gone.
  at::Tensor tensor() const { return at::Tensor(tensor_.lock()); }

 private:
  static uint32_t version_of(c10::TensorImpl& tensor) {
    return tensor.is_inference() ? 0 : tensor.version_counter().current_version();
  }

  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  uint32_t version_;
};

}  // namespace heed::detail
