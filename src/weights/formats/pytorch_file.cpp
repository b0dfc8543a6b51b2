#include "weights/formats/pytorch_file.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <vector>

#include "weights/formats/archive.h"
#include "weights/formats/pickle.h"
#include "weights/formats/pickled_tensors.h"
#include "weights/formats/script_module.h"

namespace heed::detail {

namespace {

using Kind = PickleObject::Kind;

/// An archive and the pickle in it, which is not run.
struct SavedObject {
  explicit SavedObject(const ZipDirectory& directory)
      : archive(directory),
        text(archive.stored(kRecord)),
        pickle(archive.bytes().path(), kRecord, text, memory_limit(archive.bytes())) {}

  static constexpr const char* kRecord = "data.pkl";
  Archive archive;
  std::string text;  // which the pickle shares
  Pickle pickle;
};

const PickleObject* dict_of(const PickleValue& value) {
  const auto* object = object_of(value);
  return object != nullptr && object->kind == Kind::dict ? object : nullptr;
}

/// "epoch", "model", "optimizer": some of a dict's names.
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

/// What the dotted path leads to; a name may have dots itself.
const PickleValue& select(const Bytes& bytes, const PickleValue& root, const std::string& key) {
  const auto* value = &root;
  std::string_view rest = key;
  while (!rest.empty()) {
    const auto* dict = dict_of(*value);
    HEED_CHECK(dict != nullptr, "key ({}) must lead through dicts in path ({}); {} is {}", key,
               bytes.path(), in_quotes(key.substr(0, key.size() - rest.size())), describe(*value));
    auto name = rest;
    value = find(*dict, name);
    while (value == nullptr && name.find('.') != std::string_view::npos) {
      name = name.substr(0, name.rfind('.'));
      value = find(*dict, name);
    }
    HEED_CHECK(value != nullptr, "key ({}) must be in path ({}), which holds {}", key, bytes.path(),
               some_names(*dict));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
  }
  return *value;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool holds_tensors(const PickleObject& dict) {
  return std::any_of(dict.entries.begin(), dict.entries.end(),
                     [](const auto& entry) { return is_tensor(entry.second); });
}

/// Weights in a dict of their own, unless it is what Module.get_extra_state() returned.
bool is_checkpoint_part(std::string_view name, const PickleObject& dict) {
  return holds_tensors(dict) && !ends_with(name, "_extra_state");
}

FileEntries state_dict(const Archive& archive, const PickleValue& value) {
  const auto& bytes = archive.bytes();
  const auto* dict = dict_of(value);
  HEED_CHECK(dict != nullptr,
             "path ({}) must hold a dict of tensors; it holds {}: save the module's "
             "state_dict() instead",
             bytes.path(), describe(value));
  const bool has_tensors = holds_tensors(*dict);
  const PickledTensors tensor_of(archive);
  FileEntries found;
  for (const auto& [key, entry] : dict->entries) {
    const auto* name = std::get_if<std::string_view>(&key);
    HEED_CHECK(name != nullptr, "path ({}) must hold tensors by name; a name is {}", bytes.path(),
               describe(key));
    const auto* inner = dict_of(entry);
    HEED_CHECK(inner == nullptr || (has_tensors && !is_checkpoint_part(*name, *inner)),
               "path ({}) must hold a dict of tensors; {} is a dict: options.key says "
               "which of {} to load",
               bytes.path(), in_quotes(*name), some_names(*dict));
    const std::string text(*name);
    const bool twice = found.tensors.count(text) + found.others.count(text) > 0;
    HEED_CHECK_FILE(!twice, bytes, "PyTorch", "{} must be there once", in_quotes(text));
    if (is_tensor(entry)) {
      found.tensors.emplace(text, tensor_of(entry, in_quotes(text)));
    } else {
      found.others.emplace(text, describe(entry));
    }
  }
  return found;
}

}  // namespace

FileEntries read_pytorch_file(const ZipDirectory& directory, const std::string& key) {
  const SavedObject saved(directory);
  const auto& bytes = directory.bytes();
  const auto& root = saved.pickle.root();
  if (callee_of(root).rfind("__torch__.", 0) != 0) {
    return state_dict(saved.archive, select(bytes, root, key));
  }
  HEED_CHECK(key.empty(),
             "key ({}) must be empty: path ({}) is a TorchScript archive; "
             "options.prefix selects names",
             key, bytes.path());
  return {read_script_module(saved.archive, root), {}};
}

StoredTensor read_saved_tensor(const ZipDirectory& directory, const std::string& place) {
  const SavedObject saved(directory);
  return PickledTensors(saved.archive).stored(saved.pickle.root(), place);
}

}  // namespace heed::detail
