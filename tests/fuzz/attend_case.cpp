#include "attend_case.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace heed::fuzz {

namespace {

struct Field {
  const char* name;
  int64_t Case::*value;
};

constexpr Field kFields[] = {
    {"target", &Case::target},
    {"B", &Case::B},
    {"H", &Case::H},
    {"G", &Case::G},
    {"L", &Case::L},
    {"S", &Case::S},
    {"D", &Case::D},
    {"Dv", &Case::Dv},
    {"dtype", &Case::dtype},
    {"key_dtype", &Case::key_dtype},
    {"value_dtype", &Case::value_dtype},
    {"query_layout", &Case::query_layout},
    {"key_layout", &Case::key_layout},
    {"value_layout", &Case::value_layout},
    {"mask_layout", &Case::mask_layout},
    {"bias_layout", &Case::bias_layout},
    {"mask", &Case::mask},
    {"mask_dtype", &Case::mask_dtype},
    {"mask_fill", &Case::mask_fill},
    {"bias", &Case::bias},
    {"bias_dtype", &Case::bias_dtype},
    {"bias_fill", &Case::bias_fill},
    {"documents", &Case::documents},
    {"poison", &Case::poison},
    {"causal", &Case::causal},
    {"window", &Case::window},
    {"scale", &Case::scale},
    {"dropout", &Case::dropout},
    {"softcap", &Case::softcap},
    {"alibi", &Case::alibi},
    {"sinks", &Case::sinks},
    {"victim", &Case::victim},
    {"defect", &Case::defect},
    {"grad", &Case::grad},
    {"inference", &Case::inference},
    {"path", &Case::path},
    {"capability", &Case::capability},
    {"small_tiles", &Case::small_tiles},
    {"ragged", &Case::ragged},
    {"E", &Case::E},
    {"key_dim", &Case::key_dim},
    {"value_dim", &Case::value_dim},
    {"head_dim", &Case::head_dim},
    {"rotary", &Case::rotary},
    {"qk_norm", &Case::qk_norm},
    {"no_input_bias", &Case::no_input_bias},
    {"no_output_bias", &Case::no_output_bias},
    {"training", &Case::training},
    {"cross", &Case::cross},
    {"weights", &Case::weights},
    {"chunk", &Case::chunk},
    {"capacity", &Case::capacity},
    {"cache_window", &Case::cache_window},
    {"builder", &Case::builder},
    {"mean", &Case::mean},
    {"slopes_fill", &Case::slopes_fill},
    {"sinks_fill", &Case::sinks_fill},
    {"device", &Case::device},
    {"far", &Case::far},
    {"steps", &Case::steps},
    {"place", &Case::place},
    {"change", &Case::change},
    {"edit", &Case::edit},
    {"hooks", &Case::hooks},
    {"frozen", &Case::frozen},
    {"twice", &Case::twice},
    {"asked", &Case::asked},
    {"norm", &Case::norm},
    {"names", &Case::names},
    {"mapped", &Case::mapped},
    {"scaling", &Case::scaling},
    {"trained", &Case::trained},
    {"page", &Case::page},
    {"shared", &Case::shared},
    {"draft", &Case::draft},
    {"int8", &Case::int8},
    {"seed", &Case::seed},
};

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
    const auto* const field = std::find_if(
        std::begin(kFields), std::end(kFields),
        [&](const Field& candidate) { return word.substr(0, equals) == candidate.name; });
    if (equals == std::string::npos || field == std::end(kFields)) {
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
