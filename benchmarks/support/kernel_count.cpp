// SPDX-License-Identifier: BSD-3-Clause
#include "support/kernel_count.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/cuda.h>

#include <algorithm>
#include <set>

namespace heed::bench {

std::optional<int64_t> kernels_launched(const std::function<void()>& work) {
  namespace profiler = torch::autograd::profiler;
  static const bool has_cuda = torch::cuda::is_available();
  if (!has_cuda) return std::nullopt;
  const std::set<profiler::ActivityType> activities = {profiler::ActivityType::CPU,
                                                       profiler::ActivityType::CUDA};
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  work();
  torch::cuda::synchronize();
  const auto result = profiler::disableProfiler();
  const auto& events = result->events();
  const auto count = std::count_if(events.begin(), events.end(), [](const auto& event) {
    return event.deviceType() == c10::DeviceType::CUDA;
  });
  if (count == 0) return std::nullopt;
  return count;
}

}  // namespace heed::bench
