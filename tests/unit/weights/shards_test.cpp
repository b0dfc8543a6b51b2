// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/weights.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/inputs.h"
#include "support/weight_files.h"

namespace heed::test {
namespace {

using ::testing::ElementsAre;

/// Modules that hold a part of the tensors of a file.
class Shards : public WeightFiles {
 protected:
  void save(const NamedTensors& tensors, WeightFormat format = WeightFormat::safetensors) const {
    save_weights(Box(tensors), path_, SaveOptions().format(format));
  }

  /// The part of `name`, which has the shape of `shape`, that is loaded.
  at::Tensor load(const std::string& name, const at::Tensor& shape, const TensorShard& shard,
                  LoadOptions options = {}) {
    Box box({{name, at::zeros_like(shape)}});
    report_ = load_weights(box, path_, options.shards({{name, shard}}));
    return box[name];
  }

  /// The bytes that are read of any safetensors file: the first 4096, and the header once more.
  size_t bytes_beside_tensors() const {
    uint64_t header = 0;
    const auto bytes = read_bytes(path_);
    for (size_t i = 8; i-- > 0;) header = header << 8 | static_cast<uint8_t>(bytes[i]);
    return std::min<size_t>(4096, bytes.size()) + 8 + header;
  }

  /// The bytes of tensors that the last load has read.
  size_t bytes_of_tensors() const { return report_.bytes_read - bytes_beside_tensors(); }

  std::string error(const TensorShards& shards, const NamedTensors& ours,
                    LoadOptions options = {}) const {
    Box box(ours);
    auto text = value_error([&] { load_weights(box, path_, options.shards(shards)); });
    for (const auto& [name, tensor] : ours) EXPECT_TRUE(box[name].equal(tensor)) << text;
    return text;
  }

  LoadReport report_;
};

TEST_F(Shards, AreReadAlone) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const auto x = uniform({6, 1024}, dtype);
    const auto width = x.element_size();
    save({{"x", x}});
    const auto rows = x.narrow(0, 2, 3);
    EXPECT_TRUE(load("x", rows, {0, 2, 3, 6}).equal(rows));
    EXPECT_THAT(report_.loaded, ElementsAre("x"));
    EXPECT_EQ(bytes_of_tensors(), 3 * 1024 * width);
    const auto columns = x.narrow(1, 512, 256);
    EXPECT_TRUE(load("x", columns, {1, 512, 256, 1024}).equal(columns));
    EXPECT_EQ(bytes_of_tensors(), 6 * 256 * width);
    EXPECT_TRUE(load("x", x, {0, 0, 6, 6}).equal(x));
    EXPECT_EQ(bytes_of_tensors(), x.nbytes());
    EXPECT_EQ(load("x", x.narrow(0, 6, 0), {0, 6, 0, 6}).numel(), 0);
    EXPECT_EQ(bytes_of_tensors(), 0);
  }
}

/// A disk reads sectors: gaps between short parts cost less than more calls.
TEST_F(Shards, OfShortPartsOfRowsAreReadWithWhatLiesBetweenThem) {
  const auto x = uniform({6, 64}, at::kFloat);
  save({{"x", x}});
  EXPECT_TRUE(load("x", x.narrow(1, 16, 32), {1, 16, 32, 64}).equal(x.narrow(1, 16, 32)));
  EXPECT_EQ(bytes_of_tensors(), 4 * (5 * 64 + 32));
}

TEST_F(Shards, AreConvertedAndCopiedToAnyLayout) {
  const auto x = uniform({400, 1024}, at::kFloat);
  save({{"x", x}});
  const auto options = LoadOptions().dtype(at::kDouble);
  for (const auto& shard : {TensorShard{0, 100, 300, 400}, TensorShard{1, 512, 256, 1024}}) {
    const auto part = x.narrow(shard.dim, shard.first, shard.size);
    EXPECT_TRUE(load("x", part.to(at::kDouble), shard, options).equal(part.to(at::kDouble)));
    EXPECT_EQ(bytes_of_tensors(), part.nbytes());
    EXPECT_TRUE(load("x", part.t().contiguous().t(), shard).equal(part));
    EXPECT_EQ(bytes_of_tensors(), part.nbytes());
  }
}

TEST_F(Shards, OfBoolsAndOfOneDimension) {
  const auto bools = uniform({8, 600}, at::kFloat) > 0;
  save({{"x", bools}});
  EXPECT_TRUE(
      load("x", bools.narrow(1, 10, 550), {1, 10, 550, 600}).equal(bools.narrow(1, 10, 550)));
  const auto bias = uniform({10}, at::kFloat);
  save({{"x", bias}});
  EXPECT_TRUE(load("x", bias.narrow(0, 7, 3), {0, 7, 3, 10}).equal(bias.narrow(0, 7, 3)));
  EXPECT_EQ(bytes_of_tensors(), 3 * 4);
}

TEST_F(Shards, AreReadAloneFromPyTorchFiles) {
  const auto x = uniform({64, 4096}, at::kFloat);
  save({{"x", x}}, WeightFormat::torchscript);
  for (const auto& shard : {TensorShard{0, 16, 16, 64}, TensorShard{1, 1024, 1024, 4096}}) {
    const auto part = x.narrow(shard.dim, shard.first, shard.size);
    EXPECT_TRUE(load("x", part, shard).equal(part));
    EXPECT_LT(report_.bytes_read, x.nbytes() / 2);
  }
}

TEST_F(Shards, AreReadAloneFromSeveralFiles) {
  const auto x = uniform({8, 1024}, at::kFloat), y = uniform({1024, 1024}, at::kFloat);
  save_weights(Box({{"x", x}}), directory_ / "a.safetensors");
  save_weights(Box({{"y", y}}), directory_ / "b.safetensors");
  write(R"({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})");
  Box box({{"x", at::zeros({4, 1024})}, {"y", at::zeros({2, 1024})}});
  const TensorShards shards = {{"x", {0, 4, 4, 8}}, {"y", {0, 1000, 2, 1024}}};
  const auto report = load_weights(box, path_, LoadOptions().shards(shards));
  EXPECT_TRUE(box["x"].equal(x.narrow(0, 4, 4)));
  EXPECT_TRUE(box["y"].equal(y.narrow(0, 1000, 2)));
  EXPECT_GT(report.bytes_read, 6 * 4096U);
  EXPECT_LT(report.bytes_read, 6 * 4096U + 3 * 4096U);
}

/// Without shards: each tensor once.
TEST_F(Shards, CountTheBytesOfWholeTensorsToo) {
  const auto x = uniform({300, 1024}, at::kFloat);
  save({{"x", x}});
  Box box({{"x", at::zeros({300, 1024})}});
  report_ = load_weights(box, path_);
  EXPECT_EQ(bytes_of_tensors(), x.nbytes());
}

TEST_F(Shards, GoThroughNameMaps) {
  const auto options = [](const NameMap& map) { return LoadOptions().name_map(map); };
  const auto x = uniform({1024, 512}, at::kFloat);
  save({{"x", x}});
  // Rows of the module's tensor are columns of the file's, and the other way round.
  auto loaded =
      load("y", at::zeros({256, 1024}), {0, 128, 256, 512}, options(NameMap().transpose("x", "y")));
  EXPECT_TRUE(loaded.equal(x.t().narrow(0, 128, 256)));
  EXPECT_EQ(bytes_of_tensors(), x.nbytes() / 2);
  loaded =
      load("y", at::zeros({512, 100}), {1, 20, 100, 1024}, options(NameMap().transpose("x", "y")));
  EXPECT_TRUE(loaded.equal(x.t().narrow(1, 20, 100)));
  EXPECT_EQ(bytes_of_tensors(), 100 * 512 * 4);
}

TEST_F(Shards, AreOfTheirPartWhereAMapSplits) {
  const auto x = uniform({12, 1024}, at::kFloat);
  for (const bool transposed : {false, true}) {
    save({{"x", transposed ? x.t() : x}});
    const auto map = transposed ? NameMap().transpose_split("x", {"a", "b", "c"})
                                : NameMap().split("x", {"a", "b", "c"});
    // a: 4 of 8 rows, b: 2 rows, c: half of the columns of 2 rows
    Box box({{"a", at::zeros({4, 1024})}, {"b", at::zeros({2, 1024})}, {"c", at::zeros({2, 512})}});
    report_ = load_weights(
        box, path_,
        LoadOptions().name_map(map).shards({{"a", {0, 4, 4, 8}}, {"c", {1, 512, 512, 1024}}}));
    EXPECT_TRUE(box["a"].equal(x.narrow(0, 4, 4)));
    EXPECT_TRUE(box["b"].equal(x.narrow(0, 8, 2)));
    EXPECT_TRUE(box["c"].equal(x.narrow(0, 10, 2).narrow(1, 512, 512)));
    EXPECT_TRUE(transposed || bytes_of_tensors() == (4 + 2 + 1) * 4096);
  }
}

TEST_F(Shards, TakeTheirRowsOfEachPartThatAMapPacks) {
  const auto a = uniform({4, 1024}, at::kFloat), b = uniform({2, 1024}, at::kFloat),
             c = uniform({4, 1024}, at::kFloat);
  const auto whole = at::cat({a, b, c});
  save({{"a", a}, {"b", b}, {"c", c}});
  const auto options = LoadOptions().name_map(NameMap().pack({"a", "b", "c"}, "x"));
  for (const auto& shard :
       {TensorShard{0, 3, 4, 10}, TensorShard{0, 5, 1, 10}, TensorShard{0, 7, 3, 10},
        TensorShard{0, 0, 10, 10}, TensorShard{1, 256, 512, 1024}}) {
    const auto part = whole.narrow(shard.dim, shard.first, shard.size);
    EXPECT_TRUE(load("x", part, shard, options).equal(part));
    EXPECT_EQ(bytes_of_tensors(), part.nbytes());
  }
}

TEST_F(Shards, TakeTheirRowsOfEachHeadThatAMapSplits) {
  const auto packed = uniform({3 * 2 * 4, 1024}, at::kFloat);  // 3 heads of 2 parts of 4 rows
  save({{"packed", packed}});
  const auto options = LoadOptions().name_map(NameMap().split_heads("packed", {"a", "b"}, 3));
  const auto whole = packed.view({3, 2, 4, 1024}).select(1, 1).reshape({12, 1024});
  for (const auto& shard : {TensorShard{0, 4, 4, 12}, TensorShard{0, 2, 7, 12},
                            TensorShard{0, 0, 12, 12}, TensorShard{1, 256, 512, 1024}}) {
    const auto part = whole.narrow(shard.dim, shard.first, shard.size);
    Box box({{"a", at::zeros({12, 1024})}, {"b", at::zeros_like(part)}});
    report_ = load_weights(box, path_, LoadOptions(options).shards({{"b", shard}}));
    EXPECT_TRUE(box["b"].equal(part));
    EXPECT_EQ(bytes_of_tensors(), part.nbytes() + 12 * 4096);
  }
}

TEST_F(Shards, OfATiedTensorCompareTheirRows) {
  const auto x = uniform({8, 1024}, at::kFloat);
  auto head = x.clone();
  head[7][0] = 2;
  save({{"embedding", x}, {"head", head}});
  const auto options =
      LoadOptions().name_map(NameMap().tied("head", {"embedding"}).rename("embedding", "x"));
  EXPECT_TRUE(load("x", x.narrow(0, 0, 4), {0, 0, 4, 8}, options).equal(x.narrow(0, 0, 4)));
  EXPECT_EQ(bytes_of_tensors(), 3 * 4 * 4096);  // twice to compare, once to load
  EXPECT_EQ(error({{"x", {0, 4, 4, 8}}}, {{"x", at::zeros({4, 1024})}}, options),
            "load_weights: name map: head -> embedding: head must equal embedding, to which it is "
            "tied in the module");
}

TEST_F(Shards, OfOneParameterCompareTheirRows) {
  const auto x = uniform({8, 1024}, at::kFloat);
  auto head = x.clone();
  head[7][0] = 2;
  save({{"embedding", x}, {"head", head}});
  const auto load_from = [&](int64_t first) {
    torch::nn::Module module("Tied");
    const auto part = module.register_parameter("embedding", at::zeros({4, 1024}));
    module.register_parameter("head", part);
    const TensorShard shard{0, first, 4, 8};
    report_ =
        load_weights(module, path_, LoadOptions().shards({{"embedding", shard}, {"head", shard}}));
    return part;
  };
  EXPECT_TRUE(load_from(0).equal(x.narrow(0, 0, 4)));
  EXPECT_EQ(bytes_of_tensors(), 3 * 4 * 4096);  // twice to compare, once to load
  EXPECT_EQ(value_error([&] { load_from(4); }),
            "load_weights: head must equal embedding in path (" + path_ +
                "), which are one tensor of the module");
}

TEST_F(Shards, MustFitTheModule) {
  save({{"x", at::zeros({8, 4})}});
  const NamedTensors ours = {{"x", at::zeros({2, 4})}};
  const std::string start = "load_weights: shards: ";
  EXPECT_EQ(error({{"y", {0, 0, 2, 8}}}, ours),
            start + "y must be a parameter or buffer of the module");
  for (const int64_t dim : {-1, 2}) {
    EXPECT_EQ(error({{"x", {dim, 0, 2, 8}}}, ours),
              start + "x: dim (" + std::to_string(dim) +
                  ") must be a dimension of the module's tensor [2, 4]");
  }
  EXPECT_EQ(error({{"x", {0, 0, 4, 8}}}, ours),
            start + "x: size (4) must equal dim 0 of the module's tensor [2, 4]");
  for (const int64_t first : {-1, 7}) {
    EXPECT_EQ(
        error({{"x", {0, first, 2, 8}}}, ours),
        start + "x: first (" + std::to_string(first) + ") must be from 0 to whole - size (8 - 2)");
  }
  EXPECT_EQ(error({{"x", {0, 0, 2, 1}}}, ours),
            start + "x: first (0) must be from 0 to whole - size (1 - 2)");
}

TEST_F(Shards, NeedTheWholeTensorInTheFile) {
  const auto start = "load_weights: path (" + path_ +
                     ") must fit the module, 0 of whose 1 tensors do\n  misshapen: ";
  const NamedTensors ours = {{"x", at::zeros({2, 4})}};
  save({{"x", at::zeros({2, 4})}});
  EXPECT_EQ(error({{"x", {0, 0, 2, 8}}}, ours),
            start + "x (Float [2, 4] in the module, a part of [8, 4], Float [2, 4] in the file)");
  save({{"x", at::zeros({4, 8})}});
  EXPECT_EQ(error({{"x", {0, 0, 2, 8}}}, ours),
            start +
                "x (Float [2, 4] in the module, a part of [8, 4], Float [4, 8] in the file)\n"
                "  LoadOptions that may help: name_map");
  save({{"in", at::zeros({2, 4})}});
  EXPECT_EQ(
      error({{"x", {0, 0, 2, 8}}}, ours, LoadOptions().name_map(NameMap().split("in", {"x"}))),
      "load_weights: name map: in -> x: in [2, 4] must have 8 rows, those of its parts "
      "together");
}

TEST_F(Shards, ThatDoNotFitAreReportedWhenNotStrict) {
  save({{"x", at::zeros({2, 4})}, {"y", at::ones({4})}});
  Box box({{"x", at::zeros({2, 4})}, {"y", at::zeros({2})}});
  const auto report = load_weights(
      box, path_, LoadOptions().strict(false).shards({{"x", {0, 0, 2, 8}}, {"y", {0, 2, 2, 4}}}));
  EXPECT_THAT(report.loaded, ElementsAre("y"));
  EXPECT_THAT(report.misshapen,
              ElementsAre("x (Float [2, 4] in the module, a part of [8, 4], Float [2, 4] in the "
                          "file)"));
  EXPECT_TRUE(box["y"].equal(at::ones({2})));
}

}  // namespace
}  // namespace heed::test
