#include "core/offsets.h"

#include "core/checks.h"

namespace heed::detail {

void check_offsets_shape(const char* function, const char* name, const at::Tensor& offsets) {
  check_defined(function, name, offsets);
  HEED_CHECK(!offsets.is_meta(), "{}: {} device (meta) must hold values", function, name);
  HEED_CHECK(offsets.scalar_type() == at::kLong, "{}: {} dtype ({}) must be Long", function, name,
             c10::toString(offsets.scalar_type()));
  HEED_CHECK(offsets.dim() == 1 && offsets.size(0) >= 1,
             "{}: {} must be a vector of at least 1 element; {} {}", function, name, name,
             shape(offsets));
}

void check_offsets(const char* function, const char* name, const at::Tensor& offsets,
                   int64_t total) {
  check_offsets_shape(function, name, offsets);
  const auto ends = offsets.to(at::kCPU).contiguous();
  const auto* end = ends.const_data_ptr<int64_t>();
  const auto last = ends.size(0) - 1;
  HEED_CHECK(end[0] == 0, "{}: {}[0] ({}) must equal 0", function, name, end[0]);
  for (int64_t n = 0; n < last; ++n) {
    HEED_CHECK(end[n] <= end[n + 1], "{}: {}[{}] ({}) must be at least {}[{}] ({})", function, name,
               n + 1, end[n + 1], name, n, end[n]);
  }
  HEED_CHECK(end[last] == total, "{}: {}[{}] ({}) must equal the packed length ({})", function,
             name, last, end[last], total);
}

std::vector<int64_t> lengths(const at::Tensor& offsets) {
  const auto ends = offsets.to(at::kCPU).contiguous();
  const auto* end = ends.const_data_ptr<int64_t>();
  std::vector<int64_t> result;
  for (int64_t n = 0; n + 1 < ends.size(0); ++n) result.push_back(end[n + 1] - end[n]);
  return result;
}

}  // namespace heed::detail
