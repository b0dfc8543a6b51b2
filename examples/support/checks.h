// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

namespace heed::examples {

/// Throws std::runtime_error when `device`, "cpu" or "cuda", is not available.
void check_device(const std::string& device);

/// Throws std::runtime_error when what needs so many bytes does not fit into the machine's memory.
void check_memory(const std::string& what, double bytes);

/// Throws std::runtime_error when `loss` is not finite: the training has diverged. Call it before
/// saving anything, so that an earlier, better state is not overwritten.
void check_loss(double loss);

}  // namespace heed::examples
