#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>
#include <heed/weights.h>
#include <malloc.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "support/pickles.h"
#include "support/seeds.h"
#include "support/weight_files.h"

/// Whatever a file of up to 32 MB holds, reading it takes at most 2 s of one core and 1 GB besides
/// the loaded values.
namespace heed::test::weight_bounds {
namespace {

using namespace pickles;

#if defined(__SANITIZE_ADDRESS__)
constexpr double kSeconds = 100;
constexpr int64_t kMegabytes = 8'000;
#else
constexpr double kSeconds = 20;  // ten times the bound: it tells linear from quadratic work
constexpr int64_t kMegabytes = 1'000;
#endif

std::string get(uint8_t index) { return std::string("h") + static_cast<char>(index); }
std::string put(uint8_t index) { return std::string("q") + static_cast<char>(index); }

std::string name_of(int number) { return text("w" + std::to_string(number)); }

/// As torch.jit.save writes it: code is compressed, and nothing else.
std::string script_archive(const std::string& pickle, const Records& code) {
  std::string archive;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, size_t count) {
    archive.append(static_cast<const char*>(bytes), count);
    return count;
  });
  for (const auto& [name, bytes] : saved(pickle)) {
    writer.writeRecord(name, bytes.data(), bytes.size());
  }
  for (const auto& [name, bytes] : code) {
    writer.writeRecord(name, bytes.data(), bytes.size(), /*compress=*/true);
  }
  writer.writeEndOfFile();
  return archive;
}

/// The header of a safetensors file without data, and its size.
std::string with_size(const std::string& header) {
  return bytes_of(static_cast<uint64_t>(header.size())) + header;
}

/// A record of a zip archive, and where the directory says that it is.
struct ZipRecord {
  std::string name;
  uint64_t header, size;
};

std::string zip_header(const std::string& name, uint64_t size) {
  const auto sizes = bytes_of(static_cast<uint32_t>(size)) + bytes_of(static_cast<uint32_t>(size));
  return "PK\3\4" + std::string(14, '\0') + sizes + bytes_of(static_cast<uint16_t>(name.size())) +
         std::string(2, '\0') + name;
}

/// An archive whose directory is given, with a 64-bit end, which has room for any count.
std::string with_directory(const std::string& data, const std::vector<ZipRecord>& records) {
  std::string directory;
  for (const auto& [name, header, size] : records) {
    const auto size32 = bytes_of(static_cast<uint32_t>(size));
    directory += "PK\1\2" + std::string(16, '\0') + size32 + size32 +
                 bytes_of(static_cast<uint16_t>(name.size())) + std::string(12, '\0') +
                 bytes_of(static_cast<uint32_t>(header)) + name;
  }
  const auto count = bytes_of(static_cast<uint64_t>(records.size()));
  const auto end = static_cast<uint64_t>(data.size() + directory.size());
  return data + directory + "PK\6\6" + std::string(20, '\0') + count + count +
         bytes_of(static_cast<uint64_t>(directory.size())) +
         bytes_of(static_cast<uint64_t>(data.size())) + "PK\6\7" + std::string(4, '\0') +
         bytes_of(end) + std::string(4, '\0') + "PK\5\6" + std::string(4, '\0') +
         std::string(12, '\xff') + std::string(2, '\0');
}

/// A sound archive, of any number of records.
std::string zip_of(const Records& records) {
  std::string data;
  std::vector<ZipRecord> places;
  for (const auto& [name, bytes] : records) {
    places.push_back({name, data.size(), bytes.size()});
    data += zip_header(name, bytes.size()) + bytes;
  }
  return with_directory(data, places);
}

/// Adds the folder and the version that torch.save and torch.export.save write.
Records in_archive(const Records& records) {
  Records found{{"archive/version", "3\n"}};
  for (const auto& [name, bytes] : records) found["archive/" + name] = bytes;
  return found;
}

/// A program of torch.export with these weights by name, each with its JSON.
Records exported(const std::string& weights, const std::string& constants = "") {
  const auto config = [](const std::string& entries) { return "{\"config\":{" + entries + "}}"; };
  return {{"archive_format", "pt2"},
          {"archive_version", "0"},
          {"byteorder", "little"},
          {"models/model.json", "{}"},
          {"data/weights/weight_0", numbers_to(6)},
          {"data/weights/model_weights_config.json", config(weights)},
          {"data/constants/model_constants_config.json", config(constants)}};
}

std::string number_json(int64_t value) { return "{\"as_int\":" + std::to_string(value) + "}"; }

/// The JSON of a weight of a program.
std::string weight_json(const std::string& record, const std::string& sizes,
                        const std::string& strides, bool pickled = false) {
  return "{\"path_name\":\"" + record + "\",\"use_pickle\":" + (pickled ? "true" : "false") +
         ",\"tensor_meta\":{\"dtype\":7,\"sizes\":[" + sizes + "],\"strides\":[" + strides +
         "],\"storage_offset\":" + number_json(0) + ",\"layout\":7}}";
}

std::string in_quotes(const std::string& text) { return '"' + text + '"'; }

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

  /// The same of a file that is read, but has not all that `box_` has.
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

/// Grammars of the formats, whose parts are drawn, repeated and nested.
class RandomPickle {
 public:
  explicit RandomPickle(uint32_t seed) : random_(seed) {}

  std::string file() {
    std::string root = text("w0") + kWhole + put(0) + text("l") + "](NNe" + put(1) + text("d") +
                       dict(text("x") + get(0)) + put(2) + text("g") + global("a", "b") + put(3);
    const auto kinds = 1 + random_() % 4;
    for (uint32_t kind = 0; kind < kinds; ++kind) root += many();
    const bool is_script = random_() % 2 == 0;
    const auto body = dict(root);
    if (!is_script) return archive_of(saved(pickle(body)));
    return script_archive(pickle(global("__torch__", "M") + ")\x81" + body + 'b'),
                          {{"code/__torch__.py", "class M(Module):\n  __parameters__ = [\"w0\"]\n" +
                                                     std::string(random_() % 60'000'000, 'x')}});
  }

 private:
  std::string value() {
    switch (random_() % 12) {
      case 0:
        return tensor(integer(2), integer(1));
      case 1:
        return tensor(integer(3), integer(1), 0, storage("BoolStorage", 24));
      case 2:
        return "](" + repeated(value_of_memo(), 10) + 'e';
      case 3:
        return tuple(repeated(value_of_memo(), 10));
      case 4:
        return call(value_of_memo(), "");
      case 5:
        return global("__torch__", "M") + ")\x81" + dict(text("x") + value_of_memo()) + 'b';
      case 6:
        return global("torch.jit._pickle", "restore_type_tag") + tuple(value_of_memo()) + 'R';
      case 7:
        return "N";
      default:
        return value_of_memo();
    }
  }

  std::string value_of_memo() { return get(static_cast<uint8_t>(random_() % 4)); }

  std::string repeated(const std::string& part, uint32_t most) {
    std::string whole;
    for (uint32_t i = 0, count = random_() % most; i < count; ++i) whole += part;
    return whole;
  }

  /// Entries of up to 4 MB, all of one kind.
  std::string many() {
    const auto one = value();
    const auto most = 4'000'000 / (one.size() + 8);
    std::string entries;
    for (size_t i = 0, count = random_() % most; i < count; ++i) {
      entries += name_of(next_++) + one;
    }
    return entries;
  }

  std::minstd_rand random_;
  int next_ = 1;
};

/// A header of a safetensors file, or of its index: entries that are drawn and repeated.
class RandomHeader {
 public:
  explicit RandomHeader(uint32_t seed) : random_(seed) {}

  std::string safetensors() {
    auto header = "{" + in_quotes("w0") + R"(:{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";
    data_ = 24;
    for (auto kinds = 1 + random_() % 4; kinds-- > 0;) header += entries(random_() % 8);
    header += random_() % 3 == 0 ? ",\"w0\":{}" : "";
    header += random_() % 3 == 0 ? std::string(random_() % 4'000'000, ' ') : "";
    header += random_() % 3 == 0 ? "" : "}";
    return with_size(header) + std::string(data_, '\1');
  }

  std::string index() {
    auto text = std::string("{");
    for (auto kinds = 1 + random_() % 4; kinds-- > 0;) text += beside(random_() % 4) + ',';
    text += "\"weight_map\":{\"w0\":\"shard\"";
    const auto name = random_() % 2 == 0 ? std::string("shard") : std::string("s") + kEscape;
    for (auto count = random_() % 330'000; count-- > 0;) {
      text += ",\"" + std::to_string(count) + "\":\"" + name + '"';
    }
    return text + (random_() % 3 == 0 ? "}" : "}}");
  }

 private:
  static constexpr auto kEscape = "\\u00e9\\ud83d\\ude00";

  std::string entries(uint32_t kind) {
    std::string text;
    for (auto count = random_() % (kind == 6 ? 12 : 40'000); count-- > 0;) {
      text += ',' + in_quotes(name(kind)) + ':' + value(kind);
    }
    return text;
  }

  std::string name(uint32_t kind) {
    auto number = std::to_string(next_++);
    if (kind == 5) return std::string(60, 'n') + number;
    if (kind == 4) return kEscape + number;
    return kind == 3 && next_ % 20'000 == 0 ? "__metadata__" : number;
  }

  std::string value(uint32_t kind) {
    const auto offsets = [&](uint64_t size) {
      const auto begin = std::to_string(data_);
      data_ += size;
      return R"(,"data_offsets":[)" + begin + ',' + std::to_string(data_) + "]}";
    };
    switch (kind) {
      case 0:
        return R"({"dtype":"BOOL","shape":[1])" + offsets(1);
      case 1:
        return R"({"dtype":"F4","shape":[1,2])" + offsets(1);
      case 2: {
        std::string shape = "0";
        for (int i = 0; i < 60; ++i) shape += ",9";
        return R"({"dtype":"F64","shape":[)" + shape + "]" + offsets(0);
      }
      case 6:
        return R"({"dtype":)" + in_quotes(std::string(300'000, 'F')) + R"(,"shape":[])" +
               offsets(random_() % 2);
      case 7:
        return next_ % 9'000 == 0 ? nested() : R"({"dtype":"I8","shape":[0])" + offsets(0);
      default:
        return R"({"shape":[0],"dtype":"F16")" + offsets(0);
    }
  }

  std::string nested() { return std::string(random_() % 3'000'000, random_() % 2 ? '[' : '9'); }

  /// A field that an index may have beside its map.
  std::string beside(uint32_t kind) {
    const auto name = in_quotes("b" + std::to_string(next_++)) + ':';
    const auto size = random_() % 3'000'000;
    if (kind == 0) return name + std::string(size, '[') + std::string(size, ']');
    if (kind == 1) return name + std::string(size, '9');
    if (kind == 2) return name + in_quotes(std::string(size, 'x'));
    std::string items = "0";
    for (uint32_t i = 0; i < size / 4; ++i) items += ",{}";
    return name + '[' + items + ']';
  }

  std::minstd_rand random_;
  int next_ = 1;
  uint64_t data_ = 0;
};

/// A program of torch.export or AOTInductor, or a zip archive, of parts that are drawn.
class RandomArchive {
 public:
  explicit RandomArchive(uint32_t seed) : random_(seed) {}

  std::string file() {
    auto weights = in_quotes("w0") + ':' +
                   weight_json("weight_0", number_json(2) + ',' + number_json(3),
                               number_json(3) + ',' + number_json(1));
    Records more;
    for (auto kinds = 1 + random_() % 3; kinds-- > 0;) weights += entries(random_() % 7, more);
    auto records = exported(weights, random_() % 3 == 0 ? weights : "");
    if (random_() % 4 == 0) records["models/other.json"];
    if (random_() % 4 == 0) compile(records);
    more.merge(records);
    for (auto count = random_() % 3 == 0 ? random_() % 60'000 : 0; count-- > 0;) {
      more[std::string(random_() % 60, 'r') + std::to_string(count)] =
          std::string(random_() % 9, 'x');
    }
    return zip_of(in_archive(more));
  }

 private:
  std::string entries(uint32_t kind, Records& more) {
    const auto one = value(kind, more);
    std::string text;
    const auto most = 3'000'000 / (one.size() + 12) + 1;
    for (auto count = random_() % most; count-- > 0;) {
      text += ",\"w" + std::to_string(next_++) + "\":" + (kind == 1 ? value(1, more) : one);
    }
    return text;
  }

  std::string value(uint32_t kind, Records& more) {
    switch (kind) {
      case 0:
        return weight_json("weight_0", "1", "1");
      case 1: {
        const auto record = "p" + std::to_string(next_);
        more["data/weights/" + record] = tensor_file_;
        return weight_json(record, "", "", /*pickled=*/true);
      }
      case 2: {
        std::string ones = "1";
        for (int i = 0; i < 63; ++i) ones += ",1";
        return weight_json("weight_0", ones, ones);
      }
      case 3:
        return weight_json("weight_0", "1000000,6", "0,1");
      case 4:
        return std::string(random_() % 3'000'000, '[');
      case 5:
        return weight_json(std::string(random_() % 300'000, 'w'), "1", "1");
      default:
        return "{\"path_name\":\"opaque\",\"use_pickle\":true,\"x\":[" + many_zeros() + "]}";
    }
  }

  std::string many_zeros() {
    std::string zeros = "0";
    for (auto count = random_() % 400'000; count-- > 0;) zeros += ",0";
    return zeros;
  }

  void compile(Records& records) {
    records.erase("models/model.json");
    std::string config = R"({"w0":["p0",[2,3],[3,1],0])";
    for (auto count = random_() % 100'000; count-- > 0;) {
      config += ",\"c" + std::to_string(count) + R"(":["p0",[6],[1],0])";
    }
    records["data/aotinductor/model/weights_config.json"] = config + '}';
    records["data/weights/p0"] = tensor_file_;
  }

  const std::string tensor_file_ = zip_of(in_archive(saved(pickle(kWhole))));
  std::minstd_rand random_;
  int next_ = 1;
};

uint32_t drawn(uint32_t seed) { return static_cast<uint32_t>(moved(seed)); }

TEST_F(WeightBounds, HoldOfRandomFiles) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    expect_bounded(RandomPickle(drawn(seed)).file(), "seed " + std::to_string(seed));
  }
}

TEST_F(WeightBounds, HoldOfRandomSafetensors) {
  write(directory_ / "shard",
        with_size(R"({"w0":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})") + numbers_to(6));
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    expect_bounded(RandomHeader(drawn(seed)).safetensors(), "safetensors " + std::to_string(seed));
    expect_bounded(RandomHeader(drawn(seed)).index(), "index " + std::to_string(seed));
  }
}

TEST_F(WeightBounds, HoldOfRandomArchives) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    expect_bounded(RandomArchive(drawn(seed)).file(), "archive " + std::to_string(seed));
  }
}

}  // namespace
}  // namespace heed::test::weight_bounds
