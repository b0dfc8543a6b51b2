// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/weights.h>
#include <malloc.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "support/archives.h"
#include "support/seeds.h"
#include "support/weight_files.h"
#include "unit/weights/random_files.h"

/// Whatever a file of up to 32 MB holds, reading it takes at most 2 s of one core and 1 GB besides
/// the loaded values.
namespace heed::test::weight_bounds {
namespace {

using namespace archives;

#if defined(__SANITIZE_ADDRESS__)
constexpr double kSeconds = 100;
constexpr int64_t kMegabytes = 8'000;
#else
constexpr double kSeconds = 20;  // ten times the bound: it tells linear from quadratic work
constexpr int64_t kMegabytes = 1'000;
#endif

class WeightBounds : public WeightFiles {
 protected:
  /// In MB; what this process has taken at most since `forget_peak`.
  static int64_t peak() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) / 1000;
    }
    return 0;
  }
  static void forget_peak() {
    ::malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << "5";
  }
  void SetUp() override {
    WeightFiles::SetUp();
    std::ofstream references("/proc/self/clear_refs");
    references << "5";
    references.flush();
    if (!references) GTEST_SKIP() << "the peak of memory cannot be reset";
  }

  /// Loads the file with every outcome that it may have, and returns the error of the strict one.
  std::string expect_bounded(const std::string& file, const std::string& what) {
    EXPECT_LE(file.size(), 32'000'000U) << what;
    write(file);
    std::string error;
    for (const bool strict : {true, false}) {
      forget_peak();
      const auto memory = peak();
      const auto begin = std::clock();  // of this process: the machine may be busy
      try {
        load_weights(box_, path_, LoadOptions().strict(strict));
      } catch (const c10::ValueError& refused) {
        if (strict) error = refused.what_without_backtrace();
      }
      const auto seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      EXPECT_LT(seconds, kSeconds) << what << (strict ? ", strict" : "");
      EXPECT_LT(peak() - memory, kMegabytes) << what << (strict ? ", strict" : "");
      if (std::getenv("HEED_SHOW_BOUNDS") != nullptr) {
        std::cout << what << ": " << file.size() << " bytes, " << seconds << " s, "
                  << peak() - memory << " MB; " << error.substr(0, 150) << '\n';
      }
    }
    return error;
  }

  /// Whether loading the file stays within the bounds, and fails only because `box_` has more.
  bool fits_in_part(const std::string& file, const std::string& what) {
    return expect_bounded(file, what).find("must fit the module") != std::string::npos;
  }

  Box box_{{{"w0", at::zeros({2, 3})}, {"absent", at::zeros({1})}}};
};

bool contains(const std::string& whole, const std::string& part) {
  return whole.find(part) != std::string::npos;
}

TEST_F(WeightBounds, HoldOfManyNamesOfOneTensor) {
  constexpr int kNames = 200'000;
  std::string entries = text("first") + kWhole + put(0);
  for (int i = 0; i < kNames; ++i) entries += name_of(i) + get(0);
  EXPECT_TRUE(fits_in_part(archive_of(saved(pickle(dict(entries)))), "names of one tensor"));
  const auto report = load_weights(box_, path_, LoadOptions().strict(false));
  EXPECT_EQ(report.loaded, std::vector<std::string>({"w0"}));
  EXPECT_EQ(report.unexpected.size(), size_t{kNames});
  EXPECT_TRUE(box_["w0"].equal(at::arange(6.F).view({2, 3})));
}

TEST_F(WeightBounds, HoldOfManyTensors) {
  const auto with = [](int count) {
    std::string header = "{";
    for (int i = 0; i < count; ++i) {
      header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
                R"(":{"dtype":"I8","shape":[0],"data_offsets":[0,0]})";
    }
    return with_size(header + "}");
  };
  EXPECT_TRUE(fits_in_part(with(290'000), "empty tensors"));
  EXPECT_TRUE(contains(expect_bounded(with(310'000), "more of them"),
                       "header must have at most 300000 tensors"));
  std::string entries;
  const auto one = tensor(integer(6), integer(1));
  for (int i = 0; i < 190'000; ++i) entries += name_of(i) + one;
  EXPECT_TRUE(fits_in_part(archive_of(saved(pickle(dict(entries)))), "tensors of one storage"));
}

TEST_F(WeightBounds, HoldOfManyNamesOfOneDict) {
  constexpr int kNames = 100'000;
  std::string inner, entries = text("w0") + kWhole;
  for (int i = 0; i < kNames; ++i) inner += name_of(i) + 'N';
  entries += text("inner") + dict(inner) + put(0);
  for (int i = 1; i < kNames; ++i) entries += name_of(i) + get(0);
  EXPECT_TRUE(fits_in_part(archive_of(saved(pickle(dict(entries)))), "names of one dict"));
}

TEST_F(WeightBounds, HoldOfALongNameThatIsCalledOften) {
  std::string entries = text("w0") + kWhole + text("first") +
                        call(global(std::string(8'000'000, 'm'), "f") + put(0), "");
  for (int i = 1; i < 200'000; ++i) entries += name_of(i) + get(0) + ")R";
  EXPECT_TRUE(fits_in_part(archive_of(saved(pickle(dict(entries)))), "calls of a long name"));
}

TEST_F(WeightBounds, HoldOfBoolsThatAreReadOften) {
  auto records = saved("");
  records["data/0"] = std::string(8'000'000, '\1');
  std::string entries;
  const auto storage_of_bools = storage("BoolStorage", 8'000'000);
  for (int i = 0; i < 50'000; ++i) {
    entries += name_of(i) + tensor(integer(7'000'000), integer(1), i, storage_of_bools);
  }
  records["data.pkl"] = pickle(dict(entries));
  EXPECT_TRUE(fits_in_part(archive_of(records), "bools"));
}

TEST_F(WeightBounds, HoldOfCodeThatManyClassesShare) {
  std::string modules, classes;
  constexpr int kClasses = 50'000;
  for (int i = 1; i < kClasses; ++i) {
    modules += name_of(i) + global("__torch__.m", "C" + std::to_string(i)) + ")\x81" +
               dict(text("x") + 'N') + 'b';
    classes += "class C" + std::to_string(i) + "(Module):\n  __parameters__ = [\"x\", ]\n";
  }
  const auto root = [](const std::string& entries) {
    return pickle(global("__torch__", "M") + ")\x81" + dict(text("w0") + kWhole + entries) + 'b');
  };
  const std::string code =
      "class M(Module):\n  __parameters__ = [\"w0\", ]\n" + std::string(40'000'000, '\n');
  expect_bounded(script_archive(root(modules),
                                {{"code/__torch__.py", code}, {"code/__torch__/m.py", classes}}),
                 "classes and code");
  std::string apart;
  Records files{{"code/__torch__.py", "class M(Module):\n  __parameters__ = [\"w0\", ]\n"}};
  for (int i = 1; i < 100; ++i) {
    const auto number = std::to_string(i);
    apart += name_of(i) + global("__torch__.m" + number, "C") + ")\x81" + dict("") + 'b';
    files["code/__torch__/m" + number + ".py"] = std::string(4'000'000, '\n');
  }
  EXPECT_TRUE(contains(expect_bounded(script_archive(root(apart), files), "much code"),
                       "its code must be at most 67108864 bytes"));
}

/// Lists and modules that hold the next one many times over.
TEST_F(WeightBounds, HoldOfPartsThatAreShared) {
  const auto root = [](const std::string& entries) {
    return pickle(global("__torch__", "M") + ")\x81" + dict(entries) + 'b');
  };
  const Records code{{"code/__torch__.py", "class M(Module):\n  __parameters__ = [\"w0\", ]\n"}};
  std::string list = "](" + kWhole + 'e' + put(0);
  for (uint8_t level = 1; level < 40; ++level) {
    std::string items;
    for (int i = 0; i < 100; ++i) items += get(level - 1);
    list += "0](" + items + 'e' + put(level);
  }
  const auto error = expect_bounded(script_archive(root(text("list") + list), code), "lists");
  EXPECT_TRUE(contains(error, "its modules must not take")) << error;
  std::string numbers;
  for (int i = 0; i < 1'000'000; ++i) numbers += 'N';
  std::string many;
  for (int i = 0; i < 1'000'000; ++i) many += get(0);
  expect_bounded(
      script_archive(
          root(text("a") + "](" + numbers + 'e' + put(0) + text("b") + "](" + many + 'e'), code),
      "lists of lists of numbers");
}

TEST_F(WeightBounds, HoldOfNamesThatDoNotFit) {
  NamedTensors tensors;
  for (int i = 0; i < 3000; ++i) tensors["m" + std::to_string(i)] = at::zeros({1});
  box_ = Box(tensors);
  std::string header = "{";
  for (int i = 0; i < 200'000; ++i) {
    header += (i == 0 ? "\"a.b." : ",\"a.b.") + std::to_string(i) +
              R"(":{"dtype":"I8","shape":[0],"data_offsets":[0,0]})";
  }
  expect_bounded(with_size(header + "}"), "names that do not fit");
  box_ = Box({{"m", at::zeros({1})}});
  std::string words;
  for (int i = 0; i < 7'000'000; ++i) words += "a.";
  const std::string rest = R"(":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}})";
  expect_bounded(with_size("{\"" + words + rest), "a name of many parts");
  expect_bounded(with_size("{\"" + std::string(8'000'000, '.') + rest), "a name of dots");
  for (auto& letter : words) letter = letter == '.' ? ' ' : letter;
  expect_bounded(with_size("{\"" + words + rest), "a name of many words");
}

/// Names that look like those of many models at once.
TEST_F(WeightBounds, HoldOfNamesThatManyMapsMayRead) {
  std::string path;
  for (int i = 0; i < 70; ++i) path += "a.";
  std::string header = "{";
  for (const auto* part : {"self_attn.q_proj",
                           "self_attn.qkv_proj",
                           "mlp.gate_proj",
                           "mlp.gate_up_proj",
                           "pre_feedforward_layernorm",
                           "post_feedforward_layernorm",
                           "kv_a_proj_with_mqa",
                           "attention.query_key_value",
                           "attn.c_attn.weight",
                           "mlp.c_fc",
                           "attention.q_lin",
                           "attn.Wqkv",
                           "mlp.Wi",
                           "attention.attention.query",
                           "attention.self.query",
                           "roberta",
                           "in_proj_weight",
                           "q_proj_weight",
                           "W_q",
                           "W_o",
                           "q_linear",
                           "W_Q",
                           "fc",
                           "w_qs",
                           "query_proj",
                           "packed_proj",
                           "out_proj"}) {
    for (int i = 0; i < 1000; ++i) {
      header += (header.size() == 1 ? "\"" : ",\"") + path + std::to_string(i) + '.' + part +
                R"(":{"dtype":"I8","shape":[0],"data_offsets":[0,0]})";
    }
  }
  box_ = Box({{"fc_q", at::zeros({1})}, {"fc_k", at::zeros({1})}});
  EXPECT_TRUE(fits_in_part(with_size(header + "}"), "names that many maps may read"));
}

/// The records share bytes, so that together they are much larger than the file.
TEST_F(WeightBounds, HoldOfRecordsThatOverlap) {
  const auto pickled = pickle(dict(text("w0") + kWhole));
  const auto archive = [&](const std::string& shared, bool nested) {
    std::string data;
    std::vector<ZipRecord> places;
    for (const auto& [name, bytes] : in_archive(saved(pickled))) {
      places.push_back({name, data.size(), bytes.size()});
      data += zip_header(name, bytes.size()) + bytes;
    }
    std::vector<std::string> names;
    for (int i = 0; i < 60'000; ++i) names.push_back("archive/data/w" + std::to_string(i));
    const auto begin = data.size();
    if (nested) {
      for (const auto& name : names) data += zip_header(name, 0);
    } else {
      data += zip_header(names[0], shared.size());
    }
    data += shared;
    auto header = begin;
    for (const auto& name : names) {
      const auto own = zip_header(name, 0).size();
      places.push_back(nested ? ZipRecord{name, header, data.size() - header - own}
                              : ZipRecord{name, begin, shared.size()});
      header += own;
    }
    return with_directory(data, places);
  };
  for (const bool nested : {false, true}) {
    const auto error = expect_bounded(archive(std::string(10'000'000, '\1'), nested),
                                      nested ? "records in records" : "records of one place");
    EXPECT_TRUE(contains(error, "must not lie in record")) << error;
  }
  EXPECT_TRUE(fits_in_part(zip_of(in_archive(saved(pickled))), "records apart"));
}

TEST_F(WeightBounds, HoldOfManyRecords) {
  auto records = in_archive(saved(pickle(dict(text("w0") + kWhole))));
  for (int i = 0; i < 280'000; ++i) records["archive/x" + std::to_string(i)];
  EXPECT_TRUE(fits_in_part(zip_of(records), "records"));
}

TEST_F(WeightBounds, HoldOfManyWeightsOfAProgram) {
  const auto whole = weight_json("weight_0", number_json(2) + ',' + number_json(3),
                                 number_json(3) + ',' + number_json(1));
  const auto first = in_quotes("w0") + ':' + whole;
  auto weights = first;
  const auto small = weight_json("weight_0", "1", "1");
  for (int i = 1; i < 150'000; ++i) weights += ",\"w" + std::to_string(i) + "\":" + small;
  EXPECT_TRUE(fits_in_part(zip_of(in_archive(exported(weights))), "weights of one record"));
  const auto tensor_file = zip_of(in_archive(saved(pickle(kWhole))));
  weights = first;
  auto records = exported("");
  for (int i = 1; i < 25'000; ++i) {
    const auto record = "p" + std::to_string(i);
    weights += ",\"w" + std::to_string(i) + "\":" + weight_json(record, "", "", /*pickled=*/true);
    records["data/weights/" + record] = tensor_file;
  }
  auto all = exported(weights);
  all.merge(records);
  EXPECT_TRUE(fits_in_part(zip_of(in_archive(all)), "weights that are archives"));
}

uint32_t drawn(uint32_t seed) { return static_cast<uint32_t>(moved(seed)); }

TEST_F(WeightBounds, HoldOfRandomFiles) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    expect_bounded(random_pytorch_file(drawn(seed)), "seed " + std::to_string(seed));
  }
}

TEST_F(WeightBounds, HoldOfRandomSafetensors) {
  write(directory_ / "shard",
        with_size(R"({"w0":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})") + numbers_to(6));
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    expect_bounded(random_safetensors(drawn(seed)), "safetensors " + std::to_string(seed));
    expect_bounded(random_index(drawn(seed)), "index " + std::to_string(seed));
  }
}

TEST_F(WeightBounds, HoldOfRandomArchives) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    expect_bounded(random_archive(drawn(seed)), "archive " + std::to_string(seed));
  }
}

}  // namespace
}  // namespace heed::test::weight_bounds
