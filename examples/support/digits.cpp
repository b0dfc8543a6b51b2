// SPDX-License-Identifier: BSD-3-Clause
#include "digits.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <vector>

#include "files.h"

namespace heed::examples {

namespace {

constexpr int64_t kSide = 8;
constexpr int64_t kPixels = kSide * kSide;
constexpr int kBrightest = 16;
constexpr int64_t kFewestImages = 5;  // so that one is held out

using Record = std::array<int, kPixels + 1>;

/// The pixels and the digit of a line, or nothing if it holds anything else.
std::optional<Record> parse_line(const std::string& line) {
  Record record;
  const char* place = line.data();
  const char* const end = place + line.size();
  for (size_t i = 0; i < record.size(); ++i) {
    if (i > 0 && (place == end || *place++ != ',')) return std::nullopt;
    const auto [next, error] = std::from_chars(place, end, record[i]);
    const int largest = i < kPixels ? kBrightest : 9;
    if (error != std::errc() || record[i] < 0 || record[i] > largest) return std::nullopt;
    place = next;
  }
  return place == end ? std::make_optional(record) : std::nullopt;
}

}  // namespace

Digits read_digits(const std::string& path) {
  auto file = open_input(path, "examples/digits/export_digits.py");
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  for (std::string line; std::getline(file, line);) {
    const auto record = parse_line(line);
    if (!record) {
      throw std::runtime_error(path + ", line " + std::to_string(labels.size() + 1) +
                               ": expected 64 pixels from 0 to 16 and a digit from 0 to 9, "
                               "separated by commas");
    }
    for (int64_t i = 0; i < kPixels; ++i) {
      pixels.push_back(static_cast<float>((*record)[i]) / kBrightest);
    }
    labels.push_back(record->back());
  }
  const auto count = static_cast<int64_t>(labels.size());
  if (count < kFewestImages) {
    throw std::runtime_error(path + " holds " + std::to_string(count) + " images; at least " +
                             std::to_string(kFewestImages) + " are needed");
  }
  return {at::tensor(pixels).view({count, kSide, kSide}), at::tensor(labels)};
}

std::pair<Digits, Digits> hold_out_fifth(const Digits& digits) {
  const auto held_out = at::arange(digits.size()).remainder(5).eq(4);
  const auto training = held_out.logical_not();
  return {{digits.images.index({training}), digits.labels.index({training})},
          {digits.images.index({held_out}), digits.labels.index({held_out})}};
}

}  // namespace heed::examples
