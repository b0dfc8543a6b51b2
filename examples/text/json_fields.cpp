#include "json_fields.h"

#include <stdexcept>
#include <unordered_set>
#include <utility>
#include <vector>

namespace heed::examples::text {

namespace {

constexpr size_t kLongestFile = size_t{1} << 28;
constexpr int kDeepest = 32;
constexpr size_t kShownBytes = 60;

std::string read_bytes(std::istream& file) {
  std::string bytes;
  std::vector<char> part(size_t{1} << 20);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0) {
    bytes.append(part.data(), static_cast<size_t>(file.gcount()));
    if (bytes.size() > kLongestFile) {
      throw std::runtime_error("the file is longer than " + std::to_string(kLongestFile) +
                               " bytes");
    }
  }
  if (file.bad()) throw std::runtime_error("the file cannot be read");
  return bytes;
}

/// Refuses what the parser accepts: two fields of one name, and any depth.
class ParserChecks {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kDeepest) {
      throw std::runtime_error("the file is nested deeper than " + std::to_string(kDeepest) +
                               " levels");
    }
    if (event == Json::parse_event_t::object_start) {
      names_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      names_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names_.back().insert(name).second) {
        throw std::runtime_error("an object has the field " + in_quotes(name) + " twice");
      }
    }
    return true;
  }

 private:
  std::vector<std::unordered_set<std::string>> names_;  // of the objects that are open
};

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  return value.dump();
}

}  // namespace

Json read_json(std::istream& file) {
  const auto bytes = read_bytes(file);
  ParserChecks checks;
  try {
    return Json::parse(bytes, [&checks](int depth, Json::parse_event_t event, Json& parsed) {
      return checks(depth, event, parsed);
    });
  } catch (const Json::parse_error& error) {
    throw std::runtime_error("the file is not JSON, at byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {  // a number that no double can represent
    throw std::runtime_error("the file is not JSON");
  }
}

void refuse(const std::string& place, const Json& value, const std::string& rule) {
  throw std::runtime_error(place + " (" + shown(value) + ") " + rule);
}

std::string in_quotes(const std::string& text) {
  auto size = text.size();
  if (size > kShownBytes) {
    size = kShownBytes;
    while (size > 0 && (text[size] & 0xC0) == 0x80) --size;  // not within a character
  }
  return Json(text.substr(0, size)).dump() + (size < text.size() ? "..." : "");
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
  // The parser makes whole numbers unsigned unless they are negative.
  return value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(at_most);
}

}  // namespace heed::examples::text
