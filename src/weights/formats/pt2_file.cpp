// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/pt2_file.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "weights/formats/archive.h"
#include "weights/formats/json_entries.h"
#include "weights/formats/pytorch_dtypes.h"
#include "weights/formats/pytorch_file.h"

#define HEED_CHECK_PT2(condition, text, ...) \
  HEED_CHECK_STORED(condition, bytes_, place_, text, __VA_ARGS__)

namespace heed::detail {

namespace {

using Json = nlohmann::json;

// torch/csrc/export/pt2_archive_constants.h. Before PyTorch 2.8, records had no common folder, and
// torch.export.save wrote the records kOld*.
constexpr std::string_view kWeights = "data/weights/", kConstants = "data/constants/";
constexpr std::string_view kCompiled = "data/aotinductor/", kPrograms = "models/";
constexpr std::string_view kOldProgram = "serialized_exported_program.json";
constexpr std::string_view kOldWeights = "serialized_state_dict.pt";
constexpr std::string_view kOldConstants = "serialized_constants.pt";

/// The text between `start`, with which the name must begin, and the next `end`; none if one is
/// missing.
std::optional<std::string_view> between(std::string_view name, std::string_view start,
                                        std::string_view end) {
  if (name.substr(0, start.size()) != start) return std::nullopt;
  const auto at = name.find(end, start.size());
  if (at == std::string_view::npos) return std::nullopt;
  return name.substr(start.size(), at - start.size());
}

/// The folder of all records, such as "model/"; empty if they are in no folder. None if the
/// archive is not a PT2 archive.
std::optional<std::string_view> root_of(const ZipDirectory& directory) {
  for (const auto root : {directory.top(), std::string_view()}) {
    const auto format = directory.find(std::string(root) + "archive_format");
    if (format && directory.bytes().text(format->offset, format->size) == "pt2") return root;
  }
  if (directory.find(kOldProgram)) return std::string_view();
  return std::nullopt;
}

/// One tensor as a config describes it, with what its errors name.
class Payload {
 public:
  Payload(const Bytes& bytes, const std::string& name, const Json& json)
      : bytes_(bytes), place_(in_quotes(name)), json_(json) {}

  const std::string& place() const { return place_; }

  /// The name of the record, from torch.export's {"path_name": "weight_0", "use_pickle": false,
  /// "tensor_meta": {...}}.
  std::string record() const {
    const auto* name = member(json_, "path_name");
    HEED_CHECK_PT2(name != nullptr && name->is_string(), "it must have a {}", "path_name");
    return name->get<std::string>();
  }

  bool is_pickle() const {
    const auto* pickle = member(json_, "use_pickle");
    HEED_CHECK_PT2(pickle != nullptr && pickle->is_boolean(), "it must have a {}", "use_pickle");
    return pickle->get<bool>();
  }

  /// The tensor in a record of raw numbers.
  std::variant<StoredTensor, Unheld> raw(const Place& record) const {
    const auto* meta = member(json_, "tensor_meta");
    HEED_CHECK_PT2(meta != nullptr && meta->is_object(), "it must have a {}", "tensor_meta");
    constexpr int64_t kStrided = 7;  // of schema.py's Layout
    const auto layout = number(member(*meta, "layout"), "layout");
    if (layout != kStrided) return Unheld{fmt::format("a tensor of layout {}", layout)};
    const auto type = number(member(*meta, "dtype"), "dtype");
    const auto dtype = dtype_numbered(type);
    if (!dtype) return Unheld{fmt::format("a tensor of dtype {}", type)};
    const auto width = c10::elementSize(*dtype);
    HEED_CHECK_PT2(record.size % width == 0, "its record ({} bytes) must hold elements of {} bytes",
                   record.size, width);
    return StoredTensor{record, *dtype, number(member(*meta, "storage_offset"), "offset"),
                        numbers(member(*meta, "sizes"), "sizes"),
                        numbers(member(*meta, "strides"), "strides")};
  }

  /// The name of the record, from AOTInductor's ["weight_0", sizes, strides, offset].
  std::string compiled_record() const {
    HEED_CHECK_PT2(json_.is_array() && json_.size() == 4 && json_[0].is_string(),
                   "it must be a {}, sizes, strides and an offset", "record");
    return json_[0].get<std::string>();
  }

  /// The tensor that AOTInductor describes, in the storage of `saved`.
  StoredTensor compiled(const StoredTensor& saved) const {
    return {saved.storage, saved.dtype, number(&json_[3], "offset"), numbers(&json_[1], "sizes"),
            numbers(&json_[2], "strides")};
  }

 private:
  static const Json* member(const Json& object, const char* name) {
    const auto found = object.find(name);
    return found == object.end() ? nullptr : &*found;
  }

  /// Reads 3 or {"as_int": 3}. Refuses an expression, whose value is not known before the program
  /// runs.
  int64_t number(const Json* value, const char* what) const {
    if (value != nullptr && value->is_object() && value->size() == 1) {
      value = member(*value, "as_int");
    }
    const bool fits = value != nullptr && value->is_number_unsigned() &&
                      value->get<uint64_t>() <= uint64_t{INT64_MAX};
    HEED_CHECK_PT2(fits, "its {} must be integers of 0 or more", what);
    return value->get<int64_t>();
  }

  std::vector<int64_t> numbers(const Json* value, const char* what) const {
    HEED_CHECK_PT2(value != nullptr && value->is_array() && value->size() <= kMostDims,
                   "its {} must be an array of at most {}", what, kMostDims);
    std::vector<int64_t> result;
    result.reserve(value->size());
    for (const auto& each : *value) result.push_back(number(&each, what));
    return result;
  }

  const Bytes& bytes_;
  std::string place_;
  const Json& json_;
};

class Package {
 public:
  Package(const ZipDirectory& directory, std::string_view root)
      : directory_(directory),
        bytes_(directory.bytes()),
        root_(root),
        memory_left_(memory_limit(bytes_)) {
    if (const auto order = find("byteorder")) check_byte_order(bytes_, text(*order));
    if (const auto place = find("archive_version")) {
      const auto version = text(*place);
      HEED_CHECK_FILE(version == "0", bytes_, "PyTorch",
                      "archive_version ({}) must be \"0\", which heed reads", in_quotes(version));
    }
  }

  FileEntries read(const std::string& key) {
    if (find(kOldProgram)) {
      check_key(key, {"model"});
      read_pickles(kOldWeights, kOldConstants);
    } else {
      read_model(check_key(key, models()));
    }
    return std::move(found_);
  }

 private:
  /// A tensor in a record that torch.save wrote, and the record's bytes.
  struct Saved {
    Bytes bytes;
    std::variant<StoredTensor, Unheld> tensor;
  };

  std::set<std::string> models() const {
    std::set<std::string> names;
    for (const auto& record : directory_.records()) {
      if (!begins_with(record.name, root_)) continue;
      const auto name = record.name.substr(root_.size());
      auto model = between(name, kPrograms, ".json");
      if (!model) model = between(name, kCompiled, "/");
      if (model) names.emplace(*model);
    }
    return names;
  }

  /// Returns the name of the model that `key` selects; an empty key selects the only one.
  std::string check_key(const std::string& key, const std::set<std::string>& models) const {
    HEED_CHECK(!models.empty(), "{} must hold a program of torch.export or AOTInductor",
               bytes_.source());
    std::vector<std::string> names;
    names.reserve(models.size());
    for (const auto& model : models) names.push_back(in_quotes(model));
    const auto list = c10::Join(", ", names);
    HEED_CHECK(!key.empty() || models.size() == 1,
               "{} must hold one model; options.key says which of {} to load", bytes_.source(),
               list);
    HEED_CHECK(key.empty() || models.count(key) > 0, "key ({}) must be in {}, which holds {}", key,
               bytes_.source(), list);
    return key.empty() ? *models.begin() : key;
  }

  void read_model(const std::string& model) {
    const auto weights = std::string(kWeights) + model, constants = std::string(kConstants) + model;
    const auto compiled = fmt::format("{}{}/weights_config.json", kCompiled, model);
    // PyTorch 2.8 writes weights and constants as pickles.
    if (find(weights + ".pt")) return read_pickles(weights + ".pt", constants + ".pt");
    if (find(fmt::format("{}{}.json", kPrograms, model))) {
      read_config(weights + "_weights_config.json", kWeights);
      read_config(constants + "_constants_config.json", kConstants);
    } else if (find(compiled)) {
      for_each_entry(part(compiled), "", [&](const auto& name, const auto& value) {
        add_compiled(name, Payload(bytes_, name, value));
      });
    } else {
      HEED_CHECK(false,
                 "{} must hold weights by name; those of {} are left to its compiled code: "
                 "package it with aot_inductor.package_constants_in_so=False and "
                 "aot_inductor.package_constants_on_disk_format=\"pickle_weights\", or save the "
                 "program with torch.export.save",
                 bytes_.source(), in_quotes(model));
    }
  }

  /// Reads the records in which torch.save wrote state_dicts. A program without constants may have
  /// an empty record of them.
  void read_pickles(std::string_view weights, std::string_view constants) {
    found_ = read_pytorch_file(ZipDirectory(part(weights)), "");
    const auto place = find(constants);
    if (!place || place->size == 0) return;
    const auto more = read_pytorch_file(ZipDirectory(part(constants)), "");
    for (const auto& [name, tensor] : more.tensors) add(name, tensor, kConstants);
    for (const auto& [name, what] : more.others) {
      if (more.unheld.count(name) == 0) {
        add_other(name, what);
      } else {
        add(name, Unheld{what}, kConstants);
      }
    }
  }

  void read_config(const std::string& config, std::string_view folder) {
    for_each_entry(part(config), "config", [&](const auto& name, const auto& value) {
      add_exported(name, Payload(bytes_, name, value), folder);
    });
  }

  void add_exported(const std::string& name, const Payload& payload, std::string_view folder) {
    const auto file = payload.record();
    const auto record = std::string(folder) + file;
    if (folder == kConstants && !begins_with(file, "tensor_")) {
      add_other(name, "an object, which is not read");
    } else if (payload.is_pickle()) {
      const auto& [bytes, tensor] = saved(record, payload.place());
      add(name, made(bytes, tensor, payload.place()), folder);
    } else {
      add(name, made(bytes_, payload.raw(place_of(record)), payload.place()), folder);
    }
  }

  void add_compiled(const std::string& name, const Payload& payload) {
    const auto record = std::string(kWeights) + payload.compiled_record();
    const auto& [bytes, tensor] = saved(record, payload.place());
    const auto* whole = std::get_if<StoredTensor>(&tensor);
    add(name, made(bytes, whole == nullptr ? tensor : payload.compiled(*whole), payload.place()),
        kWeights);
  }

  static std::variant<at::Tensor, Unheld> made(const Bytes& bytes,
                                               const std::variant<StoredTensor, Unheld>& tensor,
                                               const std::string& place) {
    if (const auto* unheld = std::get_if<Unheld>(&tensor)) return *unheld;
    return tensor_in(bytes, std::get<StoredTensor>(tensor), place);
  }

  const Saved& saved(const std::string& record, const std::string& place) {
    const auto found = saved_.find(record);
    if (found != saved_.end()) return found->second;
    const auto bytes = part(record);
    auto tensor = read_saved_tensor(ZipDirectory(bytes), place);
    return saved_.emplace(record, Saved{bytes, std::move(tensor)}).first->second;
  }

  void add(const std::string& name, const std::variant<at::Tensor, Unheld>& tensor,
           std::string_view folder) {
    spend(name);
    HEED_CHECK_FILE(add_tensor(found_, name, tensor), bytes_, "PyTorch", "{} must be there once",
                    in_quotes(name));
    if (folder == kConstants) found_.constants.insert(name);
  }

  void add_other(const std::string& name, const std::string& what) {
    spend(name);
    const bool added = found_.others.emplace(name, what).second;
    HEED_CHECK_FILE(added && found_.tensors.count(name) == 0, bytes_, "PyTorch",
                    "{} must be there once", in_quotes(name));
  }

  /// Limits the memory of tensors: many names may share a record, so that a small file could have
  /// very many tensors.
  void spend(const std::string& name) {
    constexpr size_t kTensor = 1000;  // bytes that a tensor takes beside its name
    const auto memory = kTensor + name.size();
    HEED_CHECK_FILE(memory <= memory_left_, bytes_, "PyTorch",
                    "its tensors must not take {} bytes more", memory);
    memory_left_ -= memory;
  }

  std::optional<Place> find(std::string_view record) const {
    return directory_.find(std::string(root_) + std::string(record));
  }

  Place place_of(std::string_view record) const {
    const auto place = find(record);
    HEED_CHECK_FILE(place, bytes_, "PyTorch", "it must hold a record {}", in_quotes(record));
    return *place;
  }

  Bytes part(std::string_view record) const {
    return bytes_.part(place_of(record), in_quotes(record));
  }

  std::string text(const Place& place) const { return bytes_.text(place.offset, place.size); }

  const ZipDirectory& directory_;
  const Bytes& bytes_;
  std::string_view root_;
  size_t memory_left_;
  std::map<std::string, Saved> saved_;  // by record
  FileEntries found_;
};

}  // namespace

bool is_pt2(const ZipDirectory& directory) { return root_of(directory).has_value(); }

FileEntries read_pt2_file(const ZipDirectory& directory, const std::string& key) {
  const auto root = root_of(directory);
  HEED_CHECK_FILE(root, directory.bytes(), "PyTorch", "it must hold a record {}", "archive_format");
  return Package(directory, *root).read(key);
}

}  // namespace heed::detail
