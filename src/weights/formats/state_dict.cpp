// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/state_dict.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace heed::detail {

namespace {

using Kind = PickleObject::Kind;

const PickleObject* dict_of(const PickleValue& value) {
  const auto* object = object_of(untagged(value));
  return object != nullptr && object->kind == Kind::dict ? object : nullptr;
}

/// Some of a dict's names, for errors: "epoch", "model", "optimizer".
std::string some_names(const PickleObject& dict) {
  constexpr size_t kMost = 10;
  std::vector<std::string> names;
  for (const auto& [name, value] : dict.entries) {
    const auto* text = std::get_if<std::string_view>(&name);
    if (text != nullptr && names.size() < kMost) names.push_back(in_quotes(*text));
  }
  return c10::Join(", ", names) + (names.size() < dict.entries.size() ? ", ..." : "");
}

const PickleValue* find(const PickleObject& dict, std::string_view name) {
  for (const auto& [key, value] : dict.entries) {
    const auto* text = std::get_if<std::string_view>(&key);
    if (text != nullptr && *text == name) return &value;
  }
  return nullptr;
}

/// Finds the value at a dotted path through dicts. A name may have dots itself, so the longest is
/// tried first.
const PickleValue& select(const Bytes& bytes, const PickleValue& root, const std::string& key) {
  const auto* value = &root;
  std::string_view rest = key;
  while (!rest.empty()) {
    const auto* dict = dict_of(*value);
    HEED_CHECK(dict != nullptr, "key ({}) must lead through dicts in {}; {} is {}", key,
               bytes.source(), in_quotes(key.substr(0, key.size() - rest.size())),
               describe(*value));
    auto name = rest;
    value = find(*dict, name);
    while (value == nullptr && name.find('.') != std::string_view::npos) {
      name = name.substr(0, name.rfind('.'));
      value = find(*dict, name);
    }
    HEED_CHECK(value != nullptr, "key ({}) must be in {}, which holds {}", key, bytes.source(),
               some_names(*dict));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
  }
  return *value;
}

bool holds_tensors(const PickleObject& dict) {
  return std::any_of(dict.entries.begin(), dict.entries.end(),
                     [](const auto& entry) { return is_tensor(entry.second); });
}

/// Describes a value that should have been a dict, and says what to save instead: "a list: save
/// ...".
std::string instead_of_a_dict(const PickleValue& tagged) {
  const auto& value = untagged(tagged);
  if (is_tensor(value)) return "a tensor: save a dict that gives it a name instead";
  const auto* object = object_of(value);
  const bool has_items =
      object != nullptr && (object->kind == Kind::list || object->kind == Kind::tuple);
  return describe(value) + (has_items ? ": save a dict of its tensors by name instead"
                                      : ": save the module's state_dict() instead");
}

/// The dict of tensors in a file.
class StateDict {
 public:
  StateDict(const Bytes& bytes, const PickleValue& value, PickledTensors tensor_of)
      : bytes_(bytes), dict_(dict_of(value)), tensor_of_(std::move(tensor_of)) {
    HEED_CHECK(dict_ != nullptr, "{} must hold a dict of tensors; it holds {}", bytes_.source(),
               instead_of_a_dict(value));
    HEED_CHECK_FILE(dict_->entries.size() <= kMostNames, bytes_, "PyTorch",
                    "its names ({}) must be at most {}", dict_->entries.size(), kMostNames);
  }

  FileEntries read() {
    for (const auto& [key, value] : dict_->entries) {
      const auto* name = std::get_if<std::string_view>(&key);
      HEED_CHECK(name != nullptr, "{} must hold tensors by name; a name is {}", bytes_.source(),
                 describe(key));
      check_is_no_part(*name, value);
      add(std::string(*name), value);
    }
    return std::move(found_);
  }

 private:
  /// Throws if `value` is a dict that may hold the weights itself: if it has tensors and is not
  /// what Module.get_extra_state() returned, or if the outer dict has no tensors.
  void check_is_no_part(std::string_view name, const PickleValue& value) {
    const auto* inner = dict_of(value);
    if (inner == nullptr) return;
    const bool is_extra = ends_with(name, "_extra_state");
    HEED_CHECK(has_tensors(*dict_) && (is_extra || !has_tensors(*inner)),
               "{} must hold a dict of tensors; {} is a dict: options.key says "
               "which of {} to load",
               bytes_.source(), in_quotes(name), some_names(*dict_));
  }

  /// Remembers its result, because many names may have the same dict.
  bool has_tensors(const PickleObject& dict) {
    const auto [found, added] = has_tensors_.try_emplace(&dict, false);
    if (added) found->second = holds_tensors(dict);
    return found->second;
  }

  void add(const std::string& name, const PickleValue& value) {
    const bool is_free = is_tensor(value)
                             ? add_tensor(found_, name, tensor_of_(value, in_quotes(name)))
                             : found_.others.emplace(name, describe(value)).second &&
                                   found_.tensors.count(name) == 0;
    HEED_CHECK_FILE(is_free, bytes_, "PyTorch", "{} must be there once", in_quotes(name));
  }

  const Bytes& bytes_;
  const PickleObject* dict_;
  PickledTensors tensor_of_;
  std::unordered_map<const PickleObject*, bool> has_tensors_;
  FileEntries found_;
};

}  // namespace

FileEntries read_state_dict(const Bytes& bytes, const PickleValue& root, const std::string& key,
                            PickledTensors tensor_of) {
  return StateDict(bytes, select(bytes, root, key), std::move(tensor_of)).read();
}

}  // namespace heed::detail
