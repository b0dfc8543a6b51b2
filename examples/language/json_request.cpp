// SPDX-License-Identifier: BSD-3-Clause
#include "json_request.h"

#include <cmath>
#include <limits>

#include "support/json_file.h"
#include "text/json_fields.h"

namespace heed::examples {

namespace {

using text::JsonFields;

constexpr int64_t kMostTokens = 1'000'000'000, kMostOfOption = 1'000'000'000'000'000;

/// A number for which `accepts` returns true; `rule` describes such numbers.
template <typename Accepts>
void read_number(JsonFields& fields, const char* name, const char* rule, Accepts accepts,
                 std::optional<double>& option) {
  const auto* value = fields.find(name);
  if (value == nullptr) return;
  const auto good =
      value->is_number() && std::isfinite(value->get<double>()) && accepts(value->get<double>());
  if (!good) text::refuse(name, *value, std::string("must be ") + rule);
  option = value->get<double>();
}

void read_whole_number(JsonFields& fields, const char* name, int64_t least, int64_t most,
                       std::optional<int64_t>& option) {
  const auto* value = fields.find(name);
  if (value == nullptr) return;
  if (!text::is_whole_number(*value, most) || *value < least) {
    text::refuse(
        name, *value,
        "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  option = value->get<int64_t>();
}

void read_numbers(JsonFields& fields, SamplingArguments& sampling) {
  const auto any = [](double) { return true; };
  const auto above_zero = [](double value) { return value > 0; };
  const auto not_below_zero = [](double value) { return value >= 0; };
  const auto share = [](double value) { return value >= 0 && value <= 1; };
  read_number(fields, "temperature", "at least 0", not_below_zero, sampling.temperature);
  read_number(fields, "top_p", "from 0 to 1", share, sampling.top_p);
  read_number(fields, "min_p", "from 0 to 1", share, sampling.min_p);
  read_number(fields, "repetition_penalty", "above 0", above_zero, sampling.repetition_penalty);
  read_number(fields, "presence_penalty", "a number", any, sampling.presence_penalty);
  read_number(fields, "frequency_penalty", "a number", any, sampling.frequency_penalty);
  read_whole_number(fields, "top_k", 0, kMostOfOption, sampling.top_k);
  read_whole_number(fields, "no_repeat_ngram_size", 0, kMostOfOption,
                    sampling.no_repeat_ngram_size);
  read_whole_number(fields, "min_new_tokens", 0, kMostOfOption, sampling.min_new_tokens);
}

/// One text or a list of them.
void read_stops(JsonFields& fields, std::vector<std::string>& stops) {
  const auto* value = fields.find("stop");
  if (value == nullptr) return;
  stops.clear();
  const auto read = [&stops](const text::Json& stop, const std::string& place) {
    stops.push_back(text::text_of(stop, place));
    if (stops.back().empty()) text::refuse(place, stop, "must not be empty");
  };
  if (value->is_array()) {
    text::for_each_element(*value, "stop", read);
  } else {
    read(*value, "stop");
  }
}

}  // namespace

JsonRequest read_json_request(const std::string& line, SamplingArguments otherwise) {
  const auto object = parse_json(line);
  if (!object.is_object()) text::refuse("the line", object, "must be a JSON object");
  JsonFields fields(object, "");
  JsonRequest request;
  request.sampling = std::move(otherwise);
  auto& sampling = request.sampling;
  request.prompt = fields.text("prompt");
  read_whole_number(fields, "tokens", 1, kMostTokens, request.tokens);
  if (const auto* seed = fields.find("seed")) {
    const auto most = std::numeric_limits<uint64_t>::max();
    if (!seed->is_number_unsigned()) {
      text::refuse("seed", *seed, "must be a whole number from 0 to " + std::to_string(most));
    }
    request.seed = seed->get<uint64_t>();
  }
  // A request that says how to sample is sampled, whatever the command line says.
  for (const auto* name : {"temperature", "top_k", "top_p", "min_p"}) {
    if (fields.find(name) != nullptr) sampling.greedy = false;
  }
  sampling.greedy = fields.boolean_or("greedy", sampling.greedy);
  sampling.raw = fields.boolean_or("raw", sampling.raw);
  read_numbers(fields, sampling);
  read_stops(fields, sampling.stops);
  fields.expect_no_others();
  return request;
}

}  // namespace heed::examples
