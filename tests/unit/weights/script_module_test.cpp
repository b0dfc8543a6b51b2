// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/weights.h>
#include <torch/script.h>

#include <string>
#include <vector>

#include "support/pickles.h"
#include "support/weight_files.h"

namespace heed::test::script_files {
namespace {

using ::testing::ElementsAre;
using ScriptModule = WeightFiles;

at::Tensor filled(double value) { return at::full({2}, value); }

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& item : tensors) names.push_back(item.first);
  return names;
}

/// Tensors in every kind of attribute that a scripted module may have.
torch::jit::Module with_attributes() {
  torch::jit::Module module(c10::QualifiedName("__torch__.M"));
  module.register_parameter("weight", filled(0), /*is_buffer=*/false);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_attribute("plain", c10::TensorType::get(), filled(1));
  module.register_attribute("none", c10::OptionalType::ofTensor(), c10::IValue());
  module.register_attribute("some", c10::OptionalType::ofTensor(), filled(2));
  module.register_attribute("list", c10::ListType::ofTensors(),
                            c10::List<at::Tensor>({filled(3), filled(4)}));
  const auto tuple = c10::TupleType::create({c10::IntType::get(), c10::TensorType::get()});
  module.register_attribute("pair", tuple, c10::ivalue::Tuple::create({7, filled(5)}));
  c10::Dict<std::string, at::Tensor> named;
  named.insert("a.b", filled(6));
  module.register_attribute(
      "named", c10::DictType::create(c10::StringType::get(), c10::TensorType::get()), named);
  c10::Dict<int64_t, c10::List<at::Tensor>> numbered;
  numbered.insert(9, c10::List<at::Tensor>({filled(7)}));
  module.register_attribute(
      "numbered", c10::DictType::create(c10::IntType::get(), c10::ListType::ofTensors()), numbered);
  module.register_attribute("counts", c10::ListType::ofInts(), c10::List<int64_t>({1, 2, 3}));
  return module;
}

TEST_F(ScriptModule, HoldsTheTensorsOfAllAttributes) {
  auto parent = torch::jit::Module(c10::QualifiedName("__torch__.Parent"));
  parent.register_module("inner", with_attributes());
  parent.save(path_);
  const auto tensors = read_weights(path_);
  ASSERT_THAT(names_of(tensors),
              ElementsAre("inner.list.0", "inner.list.1", "inner.named.a.b", "inner.numbered.9.0",
                          "inner.pair.1", "inner.plain", "inner.some", "inner.weight"));
  const std::vector<double> values = {3, 4, 6, 7, 5, 1, 2, 0};
  size_t i = 0;
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(tensor.equal(filled(values[i++]))) << name;
}

/// Attributes may be left out, as constants of a program, and parameters may not.
TEST_F(ScriptModule, NamesTheTensorsThatAModuleDoesWithout) {
  with_attributes().save(path_);
  Box box({{"weight", filled(9)}, {"plain", filled(9)}});
  const auto report = load_weights(box, path_);
  EXPECT_EQ(report.loaded.size(), 2U);
  EXPECT_TRUE(box["plain"].equal(filled(1)));
  EXPECT_THAT(report.passed_over,
              ElementsAre("list.0", "list.1", "named.a.b", "numbered.9.0", "pair.1", "some"));
  Box nothing({});
  EXPECT_THAT(load_weights(nothing, path_, LoadOptions().strict(false)).unexpected,
              ElementsAre("weight"));
  // A parameter stays one where it is packed with an attribute.
  const auto packed = LoadOptions().name_map(NameMap().pack({"plain", "weight"}, "packed"));
  EXPECT_THAT(load_weights(nothing, path_, LoadOptions(packed).strict(false)).unexpected,
              ElementsAre("plain", "weight"));
}

TEST_F(ScriptModule, HoldsTheConstantsOfItsCode) {
  torch::jit::Module module(c10::QualifiedName("__torch__.Constant"));
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_parameter("weight", filled(1), /*is_buffer=*/false);
  module.define("def forward(self, x):\n  return self.weight * x\n");
  module.save(path_);
  EXPECT_THAT(names_of(read_weights(path_)), ElementsAre("weight"));
  auto graph = module.get_method("forward").graph();
  const auto constant = graph->insertConstant(filled(2));
  constant->node()->moveBefore(*graph->nodes().begin());
  for (auto* node : graph->nodes()) {
    if (node->kind() == c10::Symbol::fromQualString("aten::mul")) node->replaceInput(1, constant);
  }
  module.save(path_);
  const auto tensors = read_weights(path_);
  ASSERT_THAT(names_of(tensors), ElementsAre("CONSTANTS.c0", "weight"));
  EXPECT_TRUE(tensors.at("CONSTANTS.c0").equal(filled(2)));
}

/// Code of a writer that puts names between quotes without escapes declares other names.
TEST_F(ScriptModule, IsReadWholeWhateverItsCodeDeclares) {
  using namespace pickles;
  const auto module = global("__torch__", "M") + ")\x81" +
                      dict(text("a\"b") + kWhole + text("c\nd") + kWhole + text("x") + kWhole) +
                      'b';
  for (const auto* const code :
       {"class M(Module):\n  __parameters__ = [\"a\"b\", \"c\nd\", \"x\", ]\n", "", "class N:\n"}) {
    auto records = saved(pickle(module));
    records["code/__torch__.py"] = code;
    write(archive_of(records));
    EXPECT_THAT(names_of(read_weights(path_)), ElementsAre("a\"b", "c\nd", "x"));
  }
}

}  // namespace
}  // namespace heed::test::script_files
