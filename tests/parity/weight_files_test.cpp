// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <heed/weights.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "support/weight_files.h"

namespace heed::test::weight_files {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(HEED_PARITY_FIXTURES) / "weights";

/// weight_files.py says what is in the files.
class FilesOfPython : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kFolder / "tensors.safetensors")) {
      GTEST_SKIP() << read_bytes(kFolder / "skipped")
                   << read_bytes(kFolder.parent_path() / "skipped");
    }
  }
};

NamedTensors expected_tensors() {
  const auto numbers = at::arange(6.F).view({2, 3});
  const std::map<std::string, at::ScalarType> dtypes{{"bool", at::kBool},
                                                     {"uint8", at::kByte},
                                                     {"int8", at::kChar},
                                                     {"int16", at::kShort},
                                                     {"int32", at::kInt},
                                                     {"int64", at::kLong},
                                                     {"uint16", at::kUInt16},
                                                     {"uint32", at::kUInt32},
                                                     {"uint64", at::kUInt64},
                                                     {"float16", at::kHalf},
                                                     {"bfloat16", at::kBFloat16},
                                                     {"float32", at::kFloat},
                                                     {"float64", at::kDouble},
                                                     {"complex64", at::kComplexFloat},
                                                     {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                     {"float8_e5m2", at::kFloat8_e5m2},
                                                     {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
                                                     {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz}};
  NamedTensors tensors{{"scalar", at::full({}, 3.5F)},
                       {"empty", at::zeros({0, 3})},
                       {"transposed", numbers.t()},
                       {"part", at::arange(10).slice(0, 3, 9, 2)}};
  for (const auto& [name, dtype] : dtypes) tensors[name] = numbers.to(dtype);
  return tensors;
}

void expect_same_bits(const at::Tensor& actual, const at::Tensor& expected,
                      const std::string& name) {
  const auto raw = [](const at::Tensor& tensor) {
    return tensor.contiguous().flatten().view(at::kByte);
  };
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << name;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
  EXPECT_TRUE(raw(actual).equal(raw(expected))) << name;
}

void expect_tensors(const std::string& file, const NamedTensors& expected) {
  NamedTensors zeros;
  for (const auto& [name, tensor] : expected) zeros[name] = at::zeros_like(tensor);
  Box box(zeros);
  load_weights(box, kFolder / file);
  for (const auto& [name, tensor] : expected) {
    expect_same_bits(box[name], tensor, file + ": " + name);
  }
}

TEST_F(FilesOfPython, HoldEveryDtype) {
  for (const auto* file : {"tensors_2.pt", "tensors_3.pt", "tensors_4.pt", "tensors_5.pt",
                           "tensors.safetensors", "legacy_tensors.pt"}) {
    expect_tensors(file, expected_tensors());
  }
}

TEST_F(FilesOfPython, HoldParametersAndTiedTensors) {
  auto expected = expected_tensors();
  for (const auto* name : {"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}) {
    expected.erase(name);
  }
  expected["tied"] = expected["transposed"].t();
  expect_tensors("parameters.pt", expected);
  expect_tensors("legacy_parameters.pt", expected);
}

TEST_F(FilesOfPython, HoldTheTensorsOfAProgram) {
  auto expected = expected_tensors();
  expected["tied"] = expected["transposed"].t();
  expect_tensors("tensors.pt2", expected);
}

torch::nn::Sequential zero_model() {
  torch::nn::Sequential model(torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 2));
  for (auto& parameter : model->parameters()) parameter.data().zero_();
  for (auto& buffer : model->buffers()) buffer.zero_();
  return model;
}

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value().detach();
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value();
  return tensors;
}

void expect_model(const torch::nn::Module& module, const std::string& file) {
  int64_t number = 0;
  for (const auto& [name, tensor] : tensors_of(module)) {
    const auto expected = at::arange(tensor.numel(), at::kLong).add(number++).view_as(tensor);
    expect_same_bits(tensor, expected.to(tensor.scalar_type()), file + ": " + name);
  }
}

TEST_F(FilesOfPython, HoldAModel) {
  std::vector<std::string> files{"state_dict.pt",
                                 "model.safetensors",
                                 "model.safetensors.index.json",
                                 "scripted.pt",
                                 "traced.pt",
                                 "model.pt2",
                                 "model_2_6.pt2",
                                 "model_2_8.pt2",
                                 "legacy.pt",
                                 "pytorch_model.bin.index.json"};
  if (std::filesystem::exists(kFolder / "compiled.pt2")) files.emplace_back("compiled.pt2");
  for (const auto& file : files) {
    auto model = zero_model();
    load_weights(*model, kFolder / file);
    expect_model(*model, file);
  }
  auto model = zero_model();
  load_weights(*model, kFolder / "checkpoint.pt", LoadOptions().key("net.ema"));
  expect_model(*model, "checkpoint.pt");
  auto linear = torch::nn::Linear(3, 2);
  load_weights(*linear, kFolder / "scripted.pt", LoadOptions().prefix("1."));
  expect_same_bits(linear->weight.detach(), tensors_of(*model)["1.weight"], "prefix");
}

/// safetensors.torch.save_model writes one of them.
TEST_F(FilesOfPython, HoldBothNamesOfATensor) {
  const auto expected = at::arange(6.F).view({2, 3});
  for (const auto* name : {"first.", "second."}) {
    torch::nn::Linear linear(torch::nn::LinearOptions(3, 2).bias(false));
    load_weights(*linear, kFolder / "save_model.safetensors", LoadOptions().prefix(name));
    EXPECT_TRUE(linear->weight.equal(expected)) << name;
  }
}

TEST_F(FilesOfPython, MayHoldWhatIsNoTensor) {
  auto model = zero_model();
  const auto report = load_weights(*model, kFolder / "beside.pt");
  expect_model(*model, "beside.pt");
  EXPECT_EQ(report.passed_over, std::vector<std::string>({"1._extra_state", "args", "best", "note",
                                                          "sgd", "sizes", "step"}));
}

TEST_F(FilesOfPython, MayHoldTensorsInAnyAttribute) {
  std::vector<std::string> names;
  const auto tensors = read_weights(kFolder / "attributes.pt");
  for (const auto& item : tensors) names.push_back(item.first);
  EXPECT_EQ(names, std::vector<std::string>({"named.a", "pair.0", "plain", "table.0", "table.1"}));
  EXPECT_TRUE(tensors.at("plain").equal(at::arange(6.F).view({2, 3})));
}

TEST_F(FilesOfPython, MayHoldTensorsThatHeedCannot) {
  auto model = zero_model();
  const auto report = load_weights(*model, kFolder / "odd.pt", LoadOptions().strict(false));
  expect_model(*model, "odd.pt");
  EXPECT_EQ(report.unexpected,
            std::vector<std::string>({"conjugate", "meta", "quantized", "sparse"}));
}

TEST_F(FilesOfPython, ThatHoldNoNamedTensorsAreRefused) {
  const std::map<std::string, std::string> reasons{
      {"frozen.pt",
       "must hold weights by name; those of a frozen module (torch.jit.freeze, "
       "optimize_for_inference) are constants of its code: export the module before it is frozen"},
      {"optimized.pt",
       "must hold weights by name; those of a frozen module (torch.jit.freeze, "
       "optimize_for_inference) are constants of its code: export the module before it is frozen"},
      {"list.pt",
       "must hold a dict of tensors; it holds a list: save a dict of its tensors by name instead"},
      {"module.pt",
       "must hold a dict of tensors; it holds a call of "
       "\"torch.nn.modules.container.Sequential\", which is not run: save the module's "
       "state_dict() instead"}};
  for (const auto& [file, reason] : reasons) {
    auto model = zero_model();
    const auto path = (kFolder / file).string();
    EXPECT_ERROR("load_weights: path (" + path + ") " + reason, load_weights(*model, path));
  }
}

TEST_F(FilesOfPython, AreReadBackThereBitForBit) {
  const Box box(expected_tensors());
  save_weights(box, kFolder / "saved.safetensors");
  save_weights(box, kFolder / "saved.pt", SaveOptions().format(WeightFormat::torchscript));
  auto model = zero_model();
  load_weights(*model, kFolder / "state_dict.pt");
  save_weights(*model, kFolder / "saved_model.pt", SaveOptions().format(WeightFormat::torchscript));
  const auto command = std::string("\"") + HEED_PYTHON + "\" \"" + HEED_WEIGHT_FILES +
                       "\" check \"" + kFolder.string() + '"';
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace heed::test::weight_files
