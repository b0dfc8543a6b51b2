// SPDX-License-Identifier: BSD-3-Clause
#include "support/simulated_cuda/simulated_cuda.h"

#include <gtest/gtest.h>
#include <heed/attend.h>
#include <torch/torch.h>

#include <vector>

#include "support/expect.h"
#include "support/seeds.h"
#include "support/simulated_cuda/device_tensors.h"

/// The simulated device itself: what a real one does, and does not, do.

namespace heed::test::of_simulated_cuda {
namespace {

const at::Device kDevice(at::kCUDA, 0);

TEST(SimulatedCuda, ComputesWhatTheCpuComputes) {
  const auto x = at::randn({3, 5}), y = at::randn({5, 2});
  const auto product = at::matmul(x.to(kDevice), y.to(kDevice));
  EXPECT_EQ(product.device(), kDevice);
  EXPECT_TRUE(product.cpu().equal(at::matmul(x, y)));
}

TEST(SimulatedCuda, LetsNobodyTouchItsMemory) {
  const auto x = at::ones({4}, kDevice);
  EXPECT_DEATH(static_cast<void>(*static_cast<const volatile float*>(x.const_data_ptr())), "");
}

TEST(SimulatedCuda, HasViews) {
  const auto x = at::zeros({2, 6}, kDevice);
  x.view({3, 4}).select(0, 1).fill_(1);
  x.transpose(0, 1).narrow(0, 5, 1).add_(2);
  EXPECT_TRUE(x.cpu().equal(
      at::tensor({0., 0., 0., 0., 1., 3., 1., 1., 0., 0., 0., 2.}, at::kFloat).view({2, 6})));
}

TEST(SimulatedCuda, Differentiates) {
  const auto x = at::randn({3, 4});
  const auto on_cpu = x.clone().requires_grad_();
  const auto on_device = x.to(kDevice).requires_grad_();
  for (const auto& t : {on_cpu, on_device}) (t.softmax(1) * t).sum().backward();
  EXPECT_TRUE(is_close(on_device.grad(), on_cpu.grad(), 1e-6));
}

TEST(SimulatedCuda, RefusesTensorsOfTwoDevices) {
  EXPECT_THROW(at::ones({2}, kDevice) + at::ones({2}), c10::Error);
  EXPECT_TRUE((at::ones({2}, kDevice) + 1).cpu().equal(at::full({2}, 2.0)));
}

TEST(SimulatedCuda, CountsWaits) {
  const auto x = at::ones({8}, kDevice);
  const WorkOfDevice device;
  const auto y = x + x;
  EXPECT_EQ(device.work().synchronizations(), 0);
  EXPECT_EQ(y.sum().item<float>(), 16);
  EXPECT_EQ(device.work().synchronizations(), 1);
  static_cast<void>(y.nonzero());
  EXPECT_EQ(device.work().synchronizations(), 2);
  static_cast<void>(y.index({y > 1}));
  EXPECT_EQ(device.work().synchronizations(), 3);
  static_cast<void>(y.cpu());
  EXPECT_EQ(device.work().synchronizations(), 4);
}

TEST(SimulatedCuda, CopiesPinnedMemoryWithoutWaiting) {
  const std::vector<int64_t> numbers = {3, 1, 4};
  const auto pageable = at::tensor(numbers);
  const auto pinned = at::tensor(numbers, at::TensorOptions(at::kLong).pinned_memory(true));
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(pageable.is_pinned());
  EXPECT_TRUE(pageable.pin_memory().is_pinned());
  const WorkOfDevice device;
  EXPECT_TRUE(on_host(pinned.to(kDevice, /*non_blocking=*/true)).equal(pageable));
  EXPECT_EQ(device.work().synchronizations(), 0);
  static_cast<void>(pinned.to(kDevice));
  EXPECT_EQ(device.work().synchronizations(), 1);
  static_cast<void>(pageable.to(kDevice, /*non_blocking=*/true));
  EXPECT_EQ(device.work().synchronizations(), 2);
}

TEST(SimulatedCuda, HasNestedTensors) {
  const auto x = at::randn({3, 4}), y = at::randn({5, 4});
  const auto first = x.to(kDevice).requires_grad_(), second = y.to(kDevice);
  const auto nested = at::_nested_tensor_from_tensor_list({first, second});
  EXPECT_TRUE(nested.is_nested());
  EXPECT_EQ(nested.device(), kDevice);
  const auto parts = nested.unbind();
  EXPECT_TRUE(parts[1].cpu().equal(y));
  (parts[0] * 3).sum().backward();
  EXPECT_TRUE(first.grad().cpu().equal(at::full({3, 4}, 3.0)));
}

TEST(SimulatedCuda, CountsBytes) {
  auto older = at::empty({1 << 19}, kDevice);
  const WorkOfDevice device;
  older.reset();
  {
    const auto x = at::empty({1 << 20}, kDevice);
    const auto y = at::empty({1 << 18}, kDevice);
  }
  EXPECT_EQ(device.work().peak_bytes, 5 << 20);
}

TEST(SimulatedCuda, HasItsOwnRandomNumbers) {
  torch::manual_seed(moved(1));
  const auto first = at::rand({4});
  torch::manual_seed(moved(1));
  const auto on_device = at::rand({4}, kDevice);
  EXPECT_TRUE(at::rand({4}).equal(first));
  torch::manual_seed(moved(1));
  EXPECT_TRUE(at::rand({4}, kDevice).cpu().equal(on_device.cpu()));
}

TEST(SimulatedCuda, RunsAttend) {
  const auto x = at::randn({2, 4, 9, 8});
  const auto expected = attend(x, x, x, AttendOptions().softcap(5.0).causal(true));
  const auto y = x.to(kDevice);
  EXPECT_TRUE(is_close(attend(y, y, y, AttendOptions().softcap(5.0).causal(true)), expected, 1e-5));
}

}  // namespace
}  // namespace heed::test::of_simulated_cuda
