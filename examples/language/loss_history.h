#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace heed::examples {

/// The losses of a training, in nats per character.
struct LossHistory {
  std::vector<double> training;                      ///< of steps 1, 2, ...
  std::vector<std::pair<int64_t, double>> held_out;  ///< after a step
};

/// Writes one line per step; the last column is empty for steps without a measurement.
void write_csv(const LossHistory& history, const std::string& path);

/// Draws the curves, in bits per character.
void write_plot(const LossHistory& history, const std::string& path);

double bits(double nats);

}  // namespace heed::examples
