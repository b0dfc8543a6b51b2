// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>
#include <heed/weights.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/pickles.h"
#include "support/weight_files.h"

/// Archives with one weight, as torch.export.save and AOTInductor write them.

namespace heed::test::pt2_file {

using namespace pickles;
using std::string_literals::operator""s;

inline const std::string kWeights = "data/weights/model_weights_config.json";
inline const std::string kConstants = "data/constants/model_constants_config.json";
inline const std::string kCompiled = "data/aotinductor/model/weights_config.json";

/// [{"as_int": 2}, {"as_int": 3}]
inline std::string sizes(const std::vector<int64_t>& values) {
  std::string json;
  for (const auto value : values) {
    json += (json.empty() ? "" : ", ") + R"({"as_int": )"s + std::to_string(value) + "}";
  }
  return "[" + json + "]";
}

/// A tensor's entry in a config, as torch.export.save writes it.
struct Entry {
  std::string record = "weight_0";
  std::vector<int64_t> shape = {2, 3}, strides = {3, 1};
  int64_t offset = 0, dtype = 7, layout = 7;
  bool pickled = false;

  std::string json() const {
    return R"({"path_name": ")" + record + R"(", "is_param": true, "use_pickle": )" +
           (pickled ? "true" : "false") + R"(, "tensor_meta": {"dtype": )" + std::to_string(dtype) +
           R"(, "sizes": )" + sizes(shape) +
           R"(, "requires_grad": true, "device": {"type": "cpu", "index": null}, "strides": )" +
           sizes(strides) + R"(, "storage_offset": {"as_int": )" + std::to_string(offset) +
           R"(}, "layout": )" + std::to_string(layout) + "}}";
  }
};

inline std::string config(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string json;
  for (const auto& [name, entry] : entries) {
    json += (json.empty() ? "\"" : ", \"") + name + "\": " + entry;
  }
  return R"({"config": {)" + json + "}}";
}

/// A program with a weight x, [[0, 1, 2], [3, 4, 5]], and what `more` adds or replaces.
inline Records exported(const Records& more = {}) {
  Records records{{"archive_format", "pt2"},
                  {"archive_version", "0"},
                  {"byteorder", "little"},
                  {"models/model.json", "{}"},
                  {"data/weights/weight_0", numbers_to(6)},
                  {kWeights, config({{"x", Entry().json()}})},
                  {kConstants, config({})}};
  for (const auto& [name, bytes] : more) records[name] = bytes;
  return records;
}

/// A program that AOTInductor has compiled, with its weights in data/weights.
inline Records compiled(const std::string& config, const std::string& weight) {
  return {{"archive_format", "pt2"},
          {"data/aotinductor/model/a.wrapper.so",
           "\x7f"
           "ELF"},
          {"data/weights/weight_0", archive_of(saved(weight))},
          {kCompiled, config}};
}

class Pt2File : public WeightFiles {
 protected:
  void write_archive(const Records& records) const { write(archive_of(records)); }

  /// The error of reading `path_` that names one of its records, from that name on.
  std::string record_error() const {
    const auto error = value_error([&] { read_weights(path_); });
    const auto start = "read_weights: path (" + path_ + ", ";
    EXPECT_EQ(error.substr(0, start.size()), start) << error;
    return error.substr(std::min(start.size(), error.size()));
  }

  /// The error of a program whose weight x has this entry, after its name.
  std::string entry_error(const std::string& entry) const {
    write_archive(exported({{kWeights, config({{"x", entry}})}}));
    const auto error = load_error();
    const std::string start = "must be a sound PyTorch file; \"x\": ";
    EXPECT_EQ(error.substr(0, start.size()), start);
    return error.substr(std::min(start.size(), error.size()));
  }
};

}  // namespace heed::test::pt2_file
