// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/attention.h>
#include <heed/weights.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support/memory.h"
#include "support/weight_files.h"

namespace heed::test {
namespace {

using ::testing::ElementsAre;
using Safetensors = WeightFiles;

std::string size_bytes(uint64_t size) {
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes;
}

std::string safetensors(const std::string& header, const std::string& data = "") {
  return size_bytes(header.size()) + header + data;
}

std::string floats(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float)};
}

TEST_F(Safetensors, AreReadWhereverTheyLie) {
  // The header is of odd length, so that no tensor is aligned, and its order is not that of the
  // names.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"shape":[],"data_offsets":[9,13],"dtype":"I32"},)"
      R"("c":{"dtype":"BOOL","shape":[1,1],"data_offsets":[8,9]},)"
      R"("empty":{"dtype":"F64","shape":[0,3],"data_offsets":[13,13]}})";
  for (const auto& padding : {"", " ", "  ", "   "}) {
    write(safetensors(header + padding, floats({1.5F, -2.0F}) + '\1' + std::string("\7\0\0\0", 4)));
    Box box({{"a", at::zeros({}, at::kInt)},
             {"b", at::zeros({2})},
             {"c", at::zeros({1, 1}, at::kBool)},
             {"empty", at::zeros({0, 3}, at::kDouble)}});
    EXPECT_THAT(load_weights(box, path_).loaded, ElementsAre("a", "b", "c", "empty"));
    EXPECT_EQ(box["a"].item<int>(), 7);
    EXPECT_TRUE(box["b"].equal(at::tensor({1.5F, -2.0F})));
    EXPECT_TRUE(box["c"].item<bool>());
  }
}

TEST_F(Safetensors, AreConvertedOnlyOnRequest) {
  write(safetensors(R"({"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                    R"("x":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                    size_bytes(3) + floats({0.1F})));
  torch::nn::Module box("Box");
  const auto n = box.register_buffer("n", at::zeros({}, at::kLong));
  const auto x = box.register_parameter("x", at::zeros({1}, at::kDouble));
  EXPECT_EQ(value_error([&] { load_weights(box, path_); }),
            "load_weights: path (" + path_ +
                ") must fit the module, 1 of whose 2 tensors do\n"
                "  misshapen: x (Double [1] in the module, Float [1] in the file)\n"
                "  LoadOptions that may help: dtype (Double)");
  EXPECT_EQ(value_error([&] { load_weights(box, path_, LoadOptions().dtype(at::kHalf)); }),
            "load_weights: path (" + path_ +
                ") must fit the module, 1 of whose 2 tensors do\n"
                "  misshapen: x (Double [1] in the module, Float [1] in the file, by dtype Half)\n"
                "  LoadOptions that may help: dtype (Double)");
  EXPECT_EQ(value_error([&] { load_weights(box, path_, LoadOptions().dtype(at::kInt)); }),
            "load_weights: dtype (Int) must be floating-point");
  EXPECT_EQ(n.item<int64_t>(), 0);
  load_weights(box, path_, LoadOptions().dtype(at::kDouble));
  EXPECT_EQ(n.item<int64_t>(), 3);
  EXPECT_EQ(x.item<double>(), double{0.1F});
}

/// A buffer may have another dtype than the parameters, which `dtype` is for.
TEST_F(Safetensors, AreConvertedToTheDtypeOfABuffer) {
  write(safetensors(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", floats({0.1F})));
  Box box({{"x", at::zeros({1}, at::kDouble)}});
  load_weights(box, path_, LoadOptions().dtype(at::kHalf));
  EXPECT_EQ(box["x"].item<double>(), double{0.1F});
}

TEST_F(Safetensors, AreSelectedByPrefixAndThenRenamed) {
  write(safetensors(R"({"x.1.W.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("x.10.W.weight":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                    R"("y":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                    R"("z":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
                    floats({1, 2, 3, 4})));
  Box box({{"weight", at::zeros({1})}});
  load_weights(box, path_, LoadOptions().prefix("x.1.W."));
  EXPECT_EQ(box["weight"].item<float>(), 1);
  Box renamed({{"ours", at::zeros({1})}});
  load_weights(renamed, path_,
               LoadOptions().prefix("x.10.").name_map(NameMap().rename("W.weight", "ours")));
  EXPECT_EQ(renamed["ours"].item<float>(), 2);
  EXPECT_EQ(value_error([&] { load_weights(box, path_, LoadOptions().prefix("w.")); }),
            "load_weights: prefix (w.) must begin a name in path (" + path_ +
                "), which holds x.1.W.weight, x.10.W.weight, y, ...");
  EXPECT_EQ(value_error([&] { load_weights(box, path_, LoadOptions().key("model")); }),
            "load_weights: key (model) must be empty: path (" + path_ +
                ") is a safetensors file; options.prefix selects names");
}

/// safetensors.torch.save_model leaves out names of tensors that have several.
TEST_F(Safetensors, NameTensorsThatTheyLeaveOut) {
  write(safetensors(R"({"__metadata__":{"format":"a","b":"a","c":"absent","d":"b","a":"a"},)"
                    R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                    floats({3})));
  Box both({{"a", at::zeros({1})}, {"b", at::zeros({1})}});
  EXPECT_THAT(load_weights(both, path_).loaded, ElementsAre("a", "b"));
  EXPECT_EQ(both["b"].item<float>(), 3);
  Box one({{"a", at::zeros({1})}});
  const auto report = load_weights(one, path_);
  EXPECT_THAT(report.loaded, ElementsAre("a"));
  EXPECT_THAT(report.passed_over, ElementsAre("b"));
  EXPECT_EQ(read_weights(path_).size(), 2);

  // A tensor of its own is not overwritten, and a name that heed cannot hold has no other name.
  write(safetensors(R"({"__metadata__":{"b":"a","d":"c"},)"
                    R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                    R"("c":{"dtype":"F4","shape":[8],"data_offsets":[8,12]}})",
                    floats({3, 4, 5})));
  load_weights(both, path_, LoadOptions().strict(false));
  EXPECT_EQ(both["b"].item<float>(), 4);
}

TEST_F(Safetensors, AreLoadedWhereTheModuleIsMovedTo) {
  const auto saved = Attention(4);
  save_weights(*saved, path_);
  for (const auto device : devices()) {
    Attention module(4);
    load_weights(*module, path_, LoadOptions().device(device));
    for (const auto& item : module->named_parameters()) {
      EXPECT_EQ(item.value().device(), device);
      EXPECT_TRUE(item.value().cpu().equal(saved->named_parameters()[item.key()])) << item.key();
      EXPECT_TRUE(item.value().requires_grad());
    }
  }
}

TEST_F(Safetensors, AreNotCopiedOnTheWay) {
  constexpr int64_t kCount = int64_t{1} << 22;
  const Box saved({{"x", at::ones({kCount})}});
  save_weights(saved, path_);
  Box box({{"x", at::zeros({kCount})}});
  Box wide({{"x", at::zeros({kCount}, at::kDouble)}});
  const AllocationCounter counter;
  load_weights(box, path_);
  load_weights(wide, path_, LoadOptions().dtype(at::kDouble));
  EXPECT_LT(counter.peak(), 100'000);  // a piece at a time; the tensor has 16 MiB
  EXPECT_TRUE(box["x"].equal(saved["x"]));
  EXPECT_TRUE(wide["x"].equal(saved["x"].to(at::kDouble)));
}

struct Refusal {
  std::string header, data, reason;
};

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return '"' + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + '}';
}

TEST_F(Safetensors, ThatAreNotSoundAreRefused) {
  const std::string ones(16, '\1');
  const std::string a = entry("a", "F32", "[1]", "[0,4]");
  const std::string tensor_a = R"(tensor "a": )";
  const std::string header_a = R"(header: tensor "a": )";
  const Refusal refusals[] = {
      // extents
      {'{' + a + ',' + entry("b", "F32", "[1]", "[2,6]") + '}', ones.substr(0, 6),
       R"(tensor "b": data_offsets [2, 6] must begin at 4, where the tensor before it ends)"},
      {'{' + a + ',' + entry("b", "F32", "[1]", "[5,9]") + '}', ones.substr(0, 9),
       R"(tensor "b": data_offsets [5, 9] must begin at 4, where the tensor before it ends)"},
      {'{' + a + '}', ones.substr(0, 3),
       tensor_a + "data_offsets [0, 4] must lie in the data (0 to 3)"},
      {'{' + a + '}', ones.substr(0, 5), "its tensors (4 bytes) must fill the data (5)"},
      {'{' + entry("a", "F32", "[1]", "[4,0]") + '}', ones.substr(0, 4),
       tensor_a + "data_offsets [4, 0] must lie in the data (0 to 4)"},
      {'{' + entry("a", "F32", "[1]", "[18446744073709551612,0]") + '}', ones.substr(0, 4),
       tensor_a + "data_offsets [18446744073709551612, 0] must lie in the data (0 to 4)"},
      {'{' + entry("a", "F32", "[2]", "[0,4]") + '}', ones.substr(0, 4),
       tensor_a + "data_offsets [0, 4] must hold the elements of Float [2]"},
      {'{' + entry("a", "F32", "[4294967296,4294967296]", "[0,0]") + '}', "",
       tensor_a + "data_offsets [0, 0] must hold the elements of Float [4294967296, 4294967296]"},
      {'{' + entry("a", "F32", "[0,4294967296,4294967296]", "[0,0]") + '}', "",
       tensor_a +
           "data_offsets [0, 0] must hold the elements of Float [0, 4294967296, 4294967296]"},
      {'{' + entry("a", "BOOL", "[1]", "[0,1]") + '}', "\2",
       tensor_a + "the bytes of a Bool tensor must be 0 or 1"},
      // names and fields
      {'{' + a + ',' + a + '}', ones.substr(0, 4), R"(header: tensor "a" must be there once)"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}})", ones.substr(0, 4),
       header_a + "dtype must be there once"},
      {R"({"a":{"shape":[],"shape":[],"dtype":"F32","data_offsets":[0,4]}})", ones.substr(0, 4),
       header_a + "shape must be there once"},
      {R"({"__metadata__":{},"__metadata__":{}})", "",
       R"(header: "__metadata__" must be there once)"},
      {R"({"__metadata__":{"a":1}})", "",
       R"(header: "__metadata__" must map strings to strings; it holds 1)"},
      {R"({"__metadata__":1})", "",
       R"(header: "__metadata__" must map strings to strings; it holds 1)"},
      {R"({"a":{"dtype":"F32","shape":[]}})", "",
       R"(header: tensor "a" must have dtype, shape and two data_offsets)"},
      {R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0]}})", "",
       R"(header: tensor "a" must have dtype, shape and two data_offsets)"},
      {R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,0,0]}})", "",
       header_a + "data_offsets must be two offsets; it holds a third number"},
      {R"({"a":{"type":"F32"}})", "",
       R"(header: tensor "a" must have dtype, shape and data_offsets only; it has "type")"},
      {R"({"a":{"dtype":31}})", "", header_a + "dtype must be the name of a dtype; it holds 31"},
      {R"({"a":{"shape":[-1]}})", "",
       header_a + "shape must be an array of sizes; it holds a negative number"},
      {R"({"a":{"shape":[1.5]}})", "", header_a + "shape must be an array of sizes; it holds 1.5"},
      {R"({"a":{"shape":[18446744073709551615]}})", "",
       header_a + "shape must be an array of sizes; it holds 18446744073709551615"},
      {R"({"a":{"shape":[[]]}})", "",
       header_a + "shape must be an array of sizes; it holds an array"},
      {R"({"a":{"shape":{}}})", "",
       header_a + "shape must be an array of sizes; it holds an object"},
      {R"({"a":7})", "", R"(header: tensor "a" must be an object; it is 7)"},
      {R"({"\u0001":7})", "", R"(header: tensor "\x01" must be an object; it is 7)"},
      // JSON
      {R"({"a":)", "", "header: byte 6 must be of a JSON object in UTF-8"},
      {"{\"\xff\":1}", "", "header: byte 3 must be of a JSON object in UTF-8"},
      {"{}x", "", "header: byte 3 must be of a JSON object in UTF-8"},
  };
  for (const auto& [header, data, reason] : refusals) {
    write(safetensors(header, data));
    EXPECT_EQ(load_error(), "must be a sound safetensors file; " + reason) << header;
  }
}

TEST_F(Safetensors, WithAHeaderThatCannotBeAreRefused) {
  const std::string header = "{" + std::string(100, ' ') + "}";
  write(size_bytes(103) + header);
  EXPECT_EQ(load_error(),
            "must be a sound safetensors file; header size (103) must be at most 102, "
            "the bytes left");
  write(size_bytes(100'000'001) + header);
  EXPECT_EQ(load_error(),
            "must be a sound safetensors file; header size (100000001) must be at most 100000000");
  std::string deep = "{\"a\":";
  deep += std::string(1'000'000, '[');
  write(safetensors(deep));
  EXPECT_EQ(load_error(),
            "must be a sound safetensors file; header: tensor \"a\" must be an object; it is an "
            "array");
}

TEST_F(Safetensors, CutAnywhereAreRefused) {
  write(safetensors('{' + entry("a", "F32", "[2]", "[0,8]") + '}', floats({1, 2})));
  const auto whole = read_bytes(path_);
  Box box({{"a", at::zeros({2})}});
  load_weights(box, path_);
  for (size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    EXPECT_NE(value_error([&] { load_weights(box, path_); }), "") << size;
  }
}

class SafetensorsIndex : public WeightFiles {
 protected:
  SafetensorsIndex() {
    write(directory_ / "one",
          safetensors('{' + entry("a", "F32", "[1]", "[0,4]") + '}', floats({1})));
    write(directory_ / "two", safetensors('{' + entry("b", "F32", "[1]", "[0,4]") + ',' +
                                              entry("c", "F32", "[1]", "[4,8]") + '}',
                                          floats({2, 3})));
  }
};

TEST_F(SafetensorsIndex, SaysWhichFileHoldsWhat) {
  write(R"( {"metadata":{"total_size":12,"nested":[{"weight_map":1}]},)"
        R"("weight_map":{"c":"two","a":"one","b":"two"}})");
  Box box({{"a", at::zeros({1})}, {"b", at::zeros({1})}, {"c", at::zeros({1})}});
  load_weights(box, path_);
  EXPECT_EQ(box["a"].item<float>(), 1);
  EXPECT_EQ(box["b"].item<float>(), 2);
  EXPECT_EQ(box["c"].item<float>(), 3);
}

/// huggingface_hub writes such metadata of tensors that have several names.
TEST_F(SafetensorsIndex, NamesTensorsThatItsFilesLeaveOut) {
  write(R"({"metadata":{"total_size":12,"d":"b","format":"a","e":"absent"},)"
        R"("weight_map":{"a":"one","b":"two","c":"two"}})");
  Box box({{"a", at::zeros({1})}, {"d", at::zeros({1})}});
  const auto report = load_weights(box, path_, LoadOptions().strict(false));
  EXPECT_THAT(report.loaded, ElementsAre("a", "d"));
  EXPECT_EQ(box["d"].item<float>(), 2);
  // A file of its own may say so, too, and the index need not.
  write(directory_ / "one",
        safetensors(R"({"__metadata__":{"d":"a"},)" + entry("a", "F32", "[1]", "[0,4]") + '}',
                    floats({1})));
  write(R"({"weight_map":{"a":"one","b":"two","c":"two"}})");
  load_weights(box, path_, LoadOptions().strict(false));
  EXPECT_EQ(box["d"].item<float>(), 1);
}

/// One shard holds a tensor of a dtype that LibTorch lacks.
TEST_F(SafetensorsIndex, NamesWhatHeedCannotHold) {
  write(directory_ / "two", safetensors('{' + entry("b", "F4", "[8]", "[0,4]") + ',' +
                                            entry("c", "F32", "[1]", "[4,8]") + '}',
                                        floats({2, 3})));
  write(R"({"weight_map":{"a":"one","b":"two","c":"two"}})");
  const auto a_and_c = NamedTensors{{"a", at::zeros({1})}, {"c", at::zeros({1})}};
  auto all = a_and_c;
  all["b"] = at::zeros({8});
  Box without(a_and_c), with(all);
  const auto start = "load_weights: path (" + path_ + ") must fit the module, 2 of whose ";
  EXPECT_EQ(value_error([&] { load_weights(without, path_); }),
            start + "2 tensors do\n  unexpected: b (a tensor of \"F4\")");
  EXPECT_EQ(value_error([&] { load_weights(with, path_); }),
            start +
                "3 tensors do\n  misshapen: b (Float [8] in the module, a tensor of \"F4\" in the "
                "file)");
  for (auto* box : {&without, &with}) {
    const auto report = load_weights(*box, path_, LoadOptions().strict(false));
    EXPECT_THAT(report.loaded, ElementsAre("a", "c"));
    EXPECT_EQ(report.unexpected,
              box == &without ? std::vector<std::string>{"b"} : std::vector<std::string>());
    EXPECT_EQ((*box)["a"].item<float>(), 1);
    EXPECT_EQ((*box)["c"].item<float>(), 3);
  }
  const auto report = load_weights(with, path_, LoadOptions().strict(false));
  EXPECT_THAT(report.misshapen,
              ElementsAre("b (Float [8] in the module, a tensor of \"F4\" in the file)"));
}

TEST_F(SafetensorsIndex, ThatIsNotSoundIsRefused) {
  write(directory_ / "text", "no tensors");
  const std::string sound = "must be a sound index file; ";
  const std::pair<const char*, std::string> refusals[] = {
      {R"({})", sound + "it must have a weight_map"},
      {R"({"weight_map":[]})", sound + "weight_map must map names to files; it holds an array"},
      {R"({"weight_map":{"a":1}})",
       sound + "weight_map must map names to files; it holds a number"},
      {R"({"weight_map":{"a":{}}})",
       sound + "weight_map must map names to files; it holds an object"},
      {R"({"weight_map":{},"weight_map":{}})", sound + "weight_map must be there once"},
      {R"({"weight_map":{"a":"one","a":"one"}})", sound + R"(weight_map: "a" must be there once)"},
      {R"({"weight_map":{"a":"../one"}})",
       sound + R"(weight_map: "../one" must be the name of a file beside the index)"},
      {R"({"weight_map":{"a":"/one"}})",
       sound + R"(weight_map: "/one" must be the name of a file beside the index)"},
      {R"({"weight_map":{"a":".."}})",
       sound + R"(weight_map: ".." must be the name of a file beside the index)"},
      {R"({"weight_map":{"a":""}})",
       sound + R"(weight_map: "" must be the name of a file beside the index)"},
      {R"({"weight_map":{"a":"one\u0000"}})",
       sound + R"(weight_map: "one\x00" must be the name of a file beside the index)"},
      {R"({"weight_map":{"a":"text"}})",
       sound + R"(weight_map: "text" must be a safetensors file or what torch.save wrote)"},
      {R"({"weight_map":{"a":"two"}})", sound + R"("two" must hold tensor "a")"},
      {R"({"weight_map":{"b":"two"}})",
       sound + R"(weight_map must say of tensor "c" that "two" holds it)"},
      {R"({"weight_map":)", sound + "byte 15 must be of a JSON object in UTF-8"},
  };
  for (const auto& [text, reason] : refusals) {
    write(text);
    EXPECT_EQ(load_error(), reason) << text;
  }
  write(R"({"weight_map":{"a":"absent"}})");
  Box box({});
  EXPECT_EQ(
      value_error([&] { load_weights(box, path_); }),
      "load_weights: path (" + (directory_ / "absent").string() + ") must name an existing file");
}

}  // namespace
}  // namespace heed::test
