// SPDX-License-Identifier: BSD-3-Clause
#include "support/expect.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <sstream>

namespace heed::test {
namespace {

/// Passes when there are as many tensors, and `compare` passes for each pair.
template <typename Compare>
::testing::AssertionResult in_pairs(const std::vector<at::Tensor>& actual,
                                    const std::vector<at::Tensor>& expected,
                                    const Compare& compare) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " tensors are not " << expected.size();
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const ::testing::AssertionResult result = compare(actual[i], expected[i]);
    if (!result) return ::testing::AssertionFailure() << "tensor " << i << ": " << result.message();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace

::testing::AssertionResult is_close(const at::Tensor& actual, const at::Tensor& expected,
                                    double tolerance) {
  if (!actual.defined()) return ::testing::AssertionFailure() << "tensor is undefined";
  if (actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure()
           << "shape " << actual.sizes() << " is not " << expected.sizes();
  }
  if (actual.numel() == 0) return ::testing::AssertionSuccess();
  const auto a = actual.detach().to(at::kCPU, at::kDouble).flatten();
  const auto e = expected.detach().to(at::kCPU, at::kDouble).flatten();
  const auto difference = a.sub(e).abs();
  const auto worst = difference.argmax().item<int64_t>();  // NaN counts as the largest
  const auto largest = difference[worst].item<double>();
  if (largest <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "largest difference " << largest << " > " << tolerance << " at flat index " << worst
         << " of " << actual.sizes() << ": " << a[worst].item<double>() << " is not "
         << e[worst].item<double>();
}

::testing::AssertionResult are_close(const std::vector<at::Tensor>& actual,
                                     const std::vector<at::Tensor>& expected, double tolerance) {
  return in_pairs(actual, expected, [&](const at::Tensor& a, const at::Tensor& e) {
    return is_close(a, e, tolerance);
  });
}

::testing::AssertionResult are_alike(const std::vector<at::Tensor>& actual,
                                     const std::vector<at::Tensor>& expected, double tolerance) {
  return in_pairs(actual, expected, [&](const at::Tensor& a, const at::Tensor& e) {
    const auto largest = e.numel() == 0 ? 0.0 : e.abs().max().item<double>();
    return is_close(a, e, tolerance * largest);
  });
}

::testing::AssertionResult are_equal(const std::vector<at::Tensor>& actual,
                                     const std::vector<at::Tensor>& expected) {
  return in_pairs(actual, expected, [](const at::Tensor& a, const at::Tensor& e) {
    const bool equal = a.defined() && e.defined() ? a.equal(e) : a.defined() == e.defined();
    if (equal) return ::testing::AssertionSuccess();
    if (!a.defined() || !e.defined()) return ::testing::AssertionFailure() << "is not equal";
    return ::testing::AssertionFailure() << "is not equal: " << is_close(a, e, 0.0).message();
  });
}

::testing::AssertionResult is_finite(const at::Tensor& actual) {
  if (!actual.defined()) return ::testing::AssertionFailure() << "tensor is undefined";
  if (actual.isfinite().all().item<bool>()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "tensor of shape " << actual.sizes() << " holds NaN or infinity";
}

std::vector<at::Device> devices() {
  const char* const named = std::getenv("HEED_TEST_DEVICES");
  std::istringstream names(named ? named : at::hasCUDA() ? "cpu cuda" : "cpu");
  ::testing::Test::RecordProperty("devices", names.str());
  std::vector<at::Device> result;
  for (std::string name; names >> name;) {
    const at::Device device(name);
    result.emplace_back(device.type(), device.is_cuda() ? 0 : -1);
  }
  return result;
}

double unit_roundoff(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 0x1p-53;
    case at::kFloat:
      return 0x1p-24;
    case at::kBFloat16:
      return 0x1p-8;
    case at::kHalf:
      return 0x1p-11;
    default:
      throw std::logic_error("unit_roundoff: not a floating dtype");
  }
}

}  // namespace heed::test
