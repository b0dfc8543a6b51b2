// SPDX-License-Identifier: BSD-3-Clause
#include "loss_history.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "support/files.h"
#include "support/line_plot.h"

namespace heed::examples {

namespace {

constexpr size_t kDrawn = 200;  // points of the training curve: means, for single steps scatter

}  // namespace

double bits(double nats) { return nats / std::log(2.0); }

void write_csv(const LossHistory& history, const std::string& path) {
  const std::map<int64_t, double> held_out(history.held_out.begin(), history.held_out.end());
  std::string table = "step,training_loss,held_out_loss\n";
  if (const auto before = held_out.find(0); before != held_out.end()) {
    table += fmt::format("0,,{:.6f}\n", before->second);
  }
  for (size_t i = 0; i < history.training.size(); ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    const auto found = held_out.find(step);
    table += fmt::format("{},{:.6f},{}\n", step, history.training[i],
                         found == held_out.end() ? "" : fmt::format("{:.6f}", found->second));
  }
  write_atomically(path, table);
}

void write_plot(const LossHistory& history, const std::string& path, LossUnit unit) {
  const bool in_bits = unit == LossUnit::bits_per_character;
  const auto drawn = [&](double loss) { return in_bits ? bits(loss) : loss; };
  Series training{"training", {31, 119, 180}, {}}, held_out{"held out", {214, 39, 40}, {}};
  const auto& losses = history.training;
  const auto width = std::max<size_t>(1, losses.size() / kDrawn);
  for (size_t begin = 0; begin < losses.size(); begin += width) {
    const auto end = std::min(begin + width, losses.size());
    double sum = 0;
    for (auto i = begin; i < end; ++i) sum += losses[i];
    training.points.emplace_back(static_cast<double>(begin + end + 1) / 2,
                                 drawn(sum / static_cast<double>(end - begin)));
  }
  for (const auto& [step, loss] : history.held_out) {
    held_out.points.emplace_back(static_cast<double>(step), drawn(loss));
  }
  write_line_plot(path, {training, held_out}, "step",
                  in_bits ? "bits per character" : "loss (nats per token)");
}

}  // namespace heed::examples
