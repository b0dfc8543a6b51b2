#include "weights/formats/script_module.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "weights/formats/pickled_tensors.h"

namespace heed::detail {

namespace {

/// What the code in the archive declares of a class.
struct ScriptClass {
  bool is_module = false;
  std::set<std::string, std::less<>> tensors;  // names of parameters and buffers
};

/// The line that begins with `start`, at or after `from`; what follows `start` in it.
std::string_view line_after(std::string_view code, std::string_view start, size_t from) {
  for (auto at = from; at < code.size();) {
    const auto end = std::min(code.find('\n', at), code.size());
    if (code.substr(at, start.size()) == start) {
      return code.substr(at + start.size(), end - at - start.size());
    }
    at = end + 1;
  }
  return {};
}

/// Adds what a list as `["weight", "bias", ]` has in quotes.
void add_quoted(std::string_view list, std::set<std::string, std::less<>>& names) {
  size_t begin = 0;
  while ((begin = list.find('"', begin)) != std::string_view::npos) {
    const auto end = list.find('"', begin + 1);
    if (end == std::string_view::npos) return;
    names.emplace(list.substr(begin + 1, end - begin - 1));
    begin = end + 1;
  }
}

class Walk {
 public:
  explicit Walk(const Archive& archive)
      : archive_(archive), tensor_of_(archive), memory_left_(memory_limit(archive.bytes())) {}

  /// Adds the tensors of `module` and of the modules in it, their names after `prefix`.
  void visit(const PickleValue& module, const std::string& prefix, int depth) {
    constexpr int kDeepest = 200;  // a file may say that a module holds itself
    HEED_CHECK_FILE(depth < kDeepest, archive_.bytes(), "PyTorch",
                    "module {}: modules must not be nested deeper", in_quotes(prefix));
    spend(prefix);
    const auto& declared = class_named(callee_of(module));
    const auto* state = object_of(object_of(module)->state);
    HEED_CHECK_FILE(state != nullptr && state->kind == PickleObject::Kind::dict, archive_.bytes(),
                    "PyTorch", "module {} must have its attributes in a dict", in_quotes(prefix));
    for (const auto& [key, value] : state->entries) {
      const auto* name = std::get_if<std::string_view>(&key);
      HEED_CHECK_FILE(name != nullptr, archive_.bytes(), "PyTorch",
                      "module {}: an attribute's name must be a string", in_quotes(prefix));
      const auto full = prefix + std::string(*name);
      if (declared.tensors.find(*name) != declared.tensors.end()) {
        if (!std::holds_alternative<std::monostate>(value)) add(full, value);
      } else if (is_module(value)) {
        visit(value, full + ".", depth + 1);
      }
    }
  }

  NamedTensors tensors;

 private:
  void add(const std::string& name, const PickleValue& value) {
    spend(name);
    const bool added = tensors.emplace(name, tensor_of_(value, in_quotes(name))).second;
    HEED_CHECK_FILE(added, archive_.bytes(), "PyTorch", "{} must be there once", in_quotes(name));
  }

  bool is_module(const PickleValue& value) {
    const auto name = callee_of(value);
    return name.rfind("__torch__.", 0) == 0 && class_named(name).is_module;
  }

  /// "__torch__.a.b.C" is declared in the record code/__torch__/a/b.py as "class C(Module):".
  const ScriptClass& class_named(const std::string& name) {
    const auto [found, added] = classes_.try_emplace(name);
    if (!added) return found->second;
    const auto dot = name.rfind('.');
    auto file = name.substr(0, dot);
    std::replace(file.begin(), file.end(), '.', '/');
    const auto& code = code_of("code/" + file + ".py");
    const auto start = "class " + name.substr(dot + 1) + "(Module):\n";
    auto at = code.rfind(start, 0) == 0 ? 0 : code.find("\n" + start);
    if (at == std::string::npos) return found->second;
    at += start.size() + (at == 0 ? 0 : 1);
    found->second.is_module = true;
    const auto body = std::string_view(code).substr(at, code.find("\nclass ", at) - at);
    add_quoted(line_after(body, "  __parameters__ = ", 0), found->second.tensors);
    add_quoted(line_after(body, "  __buffers__ = ", 0), found->second.tensors);
    return found->second;
  }

  const std::string& code_of(const std::string& record) {
    const auto [found, added] = code_.try_emplace(record);
    if (added && archive_.has(record)) {
      found->second = archive_.text(record);
      spend(found->second);
    }
    return found->second;
  }

  /// Modules may be shared, and shared again below: their names could be many more than the file's.
  void spend(const std::string& text) {
    constexpr size_t kTensor = 1000;  // bytes that a tensor or a module takes beside its name
    const auto memory = kTensor + text.size();
    HEED_CHECK_FILE(memory <= memory_left_, archive_.bytes(), "PyTorch",
                    "its modules must not take {} bytes more", memory);
    memory_left_ -= memory;
  }

  const Archive& archive_;
  PickledTensors tensor_of_;
  size_t memory_left_;
  std::map<std::string, ScriptClass> classes_;
  std::map<std::string, std::string> code_;  // by record
};

}  // namespace

NamedTensors read_script_module(const Archive& archive, const PickleValue& module) {
  Walk walk(archive);
  walk.visit(module, "", 0);
  return std::move(walk.tensors);
}

}  // namespace heed::detail
