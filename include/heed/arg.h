#pragma once

#include <utility>

/// Like TORCH_ARG, for options that a base class declares. The setters return the derived options,
/// so that calls to setters of the base and of the derived class can be chained. `Derived` is the
/// name of the base's template parameter.
// NOLINTBEGIN(bugprone-macro-parentheses): a type and a name stand in none.
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
// NOLINTEND(bugprone-macro-parentheses)
