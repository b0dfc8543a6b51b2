// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/script_module.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weights/formats/pickled_tensors.h"

#define HEED_CHECK_SCRIPT(condition, text, ...) \
  HEED_CHECK_FILE(condition, archive_.bytes(), "PyTorch", text, __VA_ARGS__)

namespace heed::detail {

namespace {

using Kind = PickleObject::Kind;
using Declared = std::vector<std::string_view>;  // names, sorted

/// The parameters and buffers that the archive's code declares for each class of modules.
class Declarations {
 public:
  explicit Declarations(const Archive& archive) : archive_(archive) {}

  /// The names that a class declares; empty if the class is not declared. "__torch__.a.b.C" is
  /// declared in the record code/__torch__/a/b.py as "class C(Module):".
  const Declared& of(std::string_view name) {
    const auto dot = std::min(name.rfind('.'), name.size());
    const auto file = std::string(name.substr(0, dot));
    const auto [found, added] = classes_.try_emplace(file);
    if (added) found->second = parsed(file);
    const auto declared = found->second.find(name.substr(std::min(dot + 1, name.size())));
    static const Declared none;
    return declared == found->second.end() ? none : declared->second;
  }

 private:
  using Classes = std::map<std::string_view, Declared>;

  Classes parsed(std::string file) {
    std::replace(file.begin(), file.end(), '.', '/');
    const auto record = "code/" + file + ".py";
    if (!archive_.has(record)) return {};
    std::string_view code = code_.emplace_back(archive_.text(record));
    HEED_CHECK_SCRIPT(code.size() <= code_left_, "its code must be at most {} bytes",
                      ZipDirectory::kMostCode);
    code_left_ -= code.size();
    Classes classes;
    Declared* names = nullptr;  // names of the class that the line is in
    while (!code.empty()) {
      const auto line = code.substr(0, code.find('\n'));
      code.remove_prefix(std::min(line.size() + 1, code.size()));
      if (line.rfind("class ", 0) == 0) {
        constexpr std::string_view kModule = "(Module):";
        const auto head = line.substr(std::string_view("class ").size());
        const bool is_module =
            head.size() >= kModule.size() && head.substr(head.size() - kModule.size()) == kModule;
        names = is_module ? &classes[head.substr(0, head.size() - kModule.size())] : nullptr;
      } else if (names != nullptr && (line.rfind("  __parameters__ = ", 0) == 0 ||
                                      line.rfind("  __buffers__ = ", 0) == 0)) {
        add_quoted(line, *names);
      }
    }
    for (auto& [name, declared] : classes) std::sort(declared.begin(), declared.end());
    return classes;
  }

  /// Adds the quoted names of a list such as `["weight", "bias", ]`.
  void add_quoted(std::string_view list, Declared& names) const {
    size_t begin = 0;
    while ((begin = list.find('"', begin)) != std::string_view::npos) {
      const auto end = list.find('"', begin + 1);
      if (end == std::string_view::npos) return;
      names.push_back(list.substr(begin + 1, end - begin - 1));
      HEED_CHECK_SCRIPT(names.size() <= kMostNames, "a class must declare at most {} names",
                        kMostNames);
      begin = end + 1;
    }
  }

  const Archive& archive_;
  size_t code_left_ = ZipDirectory::kMostCode;
  std::map<std::string, Classes> classes_;  // by file
  std::deque<std::string> code_;            // the names point into it
};

/// Joins "a" and "b" to "a.b".
std::string joined(const std::string& name, std::string_view inner) {
  return name.empty() ? std::string(inner) : (name + ".").append(inner);
}

class Walk {
 public:
  explicit Walk(const Archive& archive)
      : archive_(archive),
        declarations_(archive),
        tensor_of_(archive),
        memory_left_(memory_limit(archive.bytes())) {}

  FileEntries read(const PickleValue& module) {
    visit_object(module, "", 0);
    const bool has_names = !found_.tensors.empty() || !found_.others.empty();
    if (archive_.has(kConstants)) add_constants();
    // Freezing leaves a module no attributes at all.
    HEED_CHECK(has_names || found_.tensors.empty() || has_attributes(module),
               "{} must hold weights by name; those of a frozen module (torch.jit.freeze, "
               "optimize_for_inference) are constants of its code: export the module before it is "
               "frozen",
               archive_.bytes().source());
    return std::move(found_);
  }

 private:
  static constexpr const char* kConstants = "constants.pkl";
  static constexpr size_t kTensor = 1000;  // bytes that a tensor or an object takes at most
  static constexpr size_t kItem = 8;       // and bytes that any item of a list counts

  static bool has_attributes(const PickleValue& module) {
    const auto* state = object_of(object_of(module)->state);
    return state != nullptr && !state->entries.empty();
  }

  /// Adds the tensors in a value whose name is `name`.
  void visit(const PickleValue& value, const std::string& name, int depth) {
    const auto* object = object_of(value);
    if (object == nullptr) return;
    if (is_tensor(value)) {
      add(name, value);
      found_.constants.insert(name);
    } else if (object->kind == Kind::call) {
      const auto function = callee_of(value);
      if (function.rfind("__torch__.", 0) == 0) {
        visit_object(value, name, depth + 1);
      } else if (&untagged(value) != &value) {
        check_depth(name, depth);
        visit(untagged(value), name, depth + 1);
      }
    } else {
      visit_items(*object, name, depth + 1);
    }
  }

  void visit_items(const PickleObject& object, const std::string& name, int depth) {
    check_depth(name, depth);
    spend(kItem * (object.items.size() + object.entries.size()));
    for (size_t i = 0; i < object.items.size(); ++i) {
      if (object_of(object.items[i]) != nullptr) {
        visit(object.items[i], joined(name, std::to_string(i)), depth);
      }
    }
    for (size_t i = 0; i < object.entries.size(); ++i) {
      const auto& [key, value] = object.entries[i];
      if (object_of(value) == nullptr) continue;
      const auto* text = std::get_if<std::string_view>(&key);
      const auto* number = std::get_if<int64_t>(&key);
      const auto place = std::to_string(number == nullptr ? static_cast<int64_t>(i) : *number);
      visit(value, joined(name, text == nullptr ? place : *text), depth);
    }
  }

  /// Adds the tensors in an object of one of the archive's classes.
  void visit_object(const PickleValue& value, const std::string& name, int depth) {
    check_depth(name, depth);
    spend(kTensor + name.size());
    const auto& object = *object_of(value);
    const auto* state = object_of(object.state);
    if (state == nullptr || state->kind != Kind::dict) {  // what its __getstate__ returned
      return visit(object.state, name, depth + 1);
    }
    spend(kItem * state->entries.size());
    const auto& declared = declared_in(value);
    for (const auto& [key, attribute] : state->entries) {
      const auto* own = std::get_if<std::string_view>(&key);
      HEED_CHECK_SCRIPT(own != nullptr, "module {}: an attribute's name must be a string",
                        in_quotes(name));
      if (!std::binary_search(declared.begin(), declared.end(), *own)) {
        if (object_of(attribute) != nullptr) visit(attribute, joined(name, *own), depth);
      } else if (!std::holds_alternative<std::monostate>(attribute)) {
        add(joined(name, *own), attribute);
      }
    }
  }

  const Declared& declared_in(const PickleValue& object) {
    const auto*& names = declared_[object_of(object_of(object)->callee)];
    if (names == nullptr) names = &declarations_.of(callee_of(object));
    return *names;
  }

  void add(const std::string& name, const PickleValue& value) {
    spend(kTensor + name.size());
    const bool is_free = add_tensor(found_, name, tensor_of_(value, in_quotes(name)));
    HEED_CHECK_SCRIPT(is_free, "{} must be there once", in_quotes(name));
  }

  /// Adds the constants of the code, which calls them CONSTANTS.c0 and so on.
  void add_constants() {
    const auto text = archive_.stored(kConstants);
    const Pickle pickle(archive_.bytes().source(), kConstants, text, memory_left_);
    const auto* constants = object_of(pickle.root());
    if (constants == nullptr) return;
    tensor_of_ = PickledTensors(archive_, "constants/");
    for (size_t i = 0; i < constants->items.size(); ++i) {
      visit(constants->items[i], "CONSTANTS.c" + std::to_string(i), 0);
    }
  }

  void check_depth(const std::string& name, int depth) const {
    constexpr int kDeepest = 200;  // a file may say that a module holds itself
    HEED_CHECK_SCRIPT(depth < kDeepest, "module {}: modules must not be nested deeper",
                      in_quotes(name));
  }

  /// Limits memory. Modules may share modules that share others, so that there could be many more
  /// names than the file has.
  void spend(size_t memory) {
    HEED_CHECK_SCRIPT(memory <= memory_left_, "its modules must not take {} bytes more", memory);
    memory_left_ -= memory;
  }

  const Archive& archive_;
  Declarations declarations_;
  PickledTensors tensor_of_;
  size_t memory_left_;
  std::unordered_map<const PickleObject*, const Declared*> declared_;  // by class
  FileEntries found_;
};

}  // namespace

FileEntries read_script_module(const Archive& archive, const PickleValue& module) {
  return Walk(archive).read(module);
}

}  // namespace heed::detail
