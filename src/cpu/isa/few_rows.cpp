#include "cpu/isa/few_rows.h"

#include "cpu/isa/instruction_set.h"
#include "cpu/isa/pairs.h"

// Layers with few input rows, which memory bandwidth bounds: each row of the weight is loaded once
// for all input rows. A tile is R packed input rows times kTile / R rows of the weight.

namespace heed::detail::HEED_ISA {

namespace {

static_assert(kFewRowsMultiple % kPair == 0);

// Input rows of one tile: its sums are in 16 registers, or fewer.
constexpr int64_t kMaxRows = kTile < kFewRows ? kTile : kFewRows;

template <typename T, bool InPairs = kMultipliesBFloat16>
struct PackedOf {
  typedef PackedFloats Type;
};
template <>
struct PackedOf<BFloat16, true> {
  typedef PackedBFloat16 Type;
};

/// Elements from one packed row to the next.
template <typename Element>
constexpr int64_t packed_row(int64_t depth) {
  constexpr int64_t kElements = sizeof(Element) == sizeof(float) ? 1 : 2;
  return (depth + kFewRowsMultiple - 1) / kFewRowsMultiple * kFewRowsMultiple * kElements;
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

/// Tile t takes rows t, tiles + t, 2 * tiles + t and so on of the weight, streams that the hardware
/// fetches ahead of. sums [tiles] are over the elements [first, first + columns) of the
/// depth, and those before.
template <int64_t R, typename T>
void add_tiles(const FewRows& call, const void* input, int64_t tiles, int64_t first,
               int64_t columns, Tile* sums) {
  typedef typename PackedOf<T>::Type Packed;
  constexpr int64_t kOthers = kTile / R;
  // With many rows there is much to compute meanwhile, and the hardware fetches too little.
  constexpr bool kPrefetches = R >= 4;
  const auto stride = packed_row<typename Packed::Element>(call.depth);
  const auto* packed = static_cast<const typename Packed::Element*>(input) + first;
  const auto* weight = static_cast<const T*>(call.weight) + first;
  const auto after = first + columns < call.depth ? columns : call.count * call.weight_row - first;
  for (int64_t t = 0; t < tiles; ++t) {
    const T* row = weight + t * call.weight_row;
    if (call.count == tiles * kOthers) {
      const T* next = t + 1 < tiles ? row + call.weight_row : weight + after;
      const auto prefetch_next = [&](int64_t j, int64_t d) {
        if constexpr (kPrefetches) {
          prefetch<kPair * sizeof(T), 3>(next + j * tiles * call.weight_row + d);
        }
      };
      const auto products = dots<R, kOthers, Packed>(packed, stride, row, tiles * call.weight_row,
                                                     columns, prefetch_next);
      sums[t] = map_tiles([](auto a, auto b) { return a + b; }, sums[t], products);
      continue;
    }
    for (int64_t j = 0; j < kOthers && j * tiles + t < call.count; ++j) {
      const auto one = dots<R, 1, Packed>(packed, stride, row + j * tiles * call.weight_row,
                                          /*row_stride=*/0, columns);
      for (int64_t r = 0; r < R; ++r) {
        const int64_t lane = r * kOthers + j;
        sums[t].vectors[lane / kWidth][lane % kWidth] += one[r * kOthers];
      }
    }
  }
}

/// The input rows from `row` on, at most R.
template <int64_t R, typename T>
void multiply_rows(const FewRows& call, int64_t row) {
  typedef typename PackedOf<T>::Type::Element Element;
  constexpr int64_t kOthers = kTile / R;
  constexpr int64_t kPart = (32 << 10) / (R * sizeof(Element));  // keeps the input in the L1 cache
  const auto tiles = (call.count + kOthers - 1) / kOthers;
  const auto* input =
      static_cast<const Element*>(call.input) + row * packed_row<Element>(call.depth);
  Tile sums[kFewRowsBlock / kOthers] = {};
  for (int64_t first = 0; first < call.depth; first += kPart) {
    const auto rest = call.depth - first;
    add_tiles<R, T>(call, input, tiles, first, rest < kPart ? rest : kPart, sums);
  }
  const auto* bias = static_cast<const T*>(call.bias);
  for (int64_t r = 0; r < R && row + r < call.rows; ++r) {
    auto* output = static_cast<T*>(call.output) + (row + r) * call.output_row;
    for (int64_t j = 0; j < kOthers; ++j) {
      for (int64_t t = 0; t < tiles && j * tiles + t < call.count; ++t) {
        const auto n = j * tiles + t;
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
