// SPDX-License-Identifier: BSD-3-Clause
#include "models/pretrained/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "weights/formats/bytes.h"
#include "weights/formats/json_entries.h"
#include "weights/formats/other_files.h"

namespace heed::detail {

namespace {

using Json = nlohmann::json;

constexpr size_t kLongestConfig = 10'000'000;
constexpr int64_t kMostOfASize = int64_t{1} << 31;

/// A value as errors show it: escaped, and not too long.
std::string shown(const Json& value) {
  constexpr size_t kMost = 100;
  auto text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

/// A name of the file as errors show it: in quotes, unless it is an ordinary one.
std::string shown_name(const std::string& name) {
  const auto ordinary = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
  };
  const bool plain =
      !name.empty() && name.size() <= 100 && std::all_of(name.begin(), name.end(), ordinary);
  return plain ? name : in_quotes(name);
}

bool is_finite_number(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>());
}

/// Whether the value is a whole number from `lowest` to `highest`. JSON's unsigned numbers may be
/// too large for int64.
bool is_whole(const Json& value, int64_t lowest, int64_t highest) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return false;
  }
  return value.is_number_integer() && value.get<int64_t>() >= lowest &&
         value.get<int64_t>() <= highest;
}

template <typename IsElement>
bool is_list_of(const Json& value, const IsElement& is_element) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_element);
}

}  // namespace

struct Config::Fields {
  std::string path, prefix;  // the file's path; what stands before names in errors
  std::map<std::string, Json> values = {};
  std::set<std::string> read = {};
  std::map<std::string, std::shared_ptr<Fields>> objects = {};

  /// Finds a field, which counts as read; null if it is not there.
  const Json* find(const std::string& name) {
    read.insert(name);
    const auto found = values.find(name);
    return found == values.end() ? nullptr : &found->second;
  }
};

Config::Config(std::shared_ptr<Fields> fields) : fields_(std::move(fields)) {}

Config::Config(const std::string& path) : fields_(std::make_shared<Fields>(Fields{path, ""})) {
  const Bytes bytes(path);
  const auto other = other_file(bytes);
  HEED_CHECK(!other, "{} must be a sound JSON file; {}", bytes.source(), *other);
  HEED_CHECK(bytes.size() <= kLongestConfig, "{}: its size ({}) must be at most {}", path,
             bytes.size(), kLongestConfig);
  // A value may have a million parts: labels of a classifier and types of layers can be many.
  for_each_entry(bytes, "",
                 [&](const auto& name, const auto& value) { fields_->values[name] = value; },
                 {"JSON", 1'000'000, 100});
}

void Config::add(const std::string& name, const std::string& value) const {
  const auto [found, is_new] = fields_->values.emplace(name, value);
  if (!is_new && found->second != value) {
    refuse(name, fmt::format("must be {}, as the options say", shown(value)));
  }
}

bool Config::has(const std::string& name) const { return fields_->values.count(name) > 0; }

bool Config::is_list(const std::string& name) const {
  const auto found = fields_->values.find(name);
  return found != fields_->values.end() && found->second.is_array();
}

bool Config::is_text(const std::string& name) const {
  const auto found = fields_->values.find(name);
  return found != fields_->values.end() && found->second.is_string();
}

std::vector<std::string> Config::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : fields_->values) names.push_back(name);
  return names;
}

bool Config::empty() const { return fields_->values.empty(); }

void Config::refuse(const std::string& name, std::string_view rule) const {
  const auto found = fields_->values.find(name);
  const auto value = found == fields_->values.end() ? "" : " " + shown(found->second);
  HEED_CHECK(false, "{}: {}{} {}", fields_->path, shown_name(fields_->prefix + name), value, rule);
}

int64_t Config::whole(const std::string& name, std::optional<int64_t> otherwise, int64_t lowest,
                      int64_t highest) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr) refuse(name, "must be there");
  if (!is_whole(*value, lowest, highest)) {
    refuse(name, fmt::format("must be a whole number from {} to {}", lowest, highest));
  }
  return value->get<int64_t>();
}

int64_t Config::size(const std::string& name, std::optional<int64_t> otherwise) const {
  return whole(name, otherwise, 1, kMostOfASize);
}

double Config::number(const std::string& name, std::optional<double> otherwise) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr) refuse(name, "must be there");
  if (!is_finite_number(*value)) refuse(name, "must be a finite number");
  return value->get<double>();
}

double Config::probability(const std::string& name, double otherwise) const {
  const auto value = number(name, otherwise);
  if (value < 0.0 || value >= 1.0) refuse(name, "must be at least 0 and below 1");
  return value;
}

bool Config::boolean(const std::string& name, bool otherwise) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) refuse(name, "must be true or false");
  return value->get<bool>();
}

std::string Config::text(const std::string& name,
                         const std::optional<std::string>& otherwise) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr) refuse(name, "must be there");
  if (!value->is_string()) refuse(name, "must be a string");
  return value->get<std::string>();
}

std::vector<double> Config::numbers(const std::string& name) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr) refuse(name, "must be there");
  if (!is_list_of(*value, is_finite_number)) refuse(name, "must be a list of finite numbers");
  return value->get<std::vector<double>>();
}

std::optional<int64_t> Config::size_or_null(const std::string& name,
                                            std::optional<int64_t> otherwise) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr) return otherwise;
  if (value->is_null()) return std::nullopt;
  return size(name, std::nullopt);
}

std::optional<double> Config::number_or_null(const std::string& name,
                                             std::optional<double> otherwise) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr) return otherwise;
  if (value->is_null()) return std::nullopt;
  return number(name, std::nullopt);
}

std::optional<std::vector<int64_t>> Config::sizes_or_null(const std::string& name) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr || value->is_null()) return std::nullopt;
  const auto is_size = [](const Json& each) { return is_whole(each, 0, kMostOfASize); };
  if (!is_list_of(*value, is_size)) {
    refuse(name, fmt::format("must be a list of whole numbers from 0 to {}", kMostOfASize));
  }
  return value->get<std::vector<int64_t>>();
}

std::optional<std::vector<std::string>> Config::texts_or_null(const std::string& name) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (!is_list_of(*value, [](const Json& each) { return each.is_string(); })) {
    refuse(name, "must be a list of strings");
  }
  return value->get<std::vector<std::string>>();
}

std::optional<int64_t> Config::count_or_null(const std::string& name) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (!value->is_object()) refuse(name, "must be an object");
  return static_cast<int64_t>(value->size());
}

Config Config::object(const std::string& name) const {
  const auto* const value = fields_->find(name);
  auto& object = fields_->objects[name];
  if (object) return Config(object);
  object = std::make_shared<Fields>(Fields{fields_->path, fields_->prefix + name + "."});
  if (value == nullptr || value->is_null()) return Config(object);
  if (!value->is_object()) refuse(name, "must be an object");
  object->values = value->get<std::map<std::string, Json>>();
  return Config(object);
}

bool Config::is_part(const std::string& name, const std::string& other) const {
  const auto part = fields_->values.find(name), whole = fields_->values.find(other);
  if (part == fields_->values.end() || whole == fields_->values.end()) return false;
  if (!part->second.is_object() || !whole->second.is_object()) return false;
  for (const auto& [field, value] : part->second.items()) {
    const auto& fields = whole->second;
    auto found = fields.find(field);
    if (found == fields.end() && field == "type") found = fields.find("rope_type");
    if (found == fields.end() || *found != value) return false;
  }
  fields_->read.insert(name);
  return true;
}

void Config::ignore(std::initializer_list<const char*> names) const {
  fields_->read.insert(names.begin(), names.end());
}

void Config::expect(const std::string& name, std::initializer_list<std::string_view> values) const {
  const auto* const value = fields_->find(name);
  if (value == nullptr) return;
  const auto text = shown(*value);
  const bool expected = std::find(values.begin(), values.end(), text) != values.end();
  if (!expected) refuse(name, fmt::format("is not supported ({})", fmt::join(values, ", ")));
}

void Config::check_all_read() const {
  for (const auto& [name, value] : fields_->values) {
    if (fields_->read.count(name) == 0)
      refuse(name, "is not understood; it may change the numbers");
  }
  for (const auto& [name, object] : fields_->objects) Config(object).check_all_read();
}

}  // namespace heed::detail
