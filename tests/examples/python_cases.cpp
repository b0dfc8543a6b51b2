// SPDX-License-Identifier: BSD-3-Clause
#include "python_cases.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <vector>

namespace heed::test {

namespace {

using Ids = std::vector<int64_t>;

/// Each piece must be whole characters: nlohmann_json writes nothing else.
std::string join_stream(examples::TextStream stream, const Ids& ids) {
  std::string text;
  for (const auto id : ids) {
    const auto piece = stream.push(id);
    EXPECT_NO_THROW(nlohmann::json(piece).dump())
        << "a part of a character after \"" << text << '"';
    text += piece;
  }
  return text + stream.finish();
}

}  // namespace

std::string why_no_cases(const std::string& folder) {
  std::ifstream file(folder + "/skipped");
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json read_cases(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

void expect_cases(const examples::Tokenizer& tokenizer, const std::string& path) {
  const auto cases = read_cases(path + ".cases");
  ASSERT_EQ(cases.size(), 10'500u);
  for (const auto& each : cases) {
    const bool with_specials = each[1];
    const auto ids = each[2].get<Ids>();
    if (!each[0].is_null()) {
      ASSERT_EQ(tokenizer.encode(each[0].get<std::string>(), with_specials), ids) << each[0];
    }
    const auto decoded = each[3].get<std::string>();
    ASSERT_EQ(tokenizer.decode(ids, !with_specials), decoded) << each[2];
    ASSERT_EQ(join_stream(tokenizer.decode_stream(!with_specials), ids), decoded) << each[2];
  }
}

void expect_pairs(const examples::Tokenizer& tokenizer, const std::string& path) {
  const auto cases = read_cases(path + ".pairs");
  ASSERT_EQ(cases.size(), 1000u);
  for (const auto& each : cases) {
    const auto first = each[0].get<std::string>(), second = each[1].get<std::string>();
    const auto pair = tokenizer.encode_pair(first, second, each[2]);
    ASSERT_EQ(pair.ids, each[3].get<Ids>()) << each[0] << " and " << each[1];
    ASSERT_EQ(pair.types, each[4].get<Ids>()) << each[0] << " and " << each[1];
  }
}

}  // namespace heed::test
