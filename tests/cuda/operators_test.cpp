// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paths/cuda/operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "attend/paths/cuda/kernels.h"

/// The operators of LibTorch's versions, as these state them in schemas/.

namespace heed::test::of_operators {
namespace {

using Schemas = std::map<std::string, c10::FunctionSchema>;

/// Without overloads. Names without "aten::".
Schemas schemas_of(const std::filesystem::path& file) {
  Schemas schemas;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    auto schema = torch::jit::parseSchema(line);
    if (schema.overload_name().empty()) schemas.emplace(schema.name(), std::move(schema));
  }
  return schemas;
}

std::map<std::string, Schemas> versions() {
  std::map<std::string, Schemas> found;
  for (const auto& entry : std::filesystem::directory_iterator(HEED_SCHEMAS)) {
    found.emplace(entry.path().stem().string(), schemas_of(entry.path()));
  }
  return found;
}

detail::Problem problem(bool is_packed) {
  detail::Problem problem;
  problem.query = problem.key = problem.value = at::zeros({1, 2, 3, 8});
  problem.causal = true;
  problem.left_window = 1;
  if (is_packed) {
    const auto offsets = at::zeros({2}, at::kInt);
    problem.sequences = detail::PackedSequences{offsets, offsets, offsets, 3, 3};
  } else {
    problem.bias = at::zeros({1, 2, 3, 3});
  }
  return problem;
}

void expect_fits(const c10::FunctionSchema& schema, const detail::NamedValues& given) {
  const auto values = detail::arguments_of(schema, given);
  ASSERT_EQ(values.size(), schema.arguments().size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& argument = schema.arguments()[i];
    auto type = argument.type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    const bool fits = values[i].isTensor() ? type->kind() == c10::TensorType::Kind
                      : type->kind() == c10::SymIntType::Kind
                          ? values[i].isInt()
                          : values[i].type()->isSubtypeOf(*type);
    EXPECT_TRUE(fits || (values[i].isNone() && argument.type()->kind() == c10::OptionalType::Kind))
        << schema.name() << ": " << argument.name();
  }
}

TEST(Operators, AreCalledAsEachVersionStatesThem) {
  const auto all = versions();
  ASSERT_GE(all.size(), 3U);
  for (const auto& [version, schemas] : all) {
    SCOPED_TRACE(version);
    for (const bool is_packed : {false, true}) {
      const auto call = problem(is_packed);
      const auto x = call.query;
      const detail::KernelResult result{x, x, {x, x}};
      for (const auto& [kernel, name] :
           {std::pair(detail::Kernel::flash, "aten::_flash_attention_"),
            std::pair(detail::Kernel::efficient, "aten::_efficient_attention_")}) {
        expect_fits(schemas.at(name + std::string("forward")),
                    detail::forward_arguments(kernel, call));
        expect_fits(schemas.at(name + std::string("backward")),
                    detail::backward_arguments(kernel, call, result, x, !is_packed));
      }
    }
  }
}

/// The results that the backward operator is given back.
TEST(Operators, ReturnWhatTheBackwardPassNeeds) {
  for (const auto& [version, schemas] : versions()) {
    SCOPED_TRACE(version);
    const auto names = [&](const char* name) {
      std::vector<std::string> found;
      for (const auto& result : schemas.at(name).returns()) found.push_back(result.name());
      found.resize(4);
      return found;
    };
    const auto of_rng = version == "2.6.0"
                            ? std::vector<std::string>{"philox_seed", "philox_offset"}
                            : std::vector<std::string>{"rng_state", "unused"};
    EXPECT_THAT(names("aten::_flash_attention_forward"),
                testing::ElementsAre("output", "softmax_logsumexp", of_rng[0], of_rng[1]));
    EXPECT_THAT(names("aten::_efficient_attention_forward"),
                testing::ElementsAre("output", "logsumexp", "philox_seed", "philox_offset"));
  }
}

std::string refusal(const char* schema, const detail::NamedValues& given) {
  try {
    detail::arguments_of(torch::jit::parseSchema(schema), given);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(Operators, MustKnowEveryArgument) {
  constexpr auto kSchema = "aten::f(int a, int? b, int c=3) -> int";
  EXPECT_EQ(refusal(kSchema, {{"a", 1}, {"b", c10::IValue()}}), "");
  EXPECT_EQ(refusal(kSchema, {{"a", 1}}), "aten::f of this LibTorch needs an argument b");
  EXPECT_EQ(refusal(kSchema, {{"a", 1}, {"b", 2}, {"d", 4}}),
            "aten::f of this LibTorch has no argument d");
  EXPECT_EQ(refusal(kSchema, {{"a", 1}, {"b", 2}, {"d", c10::IValue()}}), "");  // None is no wish
  EXPECT_EQ(refusal("aten::f(int philox_seed) -> int", {{"rng_state", 1}}), "");
}

}  // namespace
}  // namespace heed::test::of_operators
