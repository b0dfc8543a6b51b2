// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/arg.h>

#include <type_traits>
#include <utility>

// NOLINTBEGIN(bugprone-macro-parentheses): a type and a name stand in none.

/// Within a class: no constructor takes a bool, which would silently turn into a number.
#define HEED_NO_BOOL(Class)                                                                   \
  template <typename... Args, std::enable_if_t<(std::is_same_v<Args, bool> || ...), int> = 0> \
  Class(Args...) = delete

/// Like TORCH_ARG, for an option that is a number: its setter takes no bool.
#define HEED_NUMBER_ARG(T, name) \
  HEED_NO_BOOL_SETTER(name)      \
  TORCH_ARG(T, name)

/// Like TORCH_ARG, for options that a base class declares. The setters return the derived options,
/// so that calls to setters of the base and of the derived class can be chained. `Derived` is the
/// name of the base's template parameter.
#define HEED_ARG(T, name)                                  \
 public:                                                   \
  Derived& name(const T& new_##name) {                     \
    this->name##_ = new_##name;                            \
    return static_cast<Derived&>(*this);                   \
  }                                                        \
  Derived& name(T&& new_##name) {                          \
    this->name##_ = std::move(new_##name);                 \
    return static_cast<Derived&>(*this);                   \
  }                                                        \
  const T& name() const noexcept { return this->name##_; } \
  T& name() noexcept { return this->name##_; }             \
                                                           \
 private:                                                  \
  T name##_ /* NOLINT */

/// HEED_ARG for a number.
#define HEED_DERIVED_NUMBER_ARG(T, name) \
  HEED_NO_BOOL_SETTER(name)              \
  HEED_ARG(T, name)

#define HEED_NO_BOOL_SETTER(name)                                                 \
 public:                                                                          \
  template <typename Bool, std::enable_if_t<std::is_same_v<Bool, bool>, int> = 0> \
  void name(Bool) = delete;

// NOLINTEND(bugprone-macro-parentheses)
