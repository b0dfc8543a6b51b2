// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/packed_weight.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/ceil_div.h"
#include "core/error.h"
#include "cpu/capability.h"
#include "cpu/layers/packed_memory.h"
#include "cpu/tensor_rows.h"

// A weight is packed panel by panel, in parallel:
//
//   for each panel of 64 outputs:
//     rows [64, K] = the panel's rows of the weight, in the dtype of the format
//     for each 64 numbers of the depth, a square that stays in the L1 cache:
//       values[k][output] = the number of rows[output][k]
//
//   int8      scale = max |w| / 127 of an output;  number = w / scale, rounded
//   int4      scale = w / -8 of a group, w being its number of the largest magnitude; the numbers
//             are -8 to 7, and kept with 8 added; offset = -8 scale, which is not kept
//   int4 with zero points      scale = (max - min) / 15 and offset = min
//
// Scales and offsets of int4 are rounded to bfloat16 before numbers are divided by them.

namespace heed::detail {

namespace {

constexpr int64_t kPanel = kPackedPanel;
constexpr int64_t kSmallestGroup = 32;  // of int4; the others are multiples of it

/// Properties of a format.
struct PackedProperties {
  std::string_view name;
  at::ScalarType rows;      // the dtype in which rows are read
  at::ScalarType elements;  // that of PackedWeight::values
  int64_t per_row;          // numbers of the depth in a row of values
  bool are_bytes;           // whether products of bytes can multiply them
};

constexpr std::array<PackedProperties, kPackedFormats> kProperties = {{
    {"float32", at::kFloat, at::kFloat, 1, false},
    {"bfloat16", at::kBFloat16, at::kInt, 2, false},
    {"float16", at::kHalf, at::kHalf, 1, false},
    {"int8", at::kFloat, at::kChar, 1, true},
    {"int4", at::kFloat, at::kByte, 2, true},
}};

const PackedProperties& properties_of(PackedFormat format) {
  return kProperties[static_cast<size_t>(format)];
}

/// Panel `index` of a tensor [panels, .., 64].
template <typename T>
T* panel_of(const at::Tensor& tensor, int64_t index) {
  return static_cast<T*>(tensor.mutable_data_ptr()) + index * tensor.stride(0);
}

template <typename T>
const T* read_panel(const at::Tensor& tensor, int64_t index) {
  return static_cast<const T*>(tensor.const_data_ptr()) + index * tensor.stride(0);
}

/// Calls visit(output, k) for all numbers of a panel, by squares.
template <typename Visit>
void for_squares(int64_t outputs, int64_t depth, int64_t step, const Visit& visit) {
  for (int64_t first = 0; first < depth; first += kPanel) {
    const auto last = std::min(depth, first + kPanel);
    for (int64_t n = 0; n < outputs; ++n) {
      for (auto k = first; k < last; k += step) visit(n, k);
    }
  }
}

/// Packs numbers of `Element` as they are.
template <typename Element>
void pack_as_is(const at::Tensor& rows, Element* to) {
  const auto* from = rows.const_data_ptr<Element>();
  const auto depth = rows.size(1);
  for_squares(rows.size(0), depth, 1,
              [&](int64_t n, int64_t k) { to[k * kPanel + n] = from[n * depth + k]; });
}

void pack_bfloat16(const at::Tensor& rows, int32_t* to) {
  const auto* from = rows.const_data_ptr<c10::BFloat16>();
  const auto depth = rows.size(1);
  if (const auto by_vectors = instruction_set().matrix.of_pairs.pack_transposed) {
    return by_vectors(rows_at(rows, 0, rows.size(0), depth), reinterpret_cast<BFloat16Pair*>(to),
                      kPanel);
  }
  for_squares(rows.size(0), depth, 2, [&](int64_t n, int64_t k) {
    const auto* pair = from + n * depth + k;
    const auto second = k + 1 < depth ? uint32_t{pair[1].x} << 16 : 0;
    to[k / 2 * kPanel + n] = static_cast<int32_t>(pair[0].x | second);
  });
}

/// The integer nearest to x, which is between -2^21 and 2^21. The compiler has no vectors for
/// std::lrint.
int32_t nearest(float x) {
  constexpr float kRound = 0x1.8p23F;  // adding it rounds to an integer
  constexpr int32_t kRoundBits = 0x4b400000;
  const float shifted = x + kRound;
  int32_t bits = 0;
  std::memcpy(&bits, &shifted, sizeof(bits));
  return bits - kRoundBits;
}

struct Bounds {
  float least, most;
};

Bounds bounds_of(const float* numbers, int64_t count) {
  constexpr int64_t kSideBySide = 4;  // comparisons, by vectors
  std::array<float, kSideBySide> least, most;
  least.fill(numbers[0]);
  most.fill(numbers[0]);
  int64_t k = 0;
  for (; k + kSideBySide <= count; k += kSideBySide) {
    for (size_t lane = 0; lane < kSideBySide; ++lane) {
      const float number = numbers[static_cast<size_t>(k) + lane];
      least[lane] = std::min(number, least[lane]);
      most[lane] = std::max(number, most[lane]);
    }
  }
  for (; k < count; ++k) {
    least[0] = std::min(numbers[k], least[0]);
    most[0] = std::max(numbers[k], most[0]);
  }
  return {*std::min_element(least.begin(), least.end()),
          *std::max_element(most.begin(), most.end())};
}

void pack_int8(const at::Tensor& rows, int8_t* to, float* scales) {
  constexpr float kLargest = 127;
  const auto* from = rows.const_data_ptr<float>();
  const auto depth = rows.size(1);
  std::array<float, kPanel> factors{};
  for (int64_t n = 0; n < rows.size(0); ++n) {
    const auto [least, most] = bounds_of(from + n * depth, depth);
    const float largest = std::max(-least, most);
    scales[n] = largest / kLargest;
    // A scale that is subnormal has no reciprocal.
    factors[static_cast<size_t>(n)] = largest > 0x1p-100F ? kLargest / largest : 0;
  }
  for_squares(rows.size(0), depth, kPanel, [&](int64_t n, int64_t first) {
    const auto factor = factors[static_cast<size_t>(n)];
    const auto count = std::min(kPanel, depth - first);
    for (auto k = first; k < first + count; ++k) {
      to[k * kPanel + n] = static_cast<int8_t>(nearest(from[n * depth + k] * factor));
    }
  });
}

/// The scale and the offset of a group of int4.
struct Int4Scale {
  c10::BFloat16 scale, offset;

  /// Writes the numbers of kSmallestGroup weights.
  void round(const float* weights, int32_t* numbers) const {
    constexpr int32_t kLargest = 15;
    const float s = scale, least = offset;
    const float divisor = s == 0 ? std::numeric_limits<float>::infinity() : s;
    for (int64_t k = 0; k < kSmallestGroup; ++k) {
      const auto number = nearest((weights[k] - least) / divisor);  // a scale is rounded
      numbers[k] = number < 0 ? 0 : number > kLargest ? kLargest : number;
    }
  }
};

Int4Scale scale_of(const float* group, int64_t count, bool zero_point) {
  const auto [least, most] = bounds_of(group, count);
  if (zero_point) return {(most - least) / 15, least};
  const c10::BFloat16 scale = (-least > most ? least : most) / kSymmetricOffset;
  return {scale, kSymmetricOffset * static_cast<float>(scale)};  // exact: a power of two
}

struct Int4Panel {
  uint8_t* values;
  c10::BFloat16* scales;
  c10::BFloat16* offsets;  // null unless groups have offsets of their own
};

void pack_int4(const at::Tensor& rows, const PackedLayout& layout, const Int4Panel& to) {
  const auto* from = rows.const_data_ptr<float>();
  const auto depth = rows.size(1), group = layout.group;
  for (int64_t g = 0; g < depth / group; ++g) {
    for (int64_t n = 0; n < rows.size(0); ++n) {
      const auto* numbers = from + n * depth + g * group;
      const auto scale = scale_of(numbers, group, layout.zero_point);
      to.scales[g * kPanel + n] = scale.scale;
      if (to.offsets != nullptr) to.offsets[g * kPanel + n] = scale.offset;
      auto* values = to.values + g * group / 2 * kPanel + n;
      for (int64_t first = 0; first < group; first += kSmallestGroup) {
        std::array<int32_t, kSmallestGroup> rounded{};
        scale.round(numbers + first, rounded.data());
        for (size_t k = 0; k < rounded.size(); k += 2, values += kPanel) {
          *values = static_cast<uint8_t>(rounded[k] | rounded[k + 1] << 4);
        }
      }
    }
  }
}

void pack_panel(const at::Tensor& rows, const PackedLayout& layout, const PackedWeight& to,
                int64_t panel) {
  switch (layout.format) {
    case PackedFormat::float32:
      return pack_as_is(rows, panel_of<float>(to.values, panel));
    case PackedFormat::bfloat16:
      return pack_bfloat16(rows, panel_of<int32_t>(to.values, panel));
    case PackedFormat::float16:
      return pack_as_is(rows, panel_of<c10::Half>(to.values, panel));
    case PackedFormat::int8:
      return pack_int8(rows, panel_of<int8_t>(to.values, panel), panel_of<float>(to.scales, panel));
    case PackedFormat::int4:
      return pack_int4(
          rows, layout,
          {panel_of<uint8_t>(to.values, panel), panel_of<c10::BFloat16>(to.scales, panel),
           layout.zero_point ? panel_of<c10::BFloat16>(to.offsets, panel) : nullptr});
  }
}

/// Reads numbers of a panel.
class PanelReader {
 public:
  PanelReader(const PackedWeight& weight, int64_t panel) : weight_(weight), panel_(panel) {}

  /// Number k of the depth of output n.
  float at(int64_t n, int64_t k) const {
    switch (weight_.format) {
      case PackedFormat::float32:
        return values<float>()[k * kPanel + n];
      case PackedFormat::bfloat16: {
        const auto pair = static_cast<uint32_t>(values<int32_t>()[k / 2 * kPanel + n]);
        const auto bits = static_cast<uint16_t>(k % 2 == 0 ? pair : pair >> 16);
        return c10::BFloat16(bits, c10::BFloat16::from_bits());
      }
      case PackedFormat::float16:
        return values<c10::Half>()[k * kPanel + n];
      case PackedFormat::int8:
        return static_cast<float>(values<int8_t>()[k * kPanel + n]) *
               read_panel<float>(weight_.scales, panel_)[n];
      case PackedFormat::int4: {
        const auto byte = values<uint8_t>()[k / 2 * kPanel + n];
        const auto number = k % 2 == 0 ? byte & 15 : byte >> 4;
        const auto place = k / weight_.group * kPanel + n;
        const float scale = read_panel<c10::BFloat16>(weight_.scales, panel_)[place];
        float offset = kSymmetricOffset * scale;
        if (weight_.offsets.defined()) {
          offset = read_panel<c10::BFloat16>(weight_.offsets, panel_)[place];
        }
        return static_cast<float>(number) * scale + offset;
      }
    }
    TORCH_INTERNAL_ASSERT(false, "unknown format");
  }

 private:
  template <typename T>
  const T* values() const {
    return read_panel<T>(weight_.values, panel_);
  }

  const PackedWeight& weight_;
  const int64_t panel_;
};

/// A tensor that has a packed weight instead of memory.
class PackedTensorImpl : public c10::TensorImpl {
 public:
  PackedTensorImpl(std::shared_ptr<const PackedWeight> weight, at::ScalarType dtype)
      : TensorImpl(c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype),
                   c10::Device(at::kCPU)),
        weight_(std::move(weight)) {
    set_sizes_contiguous({weight_->outputs, weight_->depth});
    release_storage_and_set_meta_custom_data_ptr_error_msg_(
        "the weight is packed by heed::pack_weights: its numbers cannot be read, saved or "
        "converted; multiply by it with heed::linear(fc, x)");
  }

  const PackedWeight& weight() const { return *weight_; }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override {
    auto copy = c10::make_intrusive<PackedTensorImpl>(weight_, c10::typeMetaToScalarType(dtype()));
    copy->set_version_counter(version_counter);
    copy->set_allow_tensor_metadata_change(allow_tensor_metadata_change);
    return copy;
  }

  const char* tensorimpl_type_name() const override { return "PackedTensorImpl"; }

 private:
  const std::shared_ptr<const PackedWeight> weight_;
};

}  // namespace

int64_t PackedWeight::bytes() const {
  int64_t sum = 0;
  for (const auto* tensor : tensors()) {
    if (tensor->defined()) sum += static_cast<int64_t>(tensor->nbytes());
  }
  return sum;
}

std::string_view name_of(PackedFormat format) { return properties_of(format).name; }

std::optional<PackedFormat> packed_format(std::string_view name) {
  for (int format = 0; format < kPackedFormats; ++format) {
    if (kProperties[static_cast<size_t>(format)].name == name) {
      return static_cast<PackedFormat>(format);
    }
  }
  return std::nullopt;
}

bool can_quantize_activations(PackedFormat format) { return properties_of(format).are_bytes; }

bool is_group(PackedFormat format, int64_t group) {
  if (format != PackedFormat::int4) return group == 0;
  return group == kSmallestGroup || group == 64 || group == 128;
}

std::array<PackedShape, 3> packed_shapes(const PackedLayout& layout, int64_t outputs,
                                         int64_t depth) {
  const auto panels = ceil_div(outputs, kPanel);
  const auto& format = properties_of(layout.format);
  std::array<PackedShape, 3> shapes{};
  shapes[0] = {{panels, ceil_div(depth, format.per_row), kPanel}, format.elements};
  if (layout.format == PackedFormat::int8) shapes[1] = {{panels, 1, kPanel}, at::kFloat};
  if (layout.format == PackedFormat::int4) {
    shapes[1] = {{panels, depth / layout.group, kPanel}, at::kBFloat16};
    if (layout.zero_point) shapes[2] = shapes[1];
  }
  return shapes;
}

PackedWeight pack_weight(const at::Tensor& weight, const PackedLayout& layout) {
  const at::NoGradGuard no_grad;
  const auto outputs = weight.size(0), depth = weight.size(1);
  const auto rows_dtype = properties_of(layout.format).rows;
  PackedWeight packed{
      layout.format, outputs, depth, layout.group, {}, {}, {}, layout.quantize_activations};
  const auto shapes = packed_shapes(layout, outputs, depth);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto& [sizes, dtype] = shapes[i];
    if (sizes.empty()) continue;
    auto& tensor = *packed.tensors()[i];
    tensor = packed_memory(sizes, dtype);
    if (outputs % kPanel > 0) tensor.select(0, outputs / kPanel).zero_();  // outputs that are none
  }
  at::parallel_for(0, ceil_div(outputs, kPanel), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad_here;
    for (auto panel = begin; panel < end; ++panel) {
      const auto first = panel * kPanel;
      const auto rows = weight.detach().narrow(0, first, std::min(kPanel, outputs - first));
      pack_panel(rows.to(rows_dtype).contiguous(), layout, packed, panel);
    }
  });
  return packed;
}

at::Tensor unpack_rows(const PackedWeight& weight, const at::Tensor& indices) {
  const auto from = indices.contiguous();
  const auto* rows = from.const_data_ptr<int64_t>();
  auto result = at::empty({from.numel(), weight.depth}, at::kFloat);
  auto* to = result.mutable_data_ptr<float>();
  const auto grain = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, weight.depth));
  at::parallel_for(0, from.numel(), grain, [&](int64_t begin, int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const PanelReader panel(weight, rows[i] / kPanel);
      for (int64_t k = 0; k < weight.depth; ++k) {
        to[i * weight.depth + k] = panel.at(rows[i] % kPanel, k);
      }
    }
  });
  return result;
}

at::Tensor unpack_weight(const PackedWeight& weight) {
  return unpack_rows(weight, at::arange(weight.outputs, at::kLong));
}

at::Tensor packed_tensor(std::shared_ptr<const PackedWeight> weight, at::ScalarType dtype) {
  return at::Tensor(c10::make_intrusive<PackedTensorImpl>(std::move(weight), dtype));
}

const PackedWeight* packed_weight_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.has_storage()) return nullptr;
  const auto* packed = dynamic_cast<const PackedTensorImpl*>(tensor.unsafeGetTensorImpl());
  return packed != nullptr ? &packed->weight() : nullptr;
}

}  // namespace heed::detail
