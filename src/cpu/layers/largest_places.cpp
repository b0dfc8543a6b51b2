// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/largest_places.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/direct.h"
#include "core/plain.h"
#include "cpu/layers/tasks.h"

// The k largest numbers of each row:
//
//   for each row, in parallel:
//     for each number: if it is larger than the last of the k so far, insert it among them
//
// Few numbers of a row are inserted. LibTorch's topk, which copies each row and sorts it partly,
// takes 7 times as long for 8 of 64 numbers in 2,048 rows.
//
// The largest number alone is LibTorch's amax, which reads vectors; its place is the first that
// equals it. LibTorch's argmax reads number by number, and takes 10 times as long.

namespace heed::detail {

namespace {

constexpr int64_t kFewNumbers = 256;  // a row of more is worth two passes

template <typename T>
bool is_larger(T a, T b) {
  return a > b || (std::isnan(a) && !std::isnan(b));
}

template <typename T>
void find_largest(const T* row, int64_t count, int64_t k, int64_t* places) {
  for (int64_t n = 0; n < count; ++n) {
    auto place = std::min(n, k);
    if (place == k && !is_larger(row[n], row[places[k - 1]])) continue;
    if (place == k) --place;
    for (; place > 0 && is_larger(row[n], row[places[place - 1]]); --place) {
      places[place] = places[place - 1];
    }
    places[place] = n;
  }
}

template <typename T>
at::Tensor find_in_rows(const at::Tensor& rows, int64_t k) {
  const auto count = rows.size(1);
  auto places = empty_on_cpu({rows.size(0), k}, at::kLong);
  const auto* from = rows.const_data_ptr<T>();
  auto* to = places.mutable_data_ptr<int64_t>();
  at::parallel_for(0, rows.size(0), rows_per_task(count), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) find_largest(from + t * count, count, k, to + t * k);
  });
  return places;
}

template <typename T>
int64_t find_first(const T* row, int64_t count, T number) {
  const auto* found = std::isnan(number)
                          ? std::find_if(row, row + count, [](T x) { return std::isnan(x); })
                          : std::find(row, row + count, number);
  return found - row;
}

at::Tensor find_first_in_rows(const at::Tensor& rows) {
  const auto count = rows.size(1);
  const auto largest = rows.amax(1);
  auto places = empty_on_cpu({rows.size(0), 1}, at::kLong);
  auto* to = places.mutable_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, rows.scalar_type(), "largest_places", [&] {
        const auto* from = rows.const_data_ptr<scalar_t>();
        const auto* numbers = largest.const_data_ptr<scalar_t>();
        at::parallel_for(0, rows.size(0), rows_per_task(count), [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t) {
            to[t] = find_first(from + t * count, count, numbers[t]);
          }
        });
      });
  return places;
}

}  // namespace

at::Tensor largest_places(const at::Tensor& rows, int64_t k) {
  const bool is_taken = calls_reach_kernels() && is_plain(rows) && rows.is_contiguous();
  if (is_taken && k == 1 && rows.size(1) > kFewNumbers) return find_first_in_rows(rows);
  if (is_taken && rows.scalar_type() == at::kFloat) return find_in_rows<float>(rows, k);
  if (is_taken && rows.scalar_type() == at::kDouble) return find_in_rows<double>(rows, k);
  // max takes the first of equal numbers, topk any of them.
  return std::get<1>(k == 1 ? rows.max(-1, /*keepdim=*/true) : rows.topk(k, -1));
}

}  // namespace heed::detail
