// SPDX-License-Identifier: BSD-3-Clause
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace heed::examples::of_stop_strings {
namespace {

using Stops = std::vector<std::string>;

/// The text up to a stop, where the pieces end at the set bits of `cuts`.
std::string until_stop(const Stops& stops, const std::string& text, unsigned cuts) {
  StopStrings stop_strings(stops);
  std::string shown, piece;
  for (size_t i = 0; i < text.size(); ++i) {
    piece += text[i];
    if (((cuts >> i) & 1U) == 0) continue;
    shown += stop_strings.push(std::exchange(piece, ""));
    EXPECT_EQ(text.compare(0, shown.size(), shown), 0);
  }
  shown += stop_strings.push(piece);
  return shown + stop_strings.finish();
}

void expect_text(const Stops& stops, const std::string& text, const std::string& expected) {
  for (unsigned cuts = 0; cuts < (1U << text.size()); ++cuts) {
    ASSERT_EQ(until_stop(stops, text, cuts), expected) << text << " cut at " << cuts;
  }
}

TEST(StopStrings, EndTheTextBeforeTheFirstInWhateverPieces) {
  expect_text({}, "any text", "any text");
  expect_text({""}, "any text", "any text");
  expect_text({"x"}, "any text", "any te");
  expect_text({"text", "y"}, "any text", "an");
  expect_text({"any"}, "any text", "");
  expect_text({"aab"}, "aaaab", "aa");
  expect_text({"abab", "abac"}, "ababab", "");
  expect_text({"abac"}, "ababac", "ab");
  expect_text({"\n\n"}, "a\nb\n\nc", "a\nb");
  expect_text({"never"}, "nevenev", "nevenev");
  expect_text({"\u20ac"}, "a\u20acb", "a");
}

TEST(StopStrings, TakeTheOneThatIsCompleteFirst) {
  expect_text({"bcd", "c"}, "abcd", "ab");
  expect_text({"c", "bcd"}, "abcd", "ab");
  expect_text({"c", "bc"}, "abcd", "a");
  expect_text({"bc", "c"}, "abcd", "a");
}

TEST(StopStrings, HoldBackOnlyWhatMayBeginOne) {
  StopStrings stop_strings({"stop", "top hat"});
  EXPECT_EQ(stop_strings.push("no s"), "no ");
  EXPECT_EQ(stop_strings.push("to"), "");
  EXPECT_EQ(stop_strings.push("ne, to"), "stone, ");
  EXPECT_EQ(stop_strings.push("p h"), "");
  EXPECT_EQ(stop_strings.push("ot"), "top ho");
  EXPECT_EQ(stop_strings.push("t"), "t");
  EXPECT_EQ(stop_strings.push("\u00e9 st"), "t\u00e9 ");
  EXPECT_FALSE(stop_strings.found());
  EXPECT_EQ(stop_strings.push("op it"), "");
  EXPECT_TRUE(stop_strings.found());
  EXPECT_EQ(stop_strings.push("more"), "");
  EXPECT_EQ(stop_strings.finish(), "");
}

TEST(StopStrings, GiveBackAtTheEndWhatTheyHeld) {
  StopStrings stop_strings({"stop"});
  EXPECT_EQ(stop_strings.push("a sto"), "a ");
  EXPECT_EQ(stop_strings.finish(), "sto");
  EXPECT_EQ(stop_strings.finish(), "");
}

}  // namespace
}  // namespace heed::examples::of_stop_strings
