// SPDX-License-Identifier: BSD-3-Clause
#include "language/json_request.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace heed::examples::of_json_requests {
namespace {

std::string error_of(const std::string& line) {
  try {
    read_json_request(line, {});
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

/// The error of a request with one option.
std::string error_with(const std::string& option) {
  return error_of(R"({"prompt": "a", )" + option + "}");
}

TEST(JsonRequest, HasThePromptAndOptionsOfItsOwn) {
  SamplingArguments otherwise;
  otherwise.top_p = 0.5;
  otherwise.greedy = true;
  otherwise.stops = {"x"};
  const auto plain = read_json_request(R"({"prompt": "a\n\u00e9"})", otherwise);
  EXPECT_EQ(plain.prompt, "a\n\u00e9");
  EXPECT_EQ(plain.tokens, std::nullopt);
  EXPECT_EQ(plain.seed, std::nullopt);
  EXPECT_EQ(plain.sampling.top_p, 0.5);
  EXPECT_TRUE(plain.sampling.greedy);
  EXPECT_EQ(plain.sampling.stops, std::vector<std::string>({"x"}));

  const auto own = read_json_request(
      R"({"prompt": "", "tokens": 7, "seed": 18446744073709551615, "temperature": 0, "top_k": 3,
          "min_p": 0.25, "repetition_penalty": 1.5, "presence_penalty": -1, "raw": true,
          "frequency_penalty": 2, "no_repeat_ngram_size": 4, "min_new_tokens": 5,
          "stop": [".", "\n"]})",
      otherwise);
  EXPECT_EQ(own.tokens, 7);
  EXPECT_EQ(own.seed, 18446744073709551615U);
  EXPECT_EQ(own.sampling.temperature, 0.0);
  EXPECT_EQ(own.sampling.top_k, 3);
  EXPECT_EQ(own.sampling.top_p, 0.5);
  EXPECT_EQ(own.sampling.min_p, 0.25);
  EXPECT_EQ(own.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(own.sampling.presence_penalty, -1.0);
  EXPECT_EQ(own.sampling.frequency_penalty, 2.0);
  EXPECT_EQ(own.sampling.no_repeat_ngram_size, 4);
  EXPECT_EQ(own.sampling.min_new_tokens, 5);
  EXPECT_EQ(own.sampling.stops, std::vector<std::string>({".", "\n"}));
  EXPECT_TRUE(own.sampling.raw);
  EXPECT_FALSE(own.sampling.greedy);

  const auto greedy = read_json_request(R"({"prompt": "a", "greedy": true, "stop": "."})", {});
  EXPECT_TRUE(greedy.sampling.greedy);
  EXPECT_EQ(greedy.sampling.stops, std::vector<std::string>({"."}));
}

TEST(JsonRequest, NamesWhatItDoesNotTake) {
  EXPECT_EQ(error_of("[1]"), "the line (an array of 1) must be a JSON object");
  EXPECT_EQ(error_of("{}"), "prompt is missing");
  EXPECT_EQ(error_of(R"({"prompt": 1})"), "prompt (1) must be a string");
  EXPECT_EQ(error_with(R"("temprature": 1)"), "temprature (1) is not known here");
  EXPECT_EQ(error_with(R"("temperature": -0.5)"), "temperature (-0.5) must be at least 0");
  EXPECT_EQ(error_with(R"("temperature": "hot")"), "temperature (\"hot\") must be at least 0");
  EXPECT_EQ(error_with(R"("top_p": 1.5)"), "top_p (1.5) must be from 0 to 1");
  EXPECT_EQ(error_with(R"("min_p": -1)"), "min_p (-1) must be from 0 to 1");
  EXPECT_EQ(error_with(R"("top_k": 1.5)"),
            "top_k (1.5) must be a whole number from 0 to 1000000000000000");
  EXPECT_EQ(error_with(R"("tokens": 0)"), "tokens (0) must be a whole number from 1 to 1000000000");
  EXPECT_EQ(error_with(R"("seed": -1)"),
            "seed (-1) must be a whole number from 0 to 18446744073709551615");
  EXPECT_EQ(error_with(R"("repetition_penalty": 0)"), "repetition_penalty (0) must be above 0");
  EXPECT_EQ(error_with(R"("presence_penalty": true)"), "presence_penalty (true) must be a number");
  EXPECT_EQ(error_with(R"("stop": ["a", ""])"), "stop[1] (\"\") must not be empty");
  EXPECT_EQ(error_with(R"("stop": 1)"), "stop (1) must be a string");
  EXPECT_EQ(error_with(R"("greedy": 1)"), "greedy (1) must be true or false");
  EXPECT_NE(error_of("{\"prompt\": \"a\""), "");
}

}  // namespace
}  // namespace heed::examples::of_json_requests
