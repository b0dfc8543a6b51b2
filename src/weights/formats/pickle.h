// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace heed::detail {

struct PickleObject;

/// A value in a pickle: None, a bool, an integer, a float, a string or bytes, or an object.
using PickleValue =
    std::variant<std::monostate, bool, int64_t, double, std::string_view, PickleObject*>;

/// An object as a pickle describes it. Classes that the pickle names are not looked up, and
/// functions that it calls are not called: they are stored by name, with their arguments.
struct PickleObject {
  enum class Kind {
    tuple,
    list,        ///< or set
    dict,        ///< or OrderedDict
    global,      ///< a class or function: `name`
    persistent,  ///< something stored outside of the pickle: items[0] tells where
    call,        ///< a call of `callee` with `items`; then `entries` and `state` were set
    number,      ///< an integer of more than 64 bits
  };
  Kind kind;
  std::string name;  ///< "torch._utils._rebuild_tensor_v2"
  PickleValue callee;
  std::vector<PickleValue> items;
  std::vector<std::pair<PickleValue, PickleValue>> entries;
  PickleValue state;  ///< the argument of BUILD
};

/// A pickle of protocols 2 to 5, read without running it.
class Pickle {
 public:
  /// Strings point into `bytes`. Throws c10::ValueError when these are not a pickle, or when its
  /// objects would take more memory than `most_memory`. Errors begin with `source` and name
  /// `record`.
  Pickle(const std::string& source, const std::string& record, std::string_view bytes,
         size_t most_memory);

  /// Reads the pickle with which `bytes` begin. None if they end before it does.
  static std::optional<Pickle> beginning(const std::string& source, const std::string& record,
                                         std::string_view bytes, size_t most_memory);

  const PickleValue& root() const { return root_; }
  const std::deque<PickleObject>& objects() const { return objects_; }
  size_t size() const { return size_; }  ///< of the pickle, in bytes

 private:
  Pickle() = default;

  class Machine;
  std::deque<PickleObject> objects_;  // owns them all: they may form cycles
  PickleValue root_;
  size_t size_ = 0;
};

}  // namespace heed::detail
