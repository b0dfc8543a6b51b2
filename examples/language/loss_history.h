// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace heed::examples {

/// The losses of a training, in nats per token.
struct LossHistory {
  std::vector<double> training;                      ///< of steps 1, 2, ...
  std::vector<std::pair<int64_t, double>> held_out;  ///< after a step; 0: before the first
};

/// Writes one line per step; the last column is empty for steps without a measurement.
void write_csv(const LossHistory& history, const std::string& path);

enum class LossUnit { bits_per_character, nats_per_token };

void write_plot(const LossHistory& history, const std::string& path, LossUnit unit);

double bits(double nats);

}  // namespace heed::examples
