// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

namespace heed::examples {

/// Handwritten digits, 8 by 8 pixels each.
struct Digits {
  at::Tensor images;  ///< [N, 8, 8] float32 in [0, 1]: 0 paper, 1 ink
  at::Tensor labels;  ///< [N] int64, the digit shown

  int64_t size() const { return labels.size(0); }
  Digits to(at::Device device) const { return {images.to(device), labels.to(device)}; }
};

/// Reads the file that examples/digits/export_digits.py writes: one image per line, with 64 pixels
/// from 0 to 16 and the digit, separated by commas. Throws std::runtime_error when the file is
/// missing or damaged.
Digits read_digits(const std::string& path);

/// {training, held out}: every fifth image is held out.
std::pair<Digits, Digits> hold_out_fifth(const Digits& digits);

}  // namespace heed::examples
