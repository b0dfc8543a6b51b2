// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/weight_index.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#define HEED_CHECK_INDEX(condition, place, ...) \
  HEED_CHECK_FILE(condition, bytes_, "index", place, __VA_ARGS__)

namespace heed::detail {

namespace {

using Json = nlohmann::json;

constexpr size_t kLongest = 100'000'000;  // bytes, as in the header of a safetensors file

/// Receives the index's JSON token by token, and keeps its "weight_map" and its "metadata".
class WeightMap : public nlohmann::json_sax<Json> {
 public:
  explicit WeightMap(const Bytes& bytes) : bytes_(bytes) {}

  std::map<std::string, std::string> shards;    // the file of each tensor
  std::map<std::string, std::string> metadata;  // its strings
  bool found = false;

  bool null() override { return other("null"); }
  bool boolean(bool /*value*/) override { return other("a boolean"); }
  bool number_integer(int64_t /*value*/) override { return other("a number"); }
  bool number_unsigned(uint64_t /*value*/) override { return other("a number"); }
  bool number_float(double /*value*/, const std::string& /*text*/) override {
    return other("a number");
  }
  bool binary(Json::binary_t& /*value*/) override { return other("binary data"); }

  bool string(std::string& value) override {
    if (is_metadata_ && depth_ == 2) {
      HEED_CHECK_INDEX(metadata.size() < kMostNames, "metadata must have at most {} strings",
                       kMostNames);
      metadata.emplace(name_, std::move(value));
      return true;
    }
    if (!in_map()) return other("a string");
    const bool added = shards.emplace(name_, std::move(value)).second;
    HEED_CHECK_INDEX(added, "weight_map: {} must be there once", in_quotes(name_));
    HEED_CHECK_INDEX(shards.size() <= kMostNames, "weight_map must have at most {} tensors",
                     kMostNames);
    return true;
  }

  bool start_object(size_t /*size*/) override {
    if (depth_ == 1 && is_map_) {
      HEED_CHECK_INDEX(!found, "{} must be there once", "weight_map");
      found = true;
    } else {
      other("an object");
    }
    ++depth_;
    return true;
  }

  bool key(std::string& name) override {
    if (depth_ == 1) {
      is_map_ = name == "weight_map";
      is_metadata_ = name == "metadata";
    }
    if (depth_ == 2) name_ = std::move(name);
    return true;
  }

  bool end_object() override {
    --depth_;
    return true;
  }

  bool start_array(size_t /*size*/) override {
    other("an array");
    ++depth_;
    return true;
  }

  bool end_array() override { return end_object(); }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    HEED_CHECK_INDEX(false, "byte {} must be of a JSON object in UTF-8", position);
  }

 private:
  bool in_map() const { return is_map_ && depth_ == 2; }

  /// Accepts any value beside the map. Throws for one in the map, whose values are all file names.
  bool other(const char* what) const {
    HEED_CHECK_INDEX(!is_map_ || depth_ == 0, "weight_map must map names to files; it holds {}",
                     what);
    return true;
  }

  const Bytes& bytes_;
  int64_t depth_ = 0;
  bool is_map_ = false, is_metadata_ = false;  // the last key at depth 1 was the map's, the other's
  std::string name_;
};

class Index {
 public:
  explicit Index(const Bytes& bytes) : bytes_(bytes) {}

  FileEntries tensors(const std::function<FileEntries(const std::string&)>& read) const {
    HEED_CHECK_INDEX(bytes_.size() <= kLongest, "its size ({}) must be at most {}", bytes_.size(),
                     kLongest);
    const auto text = bytes_.text(0, bytes_.size());
    WeightMap map(bytes_);
    Json::sax_parse(text.begin(), text.end(), &map);
    HEED_CHECK_INDEX(map.found, "it must have a {}", "weight_map");
    std::map<std::string, FileEntries> files;
    for (const auto& [name, shard] : map.shards) files[shard];
    for (auto& [shard, held] : files) {
      check_shard(shard);
      held = read(shard);
    }
    FileEntries found;
    for (const auto& [name, shard] : map.shards) {
      const bool is_there = move_entry(name, files[shard], found);
      HEED_CHECK_INDEX(is_there, "{} must hold tensor {}", in_quotes(shard), in_quotes(name));
    }
    for (auto& [shard, left] : files) {
      for (const auto& name : left.constants) move_second_name(name, left, found);
      found.packed.merge(left.packed);
      HEED_CHECK_INDEX(
          left.tensors.empty() && left.unheld.empty(),
          "weight_map must say of tensor {} that {} holds it",
          in_quotes(left.tensors.empty() ? *left.unheld.begin() : left.tensors.begin()->first),
          in_quotes(shard));
      for (auto& [name, what] : left.others) {
        if (found.tensors.count(name) == 0) found.others.emplace(name, std::move(what));
      }
    }
    add_second_names(found, map.metadata);
    return found;
  }

 private:
  /// Moves the entry of this name. Returns whether there was one.
  static bool move_entry(const std::string& name, FileEntries& from, FileEntries& to) {
    to.tensors.insert(from.tensors.extract(name));
    to.others.insert(from.others.extract(name));
    to.unheld.insert(from.unheld.extract(name));
    return to.tensors.count(name) > 0 || to.others.count(name) > 0;
  }

  /// Moves a tensor's second name, of which the map need not know; drops it if it is taken.
  static void move_second_name(const std::string& name, FileEntries& from, FileEntries& to) {
    auto tensor = from.tensors.extract(name);
    if (!tensor || to.others.count(name) > 0) return;
    if (to.tensors.insert(std::move(tensor)).inserted) to.constants.insert(name);
  }

  void check_shard(const std::string& shard) const {
    const bool plain = !shard.empty() && shard != "." && shard != ".." &&
                       shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    HEED_CHECK_INDEX(plain, "weight_map: {} must be the name of a file beside the index",
                     in_quotes(shard));
  }

  const Bytes& bytes_;
};

}  // namespace

bool is_weight_index(std::string_view file) {
  const auto first = file.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && file[first] == '{';
}

FileEntries read_weight_index(const Bytes& index,
                              const std::function<FileEntries(const std::string&)>& read) {
  return Index(index).tensors(read);
}

}  // namespace heed::detail
