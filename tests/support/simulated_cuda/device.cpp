// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>

#include "support/simulated_cuda/device_memory.h"
#include "support/simulated_cuda/device_tensors.h"
#include "support/simulated_cuda/pinned_memory.h"
#include "support/simulated_cuda/recording.h"

/// The device as LibTorch asks for it: its streams, its generator and its properties.

namespace heed::test {

namespace {

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return kDevice; }
  c10::Stream getStream(c10::Device /*device*/) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  bool isStreamCapturing(const c10::Stream& /*stream*/) const override { return is_capturing(); }
};

/// The generator of the device draws on the CPU, from a state of its own.
struct DeviceGenerator final : c10::GeneratorImpl {
  DeviceGenerator() : GeneratorImpl(kDevice, c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}

  void set_current_seed(uint64_t seed) override { own.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { own.set_offset(offset); }
  uint64_t get_offset() const override { return own.get_offset(); }
  uint64_t current_seed() const override { return own.current_seed(); }
  uint64_t seed() override { return own.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    own.set_state(at::Tensor(
        c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&state))));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return own.get_state().getIntrusivePtr();
  }
  static c10::DeviceType device_type() { return c10::kCUDA; }

  at::Generator own = at::make_generator<at::CPUGeneratorImpl>();

 private:
  DeviceGenerator* clone_impl() const override {
    auto* const copy = new DeviceGenerator;
    copy->own = own.clone();
    return copy;
  }
};

const at::Generator& device_generator() {
  static auto* const instance = new at::Generator(at::make_generator<DeviceGenerator>());
  return *instance;
}

struct Hooks final : at::CUDAHooksInterface {
  Hooks() = default;
  explicit Hooks(at::CUDAHooksArgs /*arguments*/) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*device*/) const override {
    return device_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex /*device*/) const override {
    return at::make_generator<DeviceGenerator>();
  }
  c10::Device getDeviceFromPtr(void* /*data*/) const override { return kDevice; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  void deviceSynchronize(c10::DeviceIndex /*device*/) const override {}
};

}  // namespace

at::Generator& own_generator() {
  return static_cast<DeviceGenerator*>(device_generator().unsafeGetGeneratorImpl())->own;
}

uint64_t draw_on_device() {
  refuse_in_capture("random numbers");
  auto own = own_generator();
  const std::scoped_lock lock(own.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(own)->random64();
}

}  // namespace heed::test

namespace c10::impl {
using HeedSimulatedGuard = heed::test::Guard;
C10_REGISTER_GUARD_IMPL(CUDA, HeedSimulatedGuard);
}  // namespace c10::impl

namespace at {  // LibTorch looks the hooks up by this name
using CUDAHooks = heed::test::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
