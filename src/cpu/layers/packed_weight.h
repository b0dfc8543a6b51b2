// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cpu/isa/packed.h"

namespace heed::detail {

/// A weight [N, K] in the layout in which products with packed weights read it: for each panel of
/// 64 outputs, the rows that PackedRows describes. Outputs beyond N are 0.
struct PackedWeight {
  PackedFormat format;
  int64_t outputs, depth;  // N, K
  int64_t group;           // int4: numbers of the depth that share a scale; else 0
  at::Tensor values;   // [panels, rows, 64] of float, bfloat16 pairs as int32, half, int8, bytes
  at::Tensor scales;   // int8: float [panels, 1, 64]; int4: bfloat16 [panels, K / group, 64]
  at::Tensor offsets;  // int4 with zero points: bfloat16 as the scales; else undefined
  bool quantize_activations = false;  // whether many input rows may be rounded to bytes

  int64_t bytes() const;
  /// values, scales and offsets.
  std::array<at::Tensor*, 3> tensors() { return {&values, &scales, &offsets}; }
  std::array<const at::Tensor*, 3> tensors() const { return {&values, &scales, &offsets}; }
};

/// How a weight is packed.
struct PackedLayout {
  PackedFormat format;
  int64_t group = 0;                  // int4 alone: 32, 64 or 128, which divides the depth
  bool zero_point = false;            // int4 alone: whether a group has an offset of its own
  bool quantize_activations = false;  // int8 and int4 alone
};

/// Names of the formats, as files have them.
std::string_view name_of(PackedFormat format);
std::optional<PackedFormat> packed_format(std::string_view name);

/// Whether inputs may be rounded to bytes for products with this format.
bool can_quantize_activations(PackedFormat format);

/// Whether numbers of this format may share a scale by `group`: 0 unless the format is int4.
bool is_group(PackedFormat format, int64_t group);

/// The sizes and the dtype of one of PackedWeight::tensors; no sizes where there is none.
struct PackedShape {
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
};
std::array<PackedShape, 3> packed_shapes(const PackedLayout& layout, int64_t outputs,
                                         int64_t depth);

/// Packs a weight [N, K] of float32, bfloat16 or float16 on the CPU, whose numbers are finite.
PackedWeight pack_weight(const at::Tensor& weight, const PackedLayout& layout);

/// The numbers of rows `indices` (int64 [n], on the CPU) of the weight: float32 [n, K].
at::Tensor unpack_rows(const PackedWeight& weight, const at::Tensor& indices);

/// All of them: float32 [N, K].
at::Tensor unpack_weight(const PackedWeight& weight);

/// A tensor of the weight's sizes and of `dtype`, the dtype of its products, which has a packed
/// weight instead of memory. Operators that read it throw c10::Error.
at::Tensor packed_tensor(std::shared_ptr<const PackedWeight> weight, at::ScalarType dtype);

/// The packed weight of such a tensor; null for other tensors.
const PackedWeight* packed_weight_of(const at::Tensor& tensor);

}  // namespace heed::detail
