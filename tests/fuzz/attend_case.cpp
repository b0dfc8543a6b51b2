// SPDX-License-Identifier: BSD-3-Clause
#include "attend_case.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <stdexcept>

namespace heed::fuzz {

namespace {

struct Field {
  const char* name;
  int64_t Case::*value;
};

template <typename... Fields>
constexpr auto listed(Fields... fields) {
  return std::array<Field, sizeof...(fields)>{fields...};
}

#define HEED_FIELD(name) \
  Field { #name, &Case::name }
constexpr auto kFields = listed(
    HEED_FIELD(target), HEED_FIELD(B), HEED_FIELD(H), HEED_FIELD(G), HEED_FIELD(L), HEED_FIELD(S),
    HEED_FIELD(D), HEED_FIELD(Dv), HEED_FIELD(dtype), HEED_FIELD(key_dtype),
    HEED_FIELD(value_dtype), HEED_FIELD(query_layout), HEED_FIELD(key_layout),
    HEED_FIELD(value_layout), HEED_FIELD(mask_layout), HEED_FIELD(bias_layout), HEED_FIELD(mask),
    HEED_FIELD(mask_dtype), HEED_FIELD(mask_fill), HEED_FIELD(by_rule), HEED_FIELD(bias),
    HEED_FIELD(bias_dtype), HEED_FIELD(bias_fill), HEED_FIELD(documents), HEED_FIELD(poison),
    HEED_FIELD(causal), HEED_FIELD(window), HEED_FIELD(scale), HEED_FIELD(dropout),
    HEED_FIELD(softcap), HEED_FIELD(alibi), HEED_FIELD(sinks), HEED_FIELD(victim),
    HEED_FIELD(defect), HEED_FIELD(grad), HEED_FIELD(inference), HEED_FIELD(path),
    HEED_FIELD(capability), HEED_FIELD(small_tiles), HEED_FIELD(ragged), HEED_FIELD(E),
    HEED_FIELD(key_dim), HEED_FIELD(value_dim), HEED_FIELD(head_dim), HEED_FIELD(rotary),
    HEED_FIELD(qk_norm), HEED_FIELD(no_input_bias), HEED_FIELD(no_output_bias),
    HEED_FIELD(training), HEED_FIELD(cross), HEED_FIELD(weights), HEED_FIELD(chunk),
    HEED_FIELD(capacity), HEED_FIELD(cache_window), HEED_FIELD(builder), HEED_FIELD(mean),
    HEED_FIELD(slopes_fill), HEED_FIELD(sinks_fill), HEED_FIELD(device), HEED_FIELD(far),
    HEED_FIELD(steps), HEED_FIELD(place), HEED_FIELD(change), HEED_FIELD(edit), HEED_FIELD(hooks),
    HEED_FIELD(frozen), HEED_FIELD(twice), HEED_FIELD(asked), HEED_FIELD(norm), HEED_FIELD(names),
    HEED_FIELD(mapped), HEED_FIELD(scaling), HEED_FIELD(trained), HEED_FIELD(page),
    HEED_FIELD(shared), HEED_FIELD(draft), HEED_FIELD(int8), HEED_FIELD(left), HEED_FIELD(right),
    HEED_FIELD(top_left), HEED_FIELD(global), HEED_FIELD(lengths), HEED_FIELD(mask_batch),
    HEED_FIELD(batches), HEED_FIELD(alibi_rows), HEED_FIELD(relative), HEED_FIELD(relative_dtype),
    HEED_FIELD(relative_fill), HEED_FIELD(relative_positions), HEED_FIELD(short_offsets),
    HEED_FIELD(lse), HEED_FIELD(seed));
#undef HEED_FIELD

/// Values to try in place of `value`, the simplest first.
std::vector<int64_t> simpler(int64_t value, int64_t simplest) {
  std::vector<int64_t> result;
  for (const auto candidate : {simplest, int64_t{0}, int64_t{1}, value / 2, value - 1}) {
    const bool closer = candidate >= 0 && candidate < value;
    if (value != simplest && (candidate == simplest || closer)) result.push_back(candidate);
  }
  return result;
}

}  // namespace

std::string describe(const Case& c) {
  std::ostringstream text;
  for (const auto& [name, value] : kFields) {
    if (c.*value != Case().*value) text << (text.tellp() > 0 ? " " : "") << name << '=' << c.*value;
  }
  return text.str();
}

Case parse(const std::string& text) {
  Case c;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    const auto field = std::find_if(kFields.begin(), kFields.end(), [&](const Field& candidate) {
      return word.substr(0, equals) == candidate.name;
    });
    if (equals == std::string::npos || field == kFields.end()) {
      throw std::invalid_argument("\"" + word + "\" is not a field of a case with its value");
    }
    c.*field->value = std::stoll(word.substr(equals + 1));
  }
  return c;
}

Case shrink(Case c, const std::function<bool(const Case&)>& fails) {
  for (bool shrunk = true; shrunk;) {
    shrunk = false;
    for (const auto& field : kFields) {
      for (const auto value : simpler(c.*field.value, Case().*field.value)) {
        Case candidate = c;
        candidate.*field.value = value;
        if (!fails(candidate)) continue;
        c = candidate;
        shrunk = true;
        break;
      }
    }
  }
  return c;
}

}  // namespace heed::fuzz
