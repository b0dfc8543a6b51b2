// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <heed/fused_adamw.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "support/expect.h"
#include "unit/models/fused_adamw_parameters.h"

namespace heed::test::of_fused_adamw {
namespace {

using torch::optim::AdamWParamState;
using torch::optim::OptimizerParamGroup;

TEST(FusedAdamWErrors, NameWhatIsWrongWithParameters) {
  const auto weight = at::zeros({2, 3}).requires_grad_(), other = at::zeros({3}).requires_grad_();
  const auto refusal = [&](const std::vector<OptimizerParamGroup>& groups) {
    return value_error([&] { const FusedAdamW optimizer(groups); });
  };
  EXPECT_ERROR("FusedAdamW: parameters must not be empty",
               const FusedAdamW optimizer(std::vector<at::Tensor>{}));
  EXPECT_EQ(refusal({}), "FusedAdamW: parameters must not be empty");
  EXPECT_EQ(refusal({{{weight}}, {{other, at::Tensor()}}}),
            "FusedAdamW: parameter 1 of group 1 must be defined");
  EXPECT_EQ(refusal({{{weight, at::zeros({2}, at::kLong)}}}),
            "FusedAdamW: dtype (Long) of parameter 1 of group 0 must be Float, Double, BFloat16 or "
            "Half");
  EXPECT_EQ(refusal({{{at::zeros({2}).to_sparse()}}}),
            "FusedAdamW: layout (Sparse) of parameter 0 of group 0 must be Strided");
  EXPECT_EQ(refusal({{{weight * 2.0}}}), "FusedAdamW: parameter 0 of group 0 must be a leaf");
  EXPECT_EQ(refusal({{{at::zeros({1}).expand({3})}}}),
            "FusedAdamW: elements of parameter 0 of group 0 must not share memory");
  EXPECT_EQ(refusal({{{weight}}, {{other, weight}}}),
            "FusedAdamW: parameter 1 of group 1 must not be in group 0 too");
  EXPECT_EQ(refusal({{{weight}, std::make_unique<torch::optim::SGDOptions>(0.1)}}),
            "FusedAdamW: options of group 0 must be AdamWOptions");
}

TEST(FusedAdamWErrors, NameWhatIsWrongWithOptions) {
  const auto weight = at::zeros({2}).requires_grad_();
  const auto refusal = [&](const AdamWOptions& options) {
    return value_error([&] { const FusedAdamW optimizer({weight}, options); });
  };
  EXPECT_EQ(refusal(AdamWOptions(-1.0)), "FusedAdamW: lr (-1) must be at least 0");
  EXPECT_EQ(refusal(AdamWOptions(NAN)), "FusedAdamW: lr (nan) must be at least 0");
  EXPECT_EQ(refusal(AdamWOptions().eps(-1.0)), "FusedAdamW: eps (-1) must be at least 0");
  EXPECT_EQ(refusal(AdamWOptions().weight_decay(-0.5)),
            "FusedAdamW: weight_decay (-0.5) must be at least 0");
  EXPECT_EQ(refusal(AdamWOptions().betas({0.5, 1.0})),
            "FusedAdamW: betas (0.5, 1) must be in [0, 1)");
  FusedAdamW optimizer({weight}, 0.1);
  give_gradient(weight, at::ones({2}));
  optimizer.param_groups()[0].options().set_lr(-2.0);
  EXPECT_ERROR("FusedAdamW::step: lr (-2) of group 0 must be at least 0", optimizer.step());
  EXPECT_ERROR("FusedAdamW::step_clipped: max_norm (0) must be above 0",
               optimizer.step_clipped(0.0));
  EXPECT_TRUE(weight.eq(0.0).all().item<bool>());
}

/// A program may set any tensor as a gradient.
TEST(FusedAdamWErrors, NameWhatIsWrongWithGradients) {
  auto weight = at::zeros({2}).requires_grad_(), other = at::zeros({2}).requires_grad_();
  FusedAdamW optimizer({weight, other}, 0.1);
  give_gradient(weight, at::ones({2}));
  const auto expect_refused = [&](const at::Tensor& gradient, const std::string& text) {
    other.mutable_grad() = gradient;
    EXPECT_EQ(value_error([&] { optimizer.step(); }), "FusedAdamW::step: gradient " + text);
    EXPECT_EQ(value_error([&] { optimizer.step_clipped(0.5); }),
              "FusedAdamW::step_clipped: gradient " + text);
    EXPECT_TRUE(weight.eq(0.0).all().item<bool>()) << text;
    EXPECT_TRUE(weight.grad().eq(1.0).all().item<bool>()) << text;
    EXPECT_TRUE(optimizer.state().empty()) << text;
  };
  const std::string floating = " of parameter 1 of group 0 must be Float, Double, BFloat16 or Half";
  expect_refused(at::ones({2}, at::kLong), "dtype (Long)" + floating);
  expect_refused(at::ones({2}, at::kBool), "dtype (Bool)" + floating);
  expect_refused(at::ones({2}, at::kComplexFloat), "dtype (ComplexFloat)" + floating);
  expect_refused(at::ones({2}).to(at::kFloat8_e5m2), "dtype (Float8_e5m2)" + floating);
  expect_refused(at::ones({2}).to_sparse(),
                 "layout (Sparse) of parameter 1 of group 0 must be Strided");
  expect_refused(at::ones({3}), "[3] of parameter 1 of group 0 must have its shape [2]");
  expect_refused(at::_nested_tensor_from_tensor_list({at::ones({1}), at::ones({2})}),
                 "of parameter 1 of group 0 must not be nested");
}

/// The parameter before the wrong one is as it was.
TEST(FusedAdamWErrors, LeaveEverythingAsItWas) {
  auto weight = at::zeros({2}).requires_grad_(), other = at::zeros({3}).requires_grad_();
  FusedAdamW optimizer({weight, other}, 0.1);
  give_gradient(weight, at::ones({2}));
  other.mutable_grad() = at::ones({3}).to_sparse();
  EXPECT_ERROR(
      "FusedAdamW::step: gradient layout (Sparse) of parameter 1 of group 0 must be Strided",
      optimizer.step());
  give_gradient(other, at::ones({3}));
  auto state = std::make_unique<AdamWParamState>();
  optimizer.state()[other.unsafeGetTensorImpl()] = std::make_unique<AdamWParamState>(*state);
  EXPECT_ERROR("FusedAdamW::step: state of parameter 1 of group 0 must have exp_avg and exp_avg_sq",
               optimizer.step());
  state->exp_avg(at::zeros({3}));
  state->exp_avg_sq(at::zeros({2}));
  optimizer.state()[other.unsafeGetTensorImpl()] = std::make_unique<AdamWParamState>(*state);
  EXPECT_ERROR("FusedAdamW::step: exp_avg_sq [2] of parameter 1 of group 0 must have its shape [3]",
               optimizer.step());
  optimizer.state()[other.unsafeGetTensorImpl()] = std::make_unique<torch::optim::SGDParamState>();
  EXPECT_ERROR("FusedAdamW::step: state of parameter 1 of group 0 must be that of an AdamW",
               optimizer.step());
  state->exp_avg_sq(at::zeros({3}).to_sparse());
  optimizer.state()[other.unsafeGetTensorImpl()] = std::make_unique<AdamWParamState>(*state);
  EXPECT_ERROR(
      "FusedAdamW::step: exp_avg_sq layout (Sparse) of parameter 1 of group 0 must be Strided",
      optimizer.step());
  EXPECT_TRUE(weight.eq(0.0).all().item<bool>());
  EXPECT_EQ(optimizer.state().count(weight.unsafeGetTensorImpl()), 0U);
  // A group that is added later is checked in the next step.
  optimizer.state().clear();
  optimizer.add_param_group(OptimizerParamGroup({at::zeros({2}, at::kInt)}));
  EXPECT_ERROR(
      "FusedAdamW::step: dtype (Int) of parameter 0 of group 1 must be Float, Double, BFloat16 or "
      "Half",
      optimizer.step());
}

TEST(FusedAdamWErrors, NameWhatIsWrongWithAFile) {
  const auto make = [](const std::vector<at::Tensor>& parameters) {
    auto optimizer = FusedAdamW(parameters, 0.1);
    for (const auto& parameter : parameters) give_gradient(parameter, at::ones(parameter.sizes()));
    optimizer.step();
    return optimizer;
  };
  auto optimizer = make({at::zeros({2}).requires_grad_(), at::zeros({3}).requires_grad_()});
  const auto& parameters = optimizer.parameters();
  const auto before = state_of(optimizer, parameters[0]).exp_avg().clone();
  const auto refusal = [&](const auto& saved) {
    return value_error([&] { through_file(saved, optimizer); });
  };
  const auto leaves = [](const std::vector<std::vector<int64_t>>& shapes) {
    std::vector<at::Tensor> all;
    for (const auto& shape : shapes) all.push_back(at::zeros(shape).requires_grad_());
    return all;
  };
  EXPECT_EQ(refusal(make(leaves({{2}, {4}}))),
            "FusedAdamW::load: exp_avg [4] of parameter 1 of group 0 must have its shape [3]");
  EXPECT_EQ(refusal(make(leaves({{2}, {3}, {3}}))),
            "FusedAdamW::load: number of parameters (2) of group 0 must equal that of the archive "
            "(3)");
  const std::vector<OptimizerParamGroup> two_groups = {{leaves({{2}})}, {leaves({{3}})}};
  EXPECT_EQ(refusal(torch::optim::AdamW(two_groups)),
            "FusedAdamW::load: number of groups (1) must equal that of the archive (2)");
  EXPECT_EQ(refusal(torch::optim::SGD(leaves({{2}, {3}}), 0.1)),
            "FusedAdamW::load: archive must hold the state of an AdamW");
  EXPECT_EQ(refusal(at::zeros({2})), "FusedAdamW::load: archive must hold the state of an AdamW");
  EXPECT_TRUE(state_of(optimizer, parameters[0]).exp_avg().equal(before));
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
}

/// An archive of an AdamW with one parameter, in which one of the values is a text.
torch::serialize::InputArchive archive_with_text(const std::string& wrong) {
  using torch::serialize::OutputArchive;
  OutputArchive whole;
  const auto unit = whole.compilation_unit();
  OutputArchive states(unit), state(unit), groups(unit), group(unit), options(unit);
  const auto write = [&](OutputArchive& archive, const char* name, const c10::IValue& value) {
    archive.write(name, name == wrong ? c10::IValue("text") : value);
  };
  write(state, "step", int64_t{1});
  for (const auto* name : {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "master"}) {
    write(state, name, at::zeros({2}));
  }
  states.write(wrong == "address" ? "text" : "7", state);
  for (const auto* name : {"lr", "eps", "weight_decay"}) write(options, name, 0.5);
  write(options, "betas", std::tuple<double, double>(0.9, 0.99));
  write(options, "amsgrad", false);
  write(group, "params/size", at::ones({}, at::kLong));
  write(group, "params/0", "7");
  group.write("options", options);
  write(groups, "param_groups/size", at::ones({}, at::kLong));
  groups.write("param_groups/0", group);
  whole.write("state", states);
  whole.write("param_groups", groups);
  std::stringstream file;
  whole.save_to(file);
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  return archive;
}

TEST(FusedAdamWErrors, AreOfEachValueInAFile) {
  const auto weight = at::zeros({2}).requires_grad_();
  FusedAdamW optimizer({weight}, 0.1);
  for (const auto* wrong :
       {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "master", "address", "lr", "eps",
        "weight_decay", "betas", "amsgrad", "params/size", "params/0", "param_groups/size"}) {
    auto archive = archive_with_text(wrong);
    EXPECT_ERROR("FusedAdamW::load: archive must hold the state of an AdamW",
                 optimizer.load(archive))
        << wrong;
  }
  EXPECT_TRUE(optimizer.state().empty());
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
  auto right = archive_with_text("");
  optimizer.load(right);
  EXPECT_EQ(state_of(optimizer, weight).step(), 1);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
}

}  // namespace
}  // namespace heed::test::of_fused_adamw
