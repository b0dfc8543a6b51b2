// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/json_entries.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

// HEED_CHECK_FILE for a format that is not known before run time.
#define HEED_CHECK_JSON(condition, place, ...)                                               \
  HEED_CHECK(condition, "{} must be a sound {} file; " place, bytes_.source(), file_.format, \
             __VA_ARGS__)

namespace heed::detail {

namespace {

using Json = nlohmann::json;
using Visit = std::function<void(const std::string&, const Json&)>;

/// Receives JSON token by token, and builds the value of one entry at a time.
class EntryReader : public nlohmann::json_sax<Json> {
 public:
  EntryReader(const Bytes& bytes, const std::string& key, const Visit& visit, const JsonFile& file)
      : bytes_(bytes), key_(key), visit_(visit), file_(file), entries_depth_(key.empty() ? 1 : 2) {}

  void check_found() const { HEED_CHECK_JSON(found_, "it must have a {}", in_quotes(key_)); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string& /*text*/) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t& /*value*/) override { return add(nullptr); }

  bool start_object(size_t /*size*/) override {
    if (!is_outer()) return open(Json::object());
    if (++depth_ == entries_depth_) {
      HEED_CHECK_JSON(!found_, "{} must be there once", in_quotes(key_));
      found_ = true;
    }
    return true;
  }

  bool start_array(size_t /*size*/) override {
    check_inner("an array");
    return open(Json::array());
  }

  bool key(std::string& name) override {
    if (!open_.empty()) {
      HEED_CHECK_JSON(!open_.back().contains(name), "{}: {} must be there once", in_quotes(name_),
                      in_quotes(name));
      keys_.push_back(std::move(name));
      return true;
    }
    name_ = std::move(name);
    parts_ = 0;
    HEED_CHECK_JSON(depth_ < entries_depth_ || names_.insert(name_).second, "{} must be there once",
                    in_quotes(name_));
    return true;
  }

  bool end_object() override {
    if (!open_.empty()) return close();
    --depth_;
    return true;
  }

  bool end_array() override { return close(); }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    HEED_CHECK_JSON(false, "byte {} must be of a JSON object in UTF-8", position);
  }

 private:
  /// Whether the next value must be an object around the entries.
  bool is_outer() const {
    return open_.empty() && depth_ < entries_depth_ && (depth_ == 0 || name_ == key_);
  }

  void check_inner(const char* what) const {
    HEED_CHECK_JSON(!is_outer(), "{} must be a JSON object; it is {}",
                    depth_ == 0 ? "it" : in_quotes(key_), what);
  }

  void count_part() {
    HEED_CHECK_JSON(++parts_ <= file_.most_parts, "{} must have at most {} parts", in_quotes(name_),
                    file_.most_parts);
  }

  bool open(Json container) {
    count_part();
    HEED_CHECK_JSON(open_.size() < file_.most_depth, "{} must be nested at most {} deep",
                    in_quotes(name_), file_.most_depth);
    open_.push_back(std::move(container));
    return true;
  }

  bool close() {
    auto whole = std::move(open_.back());
    open_.pop_back();
    return put(std::move(whole));
  }

  bool add(Json value) {
    check_inner("a value");
    count_part();
    return put(std::move(value));
  }

  bool put(Json value) {
    if (open_.empty()) {
      if (depth_ == entries_depth_) visit_(name_, value);
    } else if (open_.back().is_array()) {
      open_.back().push_back(std::move(value));
    } else {
      open_.back()[keys_.back()] = std::move(value);
      keys_.pop_back();
    }
    return true;
  }

  const Bytes& bytes_;
  const std::string& key_;
  const Visit& visit_;
  const JsonFile& file_;
  int entries_depth_, depth_ = 0;  // objects around an entry; objects that are open now
  bool found_ = false;
  std::set<std::string> names_;    // of entries, so far
  std::string name_;               // of this entry
  size_t parts_ = 0;               // of this entry, so far
  std::vector<Json> open_;         // objects and arrays that are not at their end
  std::vector<std::string> keys_;  // keys of values that are not at their end
};

}  // namespace

void for_each_entry(const Bytes& json, const std::string& key, const Visit& visit,
                    const JsonFile& file) {
  const auto text = json.text(0, json.size());
  EntryReader entries(json, key, visit, file);
  Json::sax_parse(text.begin(), text.end(), &entries);
  entries.check_found();
}

}  // namespace heed::detail
