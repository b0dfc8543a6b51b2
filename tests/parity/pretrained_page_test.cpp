// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/pretrained.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "fixture.h"
#include "pretrained_models.h"
#include "support/weight_files.h"

namespace heed::test::pretrained {
namespace {

constexpr auto kMarker = "<!-- families -->\n\n";
constexpr auto kHeader =
    "| `model_type` | class | tested with | scores | gradients |\n|---|---|---|---|---|\n";

/// A row of the table of families.
struct Row {
  std::string kind;
  std::set<std::string> fields;
  double scores = 0.0, gradients = 0.0;
};

/// Measures the models of every family.
std::map<std::string, Row> measured() {
  std::map<std::string, Row> rows;
  auto all = cases();
  for (const auto& c : pair_cases()) all.push_back(c);
  for (const auto& c : all) {
    SCOPED_TRACE(c.name);
    auto& row = rows[c.family()];
    row.kind = c.kind;
    row.fields.insert(c.fields.begin(), c.fields.end());
    auto model = load(c.kind, c.folder(), PretrainedOptions().dtype(at::kFloat));
    const auto expected = c.expected();
    const auto scores = difference(compute(model, expected).detach(), expected["scores"]);
    row.scores = std::max(row.scores, scores);
    row.gradients = std::max(row.gradients, check_gradients(gradients(model, c), expected));
  }
  return rows;
}

/// One digit: "2e-06".
std::string figure(double number) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0e", number);
  return text;
}

std::string table(const std::map<std::string, Row>& rows) {
  const std::map<std::string, std::string> classes{{"decoder", "`Decoder`"},
                                                   {"text_encoder", "`TextEncoder`"},
                                                   {"image_encoder", "`ImageEncoder`"},
                                                   {"encoder_decoder", "`EncoderDecoder`"}};
  std::ostringstream text;
  text << kHeader;
  for (const auto& [family, row] : rows) {
    text << "| `" << family << "` | " << classes.at(row.kind) << " | ";
    for (auto field = row.fields.begin(); field != row.fields.end(); ++field) {
      text << (field == row.fields.begin() ? "" : ", ") << '`' << *field << '`';
    }
    text << " | " << figure(row.scores) << " | " << figure(row.gradients) << " |\n";
  }
  return text.str();
}

/// The table, without its last two columns and the figures in them, which must be below the bounds.
std::string structure(const std::string& table) {
  std::istringstream lines(table);
  std::string without;
  for (std::string line; std::getline(lines, line);) {
    const auto last = line.rfind('|', line.size() - 2);
    const auto first = last == std::string::npos ? last : line.rfind('|', last - 1);
    if (first == std::string::npos) return table;  // not a table
    without += line.substr(0, first) + '\n';
    if (line.find("e-") == std::string::npos) continue;
    EXPECT_LE(std::stod(line.substr(first + 1)), kScores) << line;
    EXPECT_LE(std::stod(line.substr(last + 1)), kGradients) << line;
  }
  return without;
}

/// HEED_PRETRAINED_WRITE writes the page.
TEST(PretrainedPage, HasTheFamiliesAndTheirFields) {
  if (!std::filesystem::exists(folder_of("cases.txt"))) {
    GTEST_SKIP() << read_bytes(folder_of("skipped")) << why_no_fixtures();
  }
  const auto expected = table(measured());
  write_bytes(folder_of("families.md"), expected);
  auto page = read_bytes(HEED_PRETRAINED_PAGE);
  const auto marker = page.find(kMarker);
  ASSERT_NE(marker, std::string::npos) << HEED_PRETRAINED_PAGE;
  const auto begin = marker + std::string(kMarker).size();
  const auto end = page.compare(begin, 1, "|") == 0 ? page.find("\n\n", begin) + 1 : begin;
  if (std::getenv("HEED_PRETRAINED_WRITE") != nullptr) {
    page.replace(begin, end - begin, end == begin ? expected + "\n" : expected);
    write_bytes(HEED_PRETRAINED_PAGE, page);
    return;
  }
  EXPECT_EQ(structure(page.substr(begin, end - begin)), structure(expected));
}

}  // namespace
}  // namespace heed::test::pretrained
