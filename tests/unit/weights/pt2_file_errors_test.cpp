// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/weights.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/pickles.h"
#include "support/weight_files.h"
#include "unit/weights/pt2_archives.h"

namespace heed::test::pt2_file {
namespace {

TEST_F(Pt2File, WhoseTensorsReachOutsideIsRefused) {
  const auto error = [&](const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                         int64_t offset) {
    Entry entry;
    entry.shape = shape, entry.strides = strides, entry.offset = offset;
    return entry_error(entry.json());
  };
  const auto place = [](const std::string& sizes, const std::string& strides, int64_t offset) {
    return "sizes [" + sizes + "], strides [" + strides + "] and offset " + std::to_string(offset) +
           " must fit its storage of 6 elements";
  };
  EXPECT_EQ(error({7}, {1}, 0), place("7", "1", 0));
  EXPECT_EQ(error({6}, {1}, 1), place("6", "1", 1));
  EXPECT_EQ(error({}, {}, 6), place("", "", 6));
  EXPECT_EQ(error({0}, {1}, 7), place("0", "1", 7));
  EXPECT_EQ(error({2}, {6}, 0), place("2", "6", 0));
  EXPECT_EQ(error({2}, {INT64_MAX}, 0), place("2", "9223372036854775807", 0));
  EXPECT_EQ(error({2, 2}, {4, 2}, 0), place("2, 2", "4, 2", 0));
  EXPECT_EQ(error({2}, {}, 0), place("2", "", 0));
  EXPECT_EQ(error({1LL << 62, 4}, {0, 0}, 0), place("4611686018427387904, 4", "0, 0", 0));
  EXPECT_EQ(error({1LL << 40}, {0}, 0), "sizes [1099511627776] must not repeat elements so often");
  EXPECT_EQ(error({-1}, {1}, 0), "its sizes must be integers of 0 or more");
  EXPECT_EQ(error({2}, {-1}, 0), "its strides must be integers of 0 or more");
  EXPECT_EQ(error({2}, {1}, -1), "its offset must be integers of 0 or more");
  EXPECT_EQ(error(std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1), 0),
            "its sizes must be an array of at most 64");
  // torch.export.save writes a record without bytes for a tensor without memory.
  write_archive(exported({{"data/weights/weight_0", ""}}));
  EXPECT_EQ(load_error(),
            "must be a sound PyTorch file; \"x\": sizes [2, 3], strides [3, 1] and offset 0 must "
            "fit its storage of 0 elements");
}

TEST_F(Pt2File, WhoseTensorsAreOfAnotherKindIsRefused) {
  Entry entry;
  const auto unheld = [&] {
    write_archive(exported(
        {{"data/weights/weight_0", numbers_to(6)}, {kWeights, config({{"x", entry.json()}})}}));
    return load_error();
  };
  for (const int64_t dtype : {0, 36, 1000}) {  // unknown, and numbers that no dtype has
    entry.dtype = dtype;
    EXPECT_EQ(unheld(),
              "must fit the module, 0 of whose 0 tensors do\n  unexpected: x (a tensor of "
              "dtype " +
                  std::to_string(dtype) + ")");
  }
  entry.dtype = 8;
  entry.shape = {3}, entry.strides = {1};
  write_archive(exported(
      {{"data/weights/weight_0", numbers_to(5)}, {kWeights, config({{"x", entry.json()}})}}));
  EXPECT_EQ(load_error(),
            "must be a sound PyTorch file; \"x\": its record (20 bytes) must hold elements of 8 "
            "bytes");
  entry.layout = 1;
  EXPECT_EQ(unheld(),
            "must fit the module, 0 of whose 0 tensors do\n  unexpected: x (a tensor of "
            "layout 1)");
  entry = {};
  entry.dtype = 12, entry.offset = 3;
  EXPECT_EQ(entry_error(entry.json()), "the bytes of a Bool tensor must be 0 or 1");
}

/// `text` with the first `from` in it replaced.
std::string with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST_F(Pt2File, WhoseConfigIsNotSoundIsRefused) {
  const auto entry = Entry().json();
  EXPECT_EQ(entry_error("3"), "it must have a path_name");
  EXPECT_EQ(entry_error("{}"), "it must have a path_name");
  EXPECT_EQ(entry_error(with(entry, "\"weight_0\"", "0")), "it must have a path_name");
  EXPECT_EQ(entry_error(with(entry, "use_pickle", "pickle")), "it must have a use_pickle");
  EXPECT_EQ(entry_error(with(entry, "tensor_meta", "meta")), "it must have a tensor_meta");
  EXPECT_EQ(entry_error(with(entry, "\"dtype\": 7", "\"dtype\": \"float\"")),
            "its dtype must be integers of 0 or more");
  EXPECT_EQ(entry_error(with(entry, R"({"as_int": 2})", R"({"as_expr": {"expr_str": "s0"}})")),
            "its sizes must be integers of 0 or more");
  EXPECT_EQ(entry_error(with(entry, R"({"as_int": 2})", R"({"as_int": 2, "hint": 3})")),
            "its sizes must be integers of 0 or more");
  EXPECT_EQ(entry_error(with(entry, R"({"as_int": 2})", R"({"as_int": 1e3})")),
            "its sizes must be integers of 0 or more");
  EXPECT_EQ(entry_error(with(entry, R"({"as_int": 2})", R"({"as_int": 18446744073709551615})")),
            "its sizes must be integers of 0 or more");

  const auto error = [&](const std::string& json) {
    write_archive(exported({{kWeights, json}}));
    const auto start = "\"" + kWeights + "\") must be a sound PyTorch file; ";
    const auto found = record_error();
    EXPECT_EQ(found.substr(0, start.size()), start);
    return found.substr(std::min(start.size(), found.size()));
  };
  EXPECT_EQ(error(""), "byte 1 must be of a JSON object in UTF-8");
  EXPECT_EQ(error("{\"config\": \xff"), "byte 12 must be of a JSON object in UTF-8");
  EXPECT_EQ(error(config({{"x", entry}}) + "x"),
            "byte " + std::to_string(entry.size() + 20) + " must be of a JSON object in UTF-8");
  EXPECT_EQ(error("[]"), "it must be a JSON object; it is an array");
  EXPECT_EQ(error("3"), "it must be a JSON object; it is a value");
  EXPECT_EQ(error(R"({"config": []})"), "\"config\" must be a JSON object; it is an array");
  EXPECT_EQ(error(R"({"config": null})"), "\"config\" must be a JSON object; it is a value");
  EXPECT_EQ(error(R"({"other": {"x": 1}})"), "it must have a \"config\"");
  EXPECT_EQ(error(R"({"config": {}, "config": {}})"), "\"config\" must be there once");
  EXPECT_EQ(error(config({{"x", entry}, {"x", entry}})), "\"x\" must be there once");
  EXPECT_EQ(error(config({{"x", with(entry, "is_param", "use_pickle")}})),
            "\"x\": \"use_pickle\" must be there once");
  EXPECT_EQ(error(config({{"x", std::string(2000, '[')}})), "\"x\" must have at most 1000 parts");
  // Keys that a later version may add.
  write_archive(exported({{kWeights, R"({"version": [1, {"a": 2}], )" +
                                         config({{"x", entry}}).substr(1, std::string::npos)}}));
  EXPECT_EQ(read_weights(path_).size(), 1);
}

TEST_F(Pt2File, WhoseRecordsAreNotSoundIsRefused) {
  const std::string sound = "must be a sound PyTorch file; ";
  const auto without = [&](const std::string& record) {
    auto file = exported();
    file.erase(record);
    write_archive(file);
    return load_error();
  };
  for (const auto& record : {kWeights, kConstants, "data/weights/weight_0"s}) {
    EXPECT_EQ(without(record), sound + "it must hold a record \"" + record + "\"");
  }
  EXPECT_EQ(without("archive_format"), sound + "it must hold a record \"data.pkl\"");
  write_archive(exported({{"archive_version", "1"}}));
  EXPECT_EQ(load_error(), sound + "archive_version (\"1\") must be \"0\", which heed reads");
  write_archive(exported({{"byteorder", "big"}}));
  EXPECT_EQ(load_error(),
            sound + "byteorder (\"big\") must be little: save it on a machine of that order");
  Entry entry;
  entry.record = "../weights/weight_0";
  write_archive(exported({{kWeights, config({{"x", entry.json()}})}}));
  EXPECT_EQ(load_error(), sound + "it must hold a record \"data/weights/../weights/weight_0\"");
  entry = {};
  entry.pickled = true;
  write_archive(exported({{kWeights, config({{"x", entry.json()}})}}));
  EXPECT_EQ(record_error(),
            "\"data/weights/weight_0\") must be a sound PyTorch file; it must end with a zip "
            "archive's directory (size 24)");
}

TEST_F(Pt2File, ThatWouldTakeMuchMemoryIsRefused) {
  const std::string entry = R"(["weight_0", [], [], 0])";
  std::string many;
  for (int i = 0; i < 450'000; ++i) {
    many += (i == 0 ? "{\"" : ", \"") + std::to_string(i) + "\": " + entry;
  }
  write_archive(compiled(many + "}", pickle(kWhole)));
  EXPECT_EQ(load_error().find("must be a sound PyTorch file; its tensors must not take 100"), 0U);
}

TEST_F(Pt2File, CutOrChangedAnywhereIsReadOrRefused) {
  Entry pickled;
  pickled.record = "weight_1", pickled.pickled = true;
  write_archive(exported({{"data/weights/weight_1", archive_of(saved(pickle(kWhole)))},
                          {kWeights, config({{"x", Entry().json()}, {"y", pickled.json()}})}}));
  const auto whole = read_bytes(path_);
  EXPECT_EQ(read_weights(path_).size(), 2);
  for (size_t size = 0; size < whole.size(); size += 17) {
    write(whole.substr(0, size));
    EXPECT_NE(value_error([&] { read_weights(path_); }), "") << size;
  }
  int refused = 0;
  for (size_t bit = 0; bit < 8 * whole.size(); bit += 61) {
    auto changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    write(changed);
    try {
      read_weights(path_);  // the numbers themselves have no wrong value
    } catch (const c10::ValueError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace heed::test::pt2_file
