// SPDX-License-Identifier: BSD-3-Clause
#include "support/limits.h"

#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/string_view.h>

#include <atomic>

namespace heed::bench {

namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;
using PointwiseLinear = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, c10::string_view, Scalars,
                                   std::optional<c10::string_view>);

uint64_t sum_words(const uint64_t* words, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += words[i];
  return sum;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HEED_BENCH_VECTORIZED \
  __attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default")))
#else
#define HEED_BENCH_VECTORIZED
#endif

HEED_BENCH_VECTORIZED
uint64_t sum_words_in_vectors(const uint64_t* words, int64_t count) {
  constexpr int64_t kSums = 64;
  uint64_t sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const auto part : sums) sum += part;
  for (; i < count; ++i) sum += words[i];
  return sum;
}

template <typename Sum>
int64_t read_in_parallel(const at::Tensor& tensor, const Sum& sum) {
  const auto* words = static_cast<const uint64_t*>(tensor.const_data_ptr());
  const auto count = static_cast<int64_t>(tensor.nbytes() / sizeof(uint64_t));
  std::atomic<uint64_t> total = 0;
  at::parallel_for(0, count, 4096,
                   [&](int64_t begin, int64_t end) { total += sum(words + begin, end - begin); });
  return static_cast<int64_t>(total.load());
}

}  // namespace

at::Tensor onednn_linear(const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias) {
  static const auto linear = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                 .typed<PointwiseLinear>();
  return linear.call(input, weight, bias, "none", Scalars(), "");
}

int64_t plain_read(const at::Tensor& tensor) { return read_in_parallel(tensor, sum_words); }

int64_t vector_read(const at::Tensor& tensor) {
  return read_in_parallel(tensor, sum_words_in_vectors);
}

}  // namespace heed::bench
