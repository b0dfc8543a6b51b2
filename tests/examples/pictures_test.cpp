// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/heat_map.h"
#include "support/line_plot.h"
#include "support/temporary_folder.h"

namespace heed::examples {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::ThrowsMessage;

namespace fs = std::filesystem;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Color kBlue = {31, 119, 180};

struct Size {
  int width, height;
};

class Pictures : public ::testing::Test {
 protected:
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  /// The size of the PNG file, which its header says.
  Size size() const {
    const auto png = bytes();
    EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
    const auto number = [&](size_t at) {
      int value = 0;
      for (size_t i = at; i < at + 4; ++i) value = 256 * value + static_cast<uint8_t>(png.at(i));
      return value;
    };
    return {number(16), number(20)};
  }

  Size heat_map(const at::Tensor& weights, const HeatMapOptions& options = {}) const {
    write_heat_map(path_, weights, options);
    return size();
  }

  /// The picture of one line.
  std::string plot(const std::vector<std::pair<double, double>>& points,
                   const std::string& name = "line", const std::string& axis = "axis") const {
    write_line_plot(path_, {{name, kBlue, points}}, axis, axis);
    EXPECT_THAT(size().width, AllOf(Ge(800), Le(2000)));
    EXPECT_THAT(size().height, AllOf(Ge(500), Le(2000)));
    return bytes();
  }

  const test::TemporaryFolder own_folder_{"pictures"};
  const fs::path& folder_ = own_folder_.path();
  std::string path_ = folder_ / "picture.png";
};

TEST_F(Pictures, HeatMapIsPng) {
  HeatMapOptions options;
  options.query_labels = options.key_labels = {"The", "cat", "sat", "down"};
  options.picture = at::rand({4, 3});
  options.picture_title = "picture";
  const auto [width, height] = heat_map(at::rand({2, 4, 4}), options);
  EXPECT_THAT(width, AllOf(Ge(3 * 192), Le(3 * 256 + 700)));
  EXPECT_THAT(height, AllOf(Ge(256), Le(256 + 400)));
  EXPECT_FALSE(fs::exists(path_ + ".part"));
}

TEST_F(Pictures, HeatMapShortensLabels) {
  HeatMapOptions options;
  options.titles = options.query_labels = options.key_labels = {std::string(500, 'W')};
  options.query_name = options.key_name = options.picture_title = std::string(500, 'W');
  options.picture = at::rand({1, 1});
  const auto [width, height] = heat_map(at::rand({1, 1, 1}), options);
  EXPECT_LE(width, 1600);
  EXPECT_LE(height, 1600);
}

TEST_F(Pictures, HeatMapTakesAnyLabel) {
  HeatMapOptions options;
  options.key_labels = {"\xff\xfe", "\n", std::string(1, '\0'), "Müdigkeit", "注意", ""};
  heat_map(at::rand({1, 2, 6}), options);
  options.key_labels.resize(40, "more labels than keys");
  heat_map(at::rand({1, 2, 6}), options);
}

TEST_F(Pictures, HeatMapOfManyQueriesKeepsItsSize) {
  HeatMapOptions options;
  for (int i = 0; i < 200; ++i) options.query_labels.push_back(std::to_string(i));
  options.key_labels = options.query_labels;
  const auto [width, height] = heat_map(at::rand({1, 200, 200}), options);
  EXPECT_LE(width, 600);
  EXPECT_LE(height, 600);
}

TEST_F(Pictures, HeatMapShowsNaN) {
  auto weights = at::rand({1, 3, 3});
  heat_map(weights);
  const auto finite = bytes();
  weights[0][1][1] = kNaN;
  heat_map(weights);
  EXPECT_FALSE(bytes() == finite);
  for (const double value : {kNaN, kInfinity, -kInfinity, 0.0, -1.0}) {
    weights.fill_(value);
    heat_map(weights);
  }
}

TEST_F(Pictures, HeatMapThatCannotBe) {
  const auto weights = at::rand({1, 2, 2});
  EXPECT_THAT([&] { write_heat_map(folder_ / "missing" / "map.png", weights); },
              ThrowsMessage<std::runtime_error>(HasSubstr("map.png: No such file or directory")));
  HeatMapOptions options;
  options.panel = 100000;
  EXPECT_THAT([&] { write_heat_map(path_, weights, options); },
              ThrowsMessage<std::runtime_error>(HasSubstr("cannot draw a picture of 100")));
}

TEST_F(Pictures, LinePlotShowsSinglePoint) {
  const auto picture = plot({{1, 2}});
  write_line_plot(path_, {{"line", {255, 255, 255}, {{1, 2}}}}, "axis", "axis");
  EXPECT_FALSE(picture == bytes());
  EXPECT_TRUE(picture == plot({{1, kNaN}, {1, 2}, {2, kNaN}}));
  plot({{kNaN, 1}});  // axes alone
}

TEST_F(Pictures, LinePlotLeavesOutWhatIsNotFinite) {
  EXPECT_TRUE(plot({{kNaN, 1}, {1, 2}, {2, 3}, {3, kInfinity}}) == plot({{1, 2}, {2, 3}}));
  EXPECT_FALSE(plot({{1, 2}, {2, kNaN}, {3, 3}}) == plot({{1, 2}, {3, 3}}));
}

TEST_F(Pictures, LinePlotTakesAnyRange) {
  for (const double x : {0.0, 5e-324, 1e-300, 1e-9, 1.0, 123456789.0, 1e299, 1e308}) {
    plot({{x, -x}});
    plot({{-x, x}, {x, -x}});
    plot({{x, 1}, {std::nextafter(x, kInfinity), 2}});
    plot({{0, 1}, {x, 1 + 1e-7}});
  }
}

TEST_F(Pictures, LinePlotShortensNames) {
  const std::string name(500, 'W');
  plot({{1, 2}, {2, 3}}, name, name);
  write_line_plot(path_, std::vector<Series>(100, {name, kBlue, {{1, 2}}}), name, name);
  EXPECT_LE(size().height, 2000);
}

TEST_F(Pictures, LinePlotThatCannotBe) {
  EXPECT_THAT(
      [&] {
        write_line_plot(path_, {{"line", kBlue, {}}}, "x", "y");
      },
      ThrowsMessage<std::runtime_error>(HasSubstr("there is nothing to plot")));
  EXPECT_THAT(
      [&] {
        write_line_plot(folder_ / "missing" / "plot.png", {{"", kBlue, {{1, 2}}}}, "x", "y");
      },
      ThrowsMessage<std::runtime_error>(HasSubstr("plot.png: No such file or directory")));
}

}  // namespace
}  // namespace heed::examples
