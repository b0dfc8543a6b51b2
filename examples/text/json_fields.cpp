// SPDX-License-Identifier: BSD-3-Clause
#include "json_fields.h"

#include <stdexcept>
#include <utility>

namespace heed::examples::text {

namespace {

constexpr size_t kMostRules = 64;

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  return value.dump();
}

}  // namespace

void refuse(const std::string& place, const Json& value, const std::string& rule) {
  throw std::runtime_error(place + " (" + shown(value) + ") " + rule);
}

JsonFields::JsonFields(const Json& object, std::string place)
    : object_(object), place_(std::move(place)) {
  if (!object.is_object()) {
    refuse(place_.empty() ? "the file" : place_, object, "must be an object");
  }
}

std::string JsonFields::place_of(const std::string& name) const {
  return place_.empty() ? name : place_ + "." + name;
}

const Json* JsonFields::find(const std::string& name) {
  read_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json& JsonFields::at(const std::string& name) {
  const auto* value = find(name);
  if (value == nullptr) throw std::runtime_error(place_of(name) + " is missing");
  return *value;
}

std::string JsonFields::text(const std::string& name) { return text_of(at(name), place_of(name)); }

std::optional<std::string> JsonFields::find_text(const std::string& name) {
  const auto* value = find(name);
  if (value == nullptr) return std::nullopt;
  return text_of(*value, place_of(name));
}

bool JsonFields::boolean(const std::string& name) {
  const auto& value = at(name);
  if (!value.is_boolean()) refuse(place_of(name), value, "must be true or false");
  return value.get<bool>();
}

bool JsonFields::boolean_or(const std::string& name, bool otherwise) {
  return find(name) == nullptr ? otherwise : boolean(name);
}

int64_t JsonFields::whole_number(const std::string& name, int64_t at_most) {
  return whole_number_of(at(name), place_of(name), at_most);
}

void JsonFields::expect_no_others() const {
  for (const auto& [name, value] : object_.items()) {
    if (read_.count(name) == 0) refuse(place_of(name), value, "is not known here");
  }
}

void for_each_element(const Json& array, const std::string& place,
                      const std::function<void(const Json&, const std::string&)>& read) {
  if (!array.is_array()) refuse(place, array, "must be an array");
  for (size_t i = 0; i < array.size(); ++i) {
    read(array[i], place + "[" + std::to_string(i) + "]");
  }
}

void for_each_rule(const Json* json, const std::string& place, const std::string& list,
                   const std::function<size_t(const std::string&, JsonFields&)>& read) {
  if (json == nullptr) return;
  JsonFields fields(*json, place);
  const auto type = fields.text("type");
  size_t rules = 0;
  if (type == "Sequence") {
    const auto read_element = [&](const Json& element, const std::string& place_of_element) {
      for_each_rule(&element, place_of_element, list, read);
    };
    for_each_element(fields.at(list), fields.place_of(list), read_element);
  } else {
    rules = read(type, fields);
  }
  fields.expect_no_others();
  if (rules > kMostRules) {
    refuse(place, *json,
           "is one too many: at most " + std::to_string(kMostRules) + " are known here");
  }
}

const std::string& text_of(const Json& value, const std::string& place) {
  if (!value.is_string()) refuse(place, value, "must be a string");
  return value.get_ref<const std::string&>();
}

int64_t whole_number_of(const Json& value, const std::string& place, int64_t at_most) {
  if (!is_whole_number(value, at_most)) {
    refuse(place, value, "must be a whole number from 0 to " + std::to_string(at_most));
  }
  return value.get<int64_t>();
}

bool is_whole_number(const Json& value, int64_t at_most) {
  // The parser makes whole numbers unsigned unless they are negative; code need not.
  const bool is_negative = !value.is_number_unsigned() && value < 0;
  return value.is_number_integer() && !is_negative &&
         value.get<uint64_t>() <= static_cast<uint64_t>(at_most);
}

}  // namespace heed::examples::text
