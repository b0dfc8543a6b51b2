// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/attention.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/weights.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include "fixture.h"
#include "support/expect.h"

namespace heed::test {
namespace {

// float32 on both sides, rounded in another order: four products in a row, of 128 terms below 2.
// They end up to 3e-7 apart; the rest is for other processors.
constexpr double kTolerance = 1e-5;

std::string name_of(const Attention&) { return "Attention"; }
std::string name_of(const AttentionV1&) { return "AttentionV1"; }
std::string name_of(const MultiHeadAttention&) { return "MultiHeadAttention"; }
std::string name_of(const GroupQueryAttention&) { return "GroupQueryAttention"; }

void make(Attention& module, const Fixture& f) { module = Attention(f.number("arg.emb_dim")); }
void make(AttentionV1& module, const Fixture& f) { module = AttentionV1(f.number("arg.emb_dim")); }
void make(MultiHeadAttention& module, const Fixture& f) {
  module = MultiHeadAttention(f.number("arg.emb_dim"), f.number("arg.head_nums"));
}
void make(GroupQueryAttention& module, const Fixture& f) {
  module = GroupQueryAttention(f.number("arg.emb_dim"), f.number("arg.head_num"),
                               f.number("arg.group_num"));
}

int64_t heads(const Attention&) { return 1; }
int64_t heads(const AttentionV1&) { return 1; }
int64_t heads(const MultiHeadAttention& module) { return module->options.head_nums(); }
int64_t heads(const GroupQueryAttention& module) { return module->options.head_num(); }

at::Tensor linear(const torch::nn::Linear& linear, const at::Tensor& x) {
  return at::linear(x, linear->weight, linear->bias);
}

/// LibTorch's attention over heads packed in the last dimension: [B, L, H * D] to the same.
at::Tensor sdpa(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                int64_t heads, std::optional<at::Tensor> mask) {
  const auto head_dim = query.size(2) / heads;
  const auto split = [&](const at::Tensor& packed) {
    return packed.unflatten(2, {packed.size(2) / head_dim, head_dim}).transpose(1, 2);
  };
  if (mask) mask = mask->dim() == 3 ? mask->unsqueeze(1).ne(0) : mask->ne(0);
  return at::scaled_dot_product_attention(split(query), split(key), split(value), mask,
                                          /*dropout_p=*/0.0, /*is_causal=*/false,
                                          /*scale=*/std::nullopt, /*enable_gqa=*/true)
      .transpose(1, 2)
      .flatten(2);
}

template <typename Module>
at::Tensor with_sdpa(const Module& module, const at::Tensor& x,
                     const std::optional<at::Tensor>& mask) {
  return sdpa(linear(module->fc_q, x), linear(module->fc_k, x), linear(module->fc_v, x),
              heads(module), mask);
}

at::Tensor reference(const Attention& module, const at::Tensor& x,
                     const std::optional<at::Tensor>& mask) {
  return with_sdpa(module, x, mask);
}

at::Tensor reference(const AttentionV1& module, const at::Tensor& x,
                     const std::optional<at::Tensor>& mask) {
  const auto parts = linear(module->qkv, x).chunk(3, 2);
  return sdpa(parts[0], parts[1], parts[2], 1, mask);
}

at::Tensor reference(const MultiHeadAttention& module, const at::Tensor& x,
                     const std::optional<at::Tensor>& mask) {
  return linear(module->fc_out, with_sdpa(module, x, mask));
}

at::Tensor reference(const GroupQueryAttention& module, const at::Tensor& x,
                     const std::optional<at::Tensor>& mask) {
  return linear(module->fc_o, with_sdpa(module, x, mask));
}

/// A module of heed with the weights of the class of the same name in originals/heads.py.
template <typename Module>
class Heads : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto reason = why_no_fixtures();
    if (!reason.empty()) GTEST_SKIP() << reason;
    const auto path = fixture_path("heads/" + name_of(Module(nullptr)));
    archive_path = path + ".pt";
    fixture.emplace(path + ".fixture.pt");
    make(module, *fixture);
    load_weights(*module, archive_path);
    module->eval();
  }

  std::string archive_path;
  std::optional<Fixture> fixture;
  Module module{nullptr};
};

using Modules = ::testing::Types<Attention, AttentionV1, MultiHeadAttention, GroupQueryAttention>;
TYPED_TEST_SUITE(Heads, Modules);

// originals_test compares what a fixture holds; this is what one must hold.
TYPED_TEST(Heads, HasEveryKindOfMaskInItsFixture) {
  const auto& fixture = *this->fixture;
  std::vector<std::string> cases = {"none", "causal", "integer", "batch", "expanded"};
  if (heads(this->module) > 1) cases.push_back("heads");
  EXPECT_THAT(fixture.cases(), ::testing::UnorderedElementsAreArray(cases));
  for (const auto& name : cases) {
    EXPECT_EQ(fixture.find(name + ".mask").has_value(), name != "none") << name;
    EXPECT_TRUE(fixture.find(name + ".weights")) << name;
    EXPECT_TRUE(fixture.find(name + ".grad.x")) << name;
  }
  EXPECT_EQ(fixture["causal.mask"].scalar_type(), at::kBool);
  EXPECT_EQ(fixture["integer.mask"].scalar_type(), at::kLong);
  EXPECT_EQ(fixture["integer.mask"].max().template item<int64_t>(), 2);
  EXPECT_EQ(fixture["expanded.mask"].stride(-2), 0);
}

// Python's classes with several heads take [B, 1, L, L] only.
TYPED_TEST(Heads, TakesAMaskWithoutHeadAxis) {
  const at::NoGradGuard no_grad;
  const auto& fixture = *this->fixture;
  auto mask = *fixture.mask("batch", at::kCPU);
  if (mask.dim() == 4) mask = mask.squeeze(1);
  ASSERT_EQ(mask.dim(), 3);
  ASSERT_GT(mask.size(0), 1);
  EXPECT_TRUE(is_close(this->module(fixture["x"], mask), fixture["batch.output"], kTolerance));
}

TYPED_TEST(Heads, GivesTheOutputsOfTheArchiveRunInCpp) {
  const at::NoGradGuard no_grad;
  const auto& fixture = *this->fixture;
  for (const auto device : devices()) {
    this->module->to(device);
    auto archive = torch::jit::load(this->archive_path, device);
    const auto x = fixture["x"].to(device);
    for (const auto& name : fixture.cases()) {
      const auto mask = fixture.mask(name, device);
      const auto expected = archive.forward({x, mask}).toTensor();
      EXPECT_TRUE(is_close(this->module(x, mask), expected, kTolerance)) << name;
      EXPECT_TRUE(is_close(expected, fixture[name + ".output"], kTolerance)) << name;
    }
  }
}

TYPED_TEST(Heads, GivesTheOutputsOfScaledDotProductAttention) {
  const at::NoGradGuard no_grad;
  const auto& fixture = *this->fixture;
  for (const auto device : devices()) {
    this->module->to(device);
    const auto x = fixture["x"].to(device);
    for (const auto& name : fixture.cases()) {
      const auto mask = fixture.mask(name, device);
      EXPECT_TRUE(is_close(this->module(x, mask), reference(this->module, x, mask), kTolerance))
          << name;
    }
  }
}

TEST(TracedArchive, LoadsAsAScriptedOneDoes) {
  const auto reason = why_no_fixtures();
  if (!reason.empty()) GTEST_SKIP() << reason;
  const at::NoGradGuard no_grad;
  const Fixture fixture(fixture_path("heads/traced.fixture.pt"));
  Attention module(fixture.number("arg.emb_dim"));
  const auto report = load_weights(*module, fixture_path("heads/traced.pt"));
  EXPECT_EQ(report.loaded, module->named_parameters().keys());
  module->eval();
  EXPECT_TRUE(is_close(module(fixture["x"]), fixture["none.output"], kTolerance));
}

}  // namespace
}  // namespace heed::test
