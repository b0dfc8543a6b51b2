// SPDX-License-Identifier: BSD-3-Clause
#include "json_file.h"

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "files.h"

namespace heed::examples {

namespace {

using Json = nlohmann::json;

constexpr size_t kLongestFile = size_t{1} << 27;
constexpr size_t kDeepest = 32;
constexpr size_t kMostValues = 4'000'000;
constexpr size_t kMostFields = 1'000'000;
constexpr size_t kShownBytes = 60;

void check_at_most(size_t count, size_t most, const char* is, const char* what) {
  if (count <= most) return;
  throw std::runtime_error(std::string("the file ") + is + " than " + std::to_string(most) + what);
}

void check_size(size_t size) { check_at_most(size, kLongestFile, "is longer", " bytes"); }

/// Builds a value of what a parser finds, one after the other, and counts it.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Json take() { return std::move(whole_); }

  bool null() override { return put(nullptr) != nullptr; }
  bool boolean(bool value) override { return put(value) != nullptr; }
  bool number_integer(int64_t value) override { return put(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return put(value) != nullptr; }
  bool number_float(double value, const std::string& /*text*/) override {
    return put(value) != nullptr;
  }
  bool string(std::string& value) override { return put(std::move(value)) != nullptr; }
  bool binary(Json::binary_t& /*value*/) override { return put(nullptr) != nullptr; }

  bool start_object(size_t /*size*/) override { return open(Json::object()); }
  bool start_array(size_t /*size*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    check_at_most(++fields_, kMostFields, "has more", " fields");
    const auto [field, is_new] =
        open_.back()->get_ref<Json::object_t&>().emplace(std::move(name), nullptr);
    if (!is_new) {
      throw std::runtime_error("an object has the field " + in_quotes(field->first) + " twice");
    }
    field_ = &field->second;
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    throw std::runtime_error("the file is not JSON, at byte " + std::to_string(position));
  }

 private:
  /// To where the next value belongs.
  Json* put(Json value) {
    check_at_most(++values_, kMostValues, "has more", " values");
    auto* place = &whole_;
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    if (!open_.empty()) place = field_;
    *place = std::move(value);
    return place;
  }

  bool open(Json container) {
    check_at_most(open_.size() + 1, kDeepest, "is nested deeper", " levels");
    open_.push_back(put(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  Json whole_;
  // Objects and arrays that are not at their end; they stay where they are.
  std::vector<Json*> open_;
  Json* field_ = nullptr;  // whose name was read last
  size_t values_ = 0, fields_ = 0;
};

}  // namespace

Json parse_json(const std::string& text) {
  check_size(text.size());
  Builder builder;
  Json::sax_parse(text, &builder);
  return builder.take();
}

Json read_json(std::istream& file) {
  std::string text;
  std::vector<char> part(size_t{1} << 20);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0) {
    text.append(part.data(), static_cast<size_t>(file.gcount()));
    check_size(text.size());
  }
  if (file.bad()) throw std::runtime_error("the file cannot be read");
  return parse_json(text);
}

Json read_json_object(const std::string& path) {
  auto file = open_file(path);
  try {
    auto object = read_json(file);
    if (!object.is_object()) throw std::runtime_error("the file must be a JSON object");
    return object;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path + ": " + error.what());
  }
}

std::string in_quotes(const std::string& text) {
  auto size = text.size();
  if (size > kShownBytes) {
    size = kShownBytes;
    while (size > 0 && (text[size] & 0xC0) == 0x80) --size;  // not within a character
  }
  return Json(text.substr(0, size)).dump() + (size < text.size() ? "..." : "");
}

}  // namespace heed::examples
