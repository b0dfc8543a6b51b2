#pragma once

#include <torch/cuda.h>

#include <stdexcept>
#include <string>

namespace heed::examples {

/// Throws std::runtime_error when `device`, "cpu" or "cuda", is not available.
inline void check_device(const std::string& device) {
  if (device == "cuda" && !torch::cuda::is_available()) {
    throw std::runtime_error("no CUDA device was found: use --device cpu");
  }
}

}  // namespace heed::examples
