// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <ostream>
#include <string_view>

namespace heed::detail {

/// Prints a module as heed::Name(option=value, ...), with the required options and those that
/// differ from their defaults.
class ModulePrinter {
 public:
  ModulePrinter(std::ostream& stream, std::string_view name) : stream_(stream) {
    stream_ << "heed::" << name << "(";
  }
  ~ModulePrinter() { stream_ << ")"; }
  ModulePrinter(const ModulePrinter&) = delete;
  ModulePrinter& operator=(const ModulePrinter&) = delete;

  template <typename T>
  ModulePrinter& show(const char* name, const T& value) {
    stream_ << separator_ << name << "=";
    print(value);
    separator_ = ", ";
    return *this;
  }
  template <typename T>
  ModulePrinter& option(const char* name, const T& value, const T& by_default) {
    return value == by_default ? *this : show(name, value);
  }
  /// Shows an option if it has a value.
  template <typename T>
  ModulePrinter& option(const char* name, const std::optional<T>& value) {
    return value ? show(name, *value) : *this;
  }

 private:
  template <typename T>
  void print(const T& value) {
    stream_ << value;
  }
  void print(bool value) { stream_ << (value ? "true" : "false"); }

  std::ostream& stream_;
  const char* separator_ = "";
};

}  // namespace heed::detail
