// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heed::detail {

/// The fields of a config.json, or of an object in it. It notes which fields are read, so that
/// `check_all_read` finds those that nobody has understood. Errors begin with the path of the file
/// and name the field and its value.
class Config {
 public:
  /// Reads a file. Throws c10::ValueError when it is too large, or not a JSON object.
  explicit Config(const std::string& path);

  /// Adds a field that the file leaves out. Throws c10::ValueError when the file has the field with
  /// another value.
  void add(const std::string& name, const std::string& value) const;

  /// Whether the field is there; it may be null.
  bool has(const std::string& name) const;
  bool is_list(const std::string& name) const;
  bool is_text(const std::string& name) const;
  /// The names of all fields.
  std::vector<std::string> names() const;

  /// The value of a field, or `otherwise` if it is not there; without `otherwise`, it must be
  /// there. Throw c10::ValueError when the value is of another type, null or out of range.
  /// @{
  int64_t whole(const std::string& name, std::optional<int64_t> otherwise, int64_t lowest,
                int64_t highest) const;
  int64_t size(const std::string& name, std::optional<int64_t> otherwise) const;  ///< 1 to 2^31
  double number(const std::string& name, std::optional<double> otherwise) const;  ///< finite
  double probability(const std::string& name, double otherwise) const;            ///< in [0, 1)
  bool boolean(const std::string& name, bool otherwise) const;
  std::string text(const std::string& name, const std::optional<std::string>& otherwise) const;
  std::vector<double> numbers(const std::string& name) const;
  /// @}

  /// The value of a field that may be null: none if it is null, `otherwise` or none if it is not
  /// there. Throw c10::ValueError when the value is of another type or out of range.
  /// @{
  std::optional<int64_t> size_or_null(const std::string& name,
                                      std::optional<int64_t> otherwise = {}) const;
  std::optional<double> number_or_null(const std::string& name,
                                       std::optional<double> otherwise = {}) const;
  std::optional<std::vector<int64_t>> sizes_or_null(const std::string& name) const;  ///< from 0
  std::optional<std::vector<std::string>> texts_or_null(const std::string& name) const;
  std::optional<int64_t> count_or_null(const std::string& name) const;  ///< of an object's fields
  /// @}

  /// Whether each field of the object `name` is in the object `other`, with the same value; `type`
  /// may be `rope_type` there. If so, `name` counts as read.
  bool is_part(const std::string& name, const std::string& other) const;
  /// The fields of an object; no fields if it is not there or null.
  Config object(const std::string& name) const;
  bool empty() const;  ///< Whether there are no fields.

  /// Accepts these fields with any value: they make no difference to the numbers.
  void ignore(std::initializer_list<const char*> names) const;
  /// Throws unless the field is missing or has one of these values, as JSON writes them, with
  /// which it makes no difference.
  void expect(const std::string& name, std::initializer_list<std::string_view> values) const;
  /// Throws c10::ValueError that names a field, of this or of an object in it, that has not been
  /// read.
  void check_all_read() const;

  /// Throws c10::ValueError: "m/config.json: head_dim 7 must be even". The value is left out if the
  /// field is not there.
  [[noreturn]] void refuse(const std::string& name, std::string_view rule) const;

 private:
  struct Fields;
  explicit Config(std::shared_ptr<Fields> fields);

  std::shared_ptr<Fields> fields_;
};

}  // namespace heed::detail
