#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <heed/masks.h>

#include "checks.h"

namespace heed {

namespace {

/// Key position minus query position, int64 [L, S].
at::Tensor relative_positions(const char* function, int64_t query_length, int64_t key_length,
                              at::Device device) {
  HEED_CHECK(query_length >= 0, "{}: query_length ({}) must be at least 0", function, query_length);
  HEED_CHECK(key_length >= 0, "{}: key_length ({}) must be at least 0", function, key_length);
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const auto queries = at::arange(key_length - query_length, key_length, options).unsqueeze(1);
  return at::arange(key_length, options) - queries;
}

}  // namespace

at::Tensor causal_mask(int64_t query_length, int64_t key_length, at::Device device) {
  return relative_positions("causal_mask", query_length, key_length, device).le(0);
}

at::Tensor window_mask(int64_t query_length, int64_t key_length, int64_t window, bool causal,
                       at::Device device) {
  HEED_CHECK(window >= 1, "window_mask: window ({}) must be at least 1", window);
  const auto relative = relative_positions("window_mask", query_length, key_length, device);
  const auto recent = relative.gt(-window);
  return recent.logical_and(causal ? relative.le(0) : relative.lt(window));
}

at::Tensor padding_mask(const at::Tensor& lengths, int64_t key_length) {
  HEED_CHECK(lengths.defined(), "padding_mask: lengths must be defined");
  HEED_CHECK(lengths.dim() == 1, "padding_mask: lengths rank ({}) must equal 1; lengths {}",
             lengths.dim(), detail::shape(lengths));
  HEED_CHECK(at::isIntegralType(lengths.scalar_type(), /*includeBool=*/false),
             "padding_mask: lengths dtype ({}) must be an integer",
             c10::toString(lengths.scalar_type()));
  HEED_CHECK(key_length >= 0, "padding_mask: key_length ({}) must be at least 0", key_length);
  const auto positions = at::arange(key_length, lengths.options().dtype(at::kLong));
  return positions.lt(lengths.unsqueeze(1)).unsqueeze(1).unsqueeze(1);
}

}  // namespace heed
