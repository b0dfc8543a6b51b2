// SPDX-License-Identifier: BSD-3-Clause
#include "checks.h"

#include <fmt/core.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <cmath>
#include <stdexcept>

namespace heed::examples {

void check_device(const std::string& device) {
  if (device == "cuda" && !torch::cuda::is_available()) {
    throw std::runtime_error("no CUDA device was found: use --device cpu");
  }
}

void check_memory(const std::string& what, double bytes) {
  constexpr double kGiB = 1 << 30;
  const double present =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (bytes > present) {
    throw std::runtime_error(
        fmt::format("{} need {:.3g} GiB of memory; this machine has {:.3g} GiB", what, bytes / kGiB,
                    present / kGiB));
  }
}

void check_loss(double loss) {
  if (!std::isfinite(loss)) {
    throw std::runtime_error("the loss is no longer finite: try a smaller --learning-rate");
  }
}

}  // namespace heed::examples
