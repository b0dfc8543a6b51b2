// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// A tensor as PyTorch's files describe it: elements of a storage, which may hold other tensors
/// too.
struct StoredTensor {
  Place storage;
  at::ScalarType dtype;
  int64_t offset;  // of the first element, in elements
  std::vector<int64_t> sizes, strides;
};

/// A tensor that heed cannot hold as a strided tensor of one of LibTorch's dtypes, as errors
/// describe it: "a tensor of "F4"".
struct Unheld {
  std::string what;
};

/// A tensor whose values stay in the file. Throws c10::ValueError, beginning with `place`, unless
/// its elements lie in its storage. Offset, sizes and strides are 0 or more.
at::Tensor tensor_in(const Bytes& bytes, const StoredTensor& stored, const std::string& place);

}  // namespace heed::detail

/// HEED_CHECK_FILE for the tensor at `place` in a PyTorch file.
#define HEED_CHECK_STORED(condition, bytes, place, text, ...) \
  HEED_CHECK_FILE(condition, bytes, "PyTorch", "{}: " text, place, __VA_ARGS__)
