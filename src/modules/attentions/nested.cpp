// SPDX-License-Identifier: BSD-3-Clause
#include "modules/attentions/nested.h"

#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <vector>

#include "core/checks.h"
#include "core/offsets.h"

namespace heed::detail {

Packed pack(const char* function, const char* name, const at::Tensor& nested) {
  HEED_CHECK(nested.defined() && nested.is_nested(), "{}: {} must be nested, as query is", function,
             name);
  HEED_CHECK(nested.dim() == 3, "{}: nested {} rank ({}) must equal 3", function, name,
             nested.dim());
  const auto sequences = nested.unbind();
  HEED_CHECK(!sequences.empty(), "{}: nested {} must hold at least 1 sequence", function, name);
  auto offsets = at::empty({static_cast<int64_t>(sequences.size()) + 1}, at::kLong);
  auto* next = offsets.mutable_data_ptr<int64_t>();
  *next = 0;
  for (const auto& sequence : sequences) {
    next[1] = next[0] + sequence.size(0);
    ++next;
  }
  return {at::cat(sequences).unsqueeze(0), offsets};
}

at::Tensor unpack(const Packed& packed) {
  return at::_nested_tensor_from_tensor_list(
      packed.rows.squeeze(0).split_with_sizes(lengths(packed.offsets)));
}

}  // namespace heed::detail
