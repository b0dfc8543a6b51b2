// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/isa/few_rows.h"

#include "core/ceil_div.h"
#include "cpu/isa/instruction_set.h"
#include "cpu/isa/pairs.h"

// Layers with few input rows: output [rows, count] = input weight^T + bias. Memory bandwidth
// bounds it: each row of the weight is loaded once for R <= 8 packed input rows.
//
//   for each block of the depth of which the packed input rows take 32 KiB:        # multiply_rows
//     for each micro-tile of R input rows by K = kMicroTile / R of the weight:     # add_dots
//       sums[micro-tile] += their dot products over the block                      # dots, pairs.h
//   output = sums + bias
//
// Lane r * K + j of a micro-tile holds input row r and its j-th row of the weight. Micro-tile t
// takes rows t, micro_tiles + t, 2 micro_tiles + t .. of the weight. So the weight is read as K
// streams of neighboring rows, which the hardware prefetches.
//
// A packed row takes the memory of `depth` floats, padded. If the processor multiplies bfloat16,
// it holds bfloat16, which fill half of that. See docs/kernels.md, "Projections", "Few rows".

namespace heed::detail::HEED_ISA {

namespace {

static_assert(kFewRowsMultiple % kPair == 0);

// The largest number of input rows in a micro-tile. It has at most 16 registers of sums.
constexpr int64_t kMaxRows = kMicroTile < kFewRows ? kMicroTile : kFewRows;

template <typename T, bool InPairs = kMultipliesBFloat16>
struct PackedOf {
  typedef PackedFloats Type;
};
template <>
struct PackedOf<BFloat16, true> {
  typedef PackedBFloat16 Type;
};

/// The distance between packed rows, in elements.
template <typename Element>
constexpr int64_t packed_row(int64_t depth) {
  constexpr int64_t kElements = sizeof(Element) == sizeof(float) ? 1 : 2;
  return round_up(depth, kFewRowsMultiple) * kElements;
}

template <typename T>
void pack(const void* from, int64_t depth, void* to) {
  const auto* row = static_cast<const T*>(from);
  typedef typename PackedOf<T>::Type::Element Element;
  auto* packed = static_cast<Element*>(to);
  if constexpr (kSame<Element, T>) {
    int64_t d = 0;
    for (; d < depth; ++d) packed[d] = row[d];
    for (; d < packed_row<Element>(depth); ++d) packed[d] = {};
  } else {
    for (int64_t d = 0; d < depth; d += kPair) {
      const auto pair = load_up_to(row + d, depth - d);
      store(packed + d, pair.first);
      store(packed + d + kWidth, pair.second);
    }
  }
}

/// sums [micro_tiles] += the dot products over elements [first, first + columns) of the depth.
/// Micro-tile t takes rows t, micro_tiles + t, 2 * micro_tiles + t and so on of the weight.
template <int64_t R, typename T>
void add_dots(const FewRows& call, const void* input, int64_t micro_tiles, int64_t first,
              int64_t columns, MicroTile* sums) {
  typedef typename PackedOf<T>::Type Packed;
  constexpr int64_t kOthers = kMicroTile / R;
  // With many input rows there is much to compute between loads, and the hardware prefetches too
  // little meanwhile.
  constexpr bool kPrefetches = R >= 4;
  const auto stride = packed_row<typename Packed::Element>(call.depth);
  const auto* packed = static_cast<const typename Packed::Element*>(input) + first;
  const auto* weight = static_cast<const T*>(call.weight) + first;
  const auto after = first + columns < call.depth ? columns : call.count * call.weight_row - first;
  for (int64_t t = 0; t < micro_tiles; ++t) {
    const T* row = weight + t * call.weight_row;
    if (call.count == micro_tiles * kOthers) {
      const T* next = t + 1 < micro_tiles ? row + call.weight_row : weight + after;
      const auto prefetch_next = [&](int64_t j, int64_t d) {
        if constexpr (kPrefetches) {
          prefetch<kPair * sizeof(T), 3>(next + j * micro_tiles * call.weight_row + d);
        }
      };
      const auto products = dots<R, kOthers, Packed>(
          packed, stride, row, micro_tiles * call.weight_row, columns, prefetch_next);
      sums[t] = map_micro_tiles([](auto a, auto b) { return a + b; }, sums[t], products);
      continue;
    }
    for (int64_t j = 0; j < kOthers && j * micro_tiles + t < call.count; ++j) {
      const auto one = dots<R, 1, Packed>(packed, stride, row + j * micro_tiles * call.weight_row,
                                          /*row_stride=*/0, columns);
      for (int64_t r = 0; r < R; ++r) {
        const int64_t lane = r * kOthers + j;
        sums[t].vectors[lane / kWidth][lane % kWidth] += one[r * kOthers];
      }
    }
  }
}

/// Computes the outputs of at most R input rows, from `row` on.
template <int64_t R, typename T>
void multiply_rows(const FewRows& call, int64_t row) {
  typedef typename PackedOf<T>::Type::Element Element;
  constexpr int64_t kOthers = kMicroTile / R;
  constexpr int64_t kBlock = (32 << 10) / (R * sizeof(Element));  // keeps the input in the L1 cache
  const auto micro_tiles = ceil_div(call.count, kOthers);
  const auto* input =
      static_cast<const Element*>(call.input) + row * packed_row<Element>(call.depth);
  MicroTile sums[kFewRowsPanel / kOthers] = {};
  for (int64_t first = 0; first < call.depth; first += kBlock) {
    const auto rest = call.depth - first;
    add_dots<R, T>(call, input, micro_tiles, first, rest < kBlock ? rest : kBlock, sums);
  }
  const auto* bias = static_cast<const T*>(call.bias);
  for (int64_t r = 0; r < R && row + r < call.rows; ++r) {
    auto* output = static_cast<T*>(call.output) + (row + r) * call.output_row;
    for (int64_t j = 0; j < kOthers; ++j) {
      for (int64_t t = 0; t < micro_tiles && j * micro_tiles + t < call.count; ++t) {
        const auto n = j * micro_tiles + t;
        const float sum = sums[t][r * kOthers + j];
        narrow(bias == nullptr ? sum : sum + widen(bias[n]), output + n);
      }
    }
  }
}

template <typename T>
void multiply(const FewRows& call) {
  switch (call.rows) {
    case 1:
      return multiply_rows<1, T>(call, 0);
    case 2:
      return multiply_rows<2, T>(call, 0);
    case 3:
    case 4:
      return multiply_rows<4, T>(call, 0);
    default:
      for (int64_t row = 0; row < call.rows; row += kMaxRows) multiply_rows<kMaxRows, T>(call, row);
  }
}

template <typename T, typename Compute>
constexpr FewRowsKernelsOf kKernels = {};
template <typename T>
constexpr FewRowsKernelsOf kKernels<T, float> = {pack<T>, multiply<T>};

}  // namespace

#define HEED_KERNELS(name, Element, Compute, torch_name) kKernels<Element, Compute>,
const FewRowsKernels few_rows_kernels = {{HEED_ELEMENT_TYPES(HEED_KERNELS)}};
#undef HEED_KERNELS

}  // namespace heed::detail::HEED_ISA
