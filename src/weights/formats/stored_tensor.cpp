// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/stored_tensor.h"

#include <c10/util/StringUtil.h>

#include "weights/formats/file_tensors.h"

namespace heed::detail {

namespace {

/// Whether all elements lie among the first `elements` of the storage.
bool fits(const StoredTensor& tensor, int64_t elements, int64_t count) {
  int64_t left = elements - tensor.offset;  // elements after the last one that is reached
  if (count == 0) return left >= 0;
  --left;
  for (size_t i = 0; left >= 0 && i < tensor.sizes.size(); ++i) {
    const auto steps = tensor.sizes[i] - 1, stride = tensor.strides[i];
    left = stride == 0 || steps <= left / stride ? left - steps * stride : -1;
  }
  return left >= 0;
}

}  // namespace

at::Tensor tensor_in(const Bytes& bytes, const StoredTensor& stored, const std::string& place) {
  const auto width = c10::elementSize(stored.dtype);
  const auto elements = static_cast<int64_t>(stored.storage.size / width);
  const auto count = element_count(stored.sizes);
  HEED_CHECK_STORED(
      stored.sizes.size() == stored.strides.size() && count && fits(stored, elements, *count),
      bytes, place, "sizes {}, strides {} and offset {} must fit its storage of {} elements",
      c10::str(at::IntArrayRef(stored.sizes)), c10::str(at::IntArrayRef(stored.strides)),
      stored.offset, elements);
  // Strides of 0 repeat elements: whoever copies such a tensor needs room for all of them.
  HEED_CHECK_STORED(static_cast<size_t>(*count) <= memory_limit(bytes) / width, bytes, place,
                    "sizes {} must not repeat elements so often",
                    c10::str(at::IntArrayRef(stored.sizes)));
  const auto first = stored.storage.offset + static_cast<size_t>(stored.offset) * width;
  return tensor_at(bytes, {first, stored.dtype, stored.sizes, stored.strides}, "PyTorch", place);
}

}  // namespace heed::detail
