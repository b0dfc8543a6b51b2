// SPDX-License-Identifier: BSD-3-Clause
#include "core/offsets.h"

#include "core/checks.h"
#include "core/to_device.h"

namespace heed::detail {

namespace {

std::vector<int64_t> between(const std::vector<int64_t>& ends) {
  std::vector<int64_t> result;
  result.reserve(ends.size());
  for (size_t n = 0; n + 1 < ends.size(); ++n) result.push_back(ends[n + 1] - ends[n]);
  return result;
}

}  // namespace

void check_numbers(const char* function, const char* name, const at::Tensor& numbers) {
  check_defined(function, name, numbers);
  HEED_CHECK(!numbers.is_meta(), "{}: {} device (meta) must hold values", function, name);
  HEED_CHECK(numbers.scalar_type() == at::kLong, "{}: {} dtype ({}) must be Long", function, name,
             c10::toString(numbers.scalar_type()));
}

void check_offsets_shape(const char* function, const char* name, const at::Tensor& offsets) {
  check_defined(function, name, offsets);
  HEED_CHECK(!offsets.is_meta(), "{}: {} device (meta) must hold values", function, name);
  const auto dtype = offsets.scalar_type();
  HEED_CHECK(dtype == at::kLong || dtype == at::kInt, "{}: {} dtype ({}) must be Long or Int",
             function, name, c10::toString(dtype));
  HEED_CHECK(offsets.dim() == 1 && offsets.size(0) >= 1,
             "{}: {} must be a vector of at least 1 element; {} {}", function, name, name,
             shape(offsets));
}

std::vector<int64_t> checked_lengths(const char* function, const char* name,
                                     const at::Tensor& offsets, int64_t total) {
  check_offsets_shape(function, name, offsets);
  const auto ends = to_host(offsets.to(at::kLong));
  HEED_CHECK(ends.front() == 0, "{}: {}[0] ({}) must equal 0", function, name, ends.front());
  for (size_t n = 0; n + 1 < ends.size(); ++n) {
    HEED_CHECK(ends[n] <= ends[n + 1], "{}: {}[{}] ({}) must be at least {}[{}] ({})", function,
               name, n + 1, ends[n + 1], name, n, ends[n]);
  }
  HEED_CHECK(ends.back() == total, "{}: {}[{}] ({}) must equal the packed length ({})", function,
             name, ends.size() - 1, ends.back(), total);
  return between(ends);
}

std::vector<int64_t> lengths(const at::Tensor& offsets) {
  return between(to_host(offsets.to(at::kLong)));
}

}  // namespace heed::detail
