// SPDX-License-Identifier: BSD-3-Clause
#include "core/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <mutex>

namespace heed::detail {

namespace {

/// Mixes a stream's number into a seed with SplitMix64 (Steele, Lea and Flood 2014).
uint64_t mixed(uint64_t seed, int64_t stream) {
  auto bits = seed + (static_cast<uint64_t>(stream) + 1) * 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31U);
}

}  // namespace

uint64_t draw_seed(at::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  if (device.is_cpu()) return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  // The offset is the counter of CUDA's Philox generator. It must stay a multiple of four.
  const auto offset = generator.get_offset();
  generator.set_offset(offset + 4);
  return generator.current_seed() ^ (offset * 0xD1342543DE82EF95U);
}

uint64_t draw_dropout_key(double dropout) { return dropout == 0.0 ? 0 : draw_seed(at::kCPU); }

uint32_t dropout_threshold(double dropout) {
  // A draw has 32 bits, so rounding changes the probability by at most 2^-33.
  return static_cast<uint32_t>(
      std::min(std::llround(dropout * 0x1p32), static_cast<long long>(0xffffffffU)));
}

RandomState::RandomState(at::Device device)
    : generator_(at::globalContext().defaultGenerator(device)), state_(read()) {}

at::Tensor RandomState::read() const {
  const std::scoped_lock lock(generator_.mutex());
  return generator_.get_state();
}

void RandomState::write(const at::Tensor& state) const {
  const std::scoped_lock lock(generator_.mutex());
  generator_.set_state(state);
}

SeededNumbers::SeededNumbers(at::Device device, uint64_t seed) : before_(device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(seed);
}

RandomStream::RandomStream(at::Device device, int64_t stream)
    : numbers_(device, mixed(draw_seed(device), stream)) {}

}  // namespace heed::detail
