// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "support/json_file.h"

namespace heed::examples::text {

using Json = nlohmann::json;

/// Throws std::runtime_error: "`place` (`value`) `rule`".
[[noreturn]] void refuse(const std::string& place, const Json& value, const std::string& rule);

/// The fields of a JSON object, each read by its name. What is missing, of another type or not
/// understood is refused, and the error names the field and its value.
class JsonFields {
 public:
  JsonFields(const Json& object, std::string place);

  const Json& at(const std::string& name);
  std::string text(const std::string& name);
  bool boolean(const std::string& name);
  bool boolean_or(const std::string& name, bool otherwise);
  int64_t whole_number(const std::string& name, int64_t at_most);

  /// nullptr, nullopt or false when the field is missing or null.
  const Json* find(const std::string& name);
  std::optional<std::string> find_text(const std::string& name);

  /// For fields that change neither ids nor text.
  void pass_over(std::initializer_list<std::string> names) { read_.insert(names); }
  /// Refuses the object if it has a field that was not read.
  void expect_no_others() const;

  /// The name of a field, with those of the objects that it is in.
  std::string place_of(const std::string& name) const;

 private:
  const Json& object_;
  std::string place_;
  std::set<std::string> read_;
};

/// Calls `read` with each element of an array and the element's place.
void for_each_element(const Json& array, const std::string& place,
                      const std::function<void(const Json&, const std::string&)>& read);

/// Calls `read(type, fields)` with an object that has a "type", or, if that is "Sequence", with
/// each of the objects in its field `list`, in turn; with nothing if there is no object. `read`
/// returns how many rules it has read so far; more than 64 are refused.
void for_each_rule(const Json* json, const std::string& place, const std::string& list,
                   const std::function<size_t(const std::string&, JsonFields&)>& read);

const std::string& text_of(const Json& value, const std::string& place);
int64_t whole_number_of(const Json& value, const std::string& place, int64_t at_most);
bool is_whole_number(const Json& value, int64_t at_most);

/// The largest id of a token that is accepted.
constexpr int64_t kLargestId = 0x7FFFFFFF;

}  // namespace heed::examples::text
