// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "weights/formats/bytes.h"

/// Tensors whose values stay in a file until they are needed.

namespace heed::detail {

/// The position of a tensor in a file. Strides count elements.
struct Extent {
  size_t offset = 0;
  at::ScalarType dtype = at::kFloat;
  at::IntArrayRef sizes, strides;
};

/// A tensor whose values stay in the file: it and its views have shapes, and `with_values` and
/// `copy_values` read them. The caller has checked that the extent lies in the file. Throws
/// c10::ValueError, which names `format` and `place`, when bytes of bools are not 0 or 1.
at::Tensor tensor_at(const Bytes& bytes, const Extent& extent, const char* format,
                     const std::string& place);

/// The tensor, with its values read if they are in a file. Of a view, only its elements are read,
/// unless they lie in runs shorter than 512 bytes.
at::Tensor with_values(const at::Tensor& tensor);

/// Whether two tensors are the same tensor, or the same elements of one file.
bool share_values(const at::Tensor& a, const at::Tensor& b);

/// Copies of tensors to others, wherever their values are, as to.copy_(from) makes them. They read
/// what `with_values` reads, and take little memory if the layouts allow it. All memory is taken
/// before the first copy, so that a lack of it changes nothing.
class ValueCopies {
 public:
  ValueCopies();
  ValueCopies(const ValueCopies&) = delete;
  ValueCopies& operator=(const ValueCopies&) = delete;
  ~ValueCopies();

  void add(const at::Tensor& from, const at::Tensor& to);
  /// Takes the memory that `run` needs; call it once, when all have been added.
  void prepare();
  void run();

 private:
  class Copy;
  std::vector<Copy> copies_;
};

/// Makes one copy as ValueCopies makes it.
void copy_values(const at::Tensor& from, const at::Tensor& to);

}  // namespace heed::detail
