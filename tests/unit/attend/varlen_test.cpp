#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "unit/reference_cases.h"
#include "unit/routes.h"

namespace heed::test {
namespace {

using Lengths = std::vector<int64_t>;

at::Tensor offsets(const Lengths& lengths) {
  Lengths ends = {0};
  for (const auto length : lengths) ends.push_back(ends.back() + length);
  return at::tensor(ends);
}

struct PackedCase {
  const char* name;
  Lengths query_lengths, key_lengths;
  AttendOptions options;
};

/// Runs of equal lengths, single sequences, empty ones, and L != S.
const std::vector<PackedCase> kCases = {
    {"one", {5}, {5}, {}},
    {"equal lengths", {4, 4, 4}, {4, 4, 4}, AttendOptions().causal(true)},
    {"mixed lengths", {1, 7, 7, 3}, {1, 7, 7, 3}, AttendOptions().causal(true)},
    {"window", {6, 2, 9}, {6, 2, 9}, AttendOptions().causal(true).window(3)},
    {"cross", {2, 5, 1, 1}, {6, 3, 4, 4}, AttendOptions().scale(0.5)},
    {"empty sequences", {0, 3, 0, 2}, {2, 3, 0, 0}, {}},
    {"none", {}, {}, {}},
};

/// [T, H, D] to [1, H, length, D] from row `start`.
at::Tensor sequence(const at::Tensor& packed, int64_t start, int64_t length) {
  return packed.narrow(0, start, length).unsqueeze(0).transpose(1, 2);
}

at::Tensor as_rows(const at::Tensor& heads) { return heads.transpose(1, 2).squeeze(0); }

class AttendVarlen : public ::testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, AttendVarlen, kDtypes, kNamed);

TEST_P(AttendVarlen, EqualsTheReferenceOfEachSequence) {
  torch::manual_seed(moved(1));
  // As attend's own tests: a few roundoffs forward; gradients sum up to 9 * H / G products.
  const double forward = forward_tolerance(GetParam());
  for (const auto device : devices()) {
    for (const auto& c : kCases) {
      const auto query_offsets = offsets(c.query_lengths);
      const auto key_offsets = offsets(c.key_lengths);
      const auto T = query_offsets[-1].item<int64_t>();
      const auto U = key_offsets[-1].item<int64_t>();
      const auto dtype = at::device(device).dtype(GetParam());
      const auto query = uniform({T, 4, 6}, dtype).requires_grad_();
      const auto key = uniform({U, 2, 6}, dtype).requires_grad_();
      const auto value = uniform({U, 2, 5}, dtype).requires_grad_();
      const auto output_gradient = uniform({T, 4, 5}, dtype);

      std::vector<at::Tensor> outputs, query_grads, key_grads, value_grads;
      int64_t t = 0, u = 0;
      for (size_t n = 0; n < c.query_lengths.size(); ++n) {
        const auto L = c.query_lengths[n], S = c.key_lengths[n];
        const Inputs inputs = {sequence(query, t, L), sequence(key, u, S), sequence(value, u, S)};
        const auto result = reference(inputs, c.options, sequence(output_gradient, t, L));
        outputs.push_back(as_rows(result.output));
        query_grads.push_back(as_rows(result.query_grad));
        key_grads.push_back(as_rows(result.key_grad));
        value_grads.push_back(as_rows(result.value_grad));
        t += L;
        u += S;
      }
      const auto output = attend_varlen(query, key, value, query_offsets, key_offsets, c.options);
      ASSERT_EQ(output.sizes(), at::IntArrayRef({T, 4, 5})) << c.name;
      ASSERT_EQ(output.scalar_type(), GetParam());
      if (outputs.empty()) continue;
      EXPECT_TRUE(is_close(output, at::cat(outputs), forward)) << c.name;
      const auto gradients =
          torch::autograd::grad({output}, {query, key, value}, {output_gradient});
      EXPECT_TRUE(is_close(gradients[0], at::cat(query_grads), 16 * forward)) << c.name;
      EXPECT_TRUE(is_close(gradients[1], at::cat(key_grads), 16 * forward)) << c.name;
      EXPECT_TRUE(is_close(gradients[2], at::cat(value_grads), 16 * forward)) << c.name;
    }
  }
}

TEST(AttendVarlen, NoSequenceHasGradientsOfNoElement) {
  const auto query = at::zeros({0, 4, 6}).requires_grad_();
  const auto key = at::zeros({0, 2, 6}).requires_grad_();
  const auto output = attend_varlen(query, key, key, offsets({}), offsets({}));
  const auto gradients = torch::autograd::grad({output}, {query, key}, {at::zeros({0, 4, 6})});
  EXPECT_EQ(gradients[0].sizes(), query.sizes());
  EXPECT_EQ(gradients[1].sizes(), key.sizes());
}

TEST(AttendVarlenErrors, NameTheOffsetThatIsWrong) {
  const auto query = at::zeros({5, 4, 8});
  const auto key = at::zeros({7, 2, 8});
  const auto error = [&](const at::Tensor& query_offsets, const at::Tensor& key_offsets,
                         const AttendOptions& options = {}) {
    return value_error(
        [&] { attend_varlen(query, key, key, query_offsets, key_offsets, options); });
  };
  const auto q = offsets({2, 3});
  const auto k = offsets({4, 3});
  EXPECT_EQ(error({}, k), "attend_varlen: query_offsets must be defined");
  EXPECT_EQ(error(q.to(at::kInt), k), "attend_varlen: query_offsets dtype (Int) must be Long");
  EXPECT_EQ(error(q.to_sparse(), k),
            "attend_varlen: query_offsets layout (Sparse) must be Strided");
  EXPECT_EQ(error(q.to(at::kMeta), k),
            "attend_varlen: query_offsets device (meta) must hold values");
  EXPECT_EQ(error(q.unsqueeze(0), k),
            "attend_varlen: query_offsets must be a vector of at least 1 element; query_offsets "
            "[1, 3]");
  EXPECT_EQ(error(q + 1, k), "attend_varlen: query_offsets[0] (1) must equal 0");
  EXPECT_EQ(error(at::tensor(Lengths{0, 6, 5}), k),
            "attend_varlen: query_offsets[2] (5) must be at least query_offsets[1] (6)");
  EXPECT_EQ(error(q, offsets({4, 4})),
            "attend_varlen: key_offsets[2] (8) must equal the packed length (7)");
  EXPECT_EQ(error(q, offsets({3, 3, 1})),
            "attend_varlen: key_offsets dim 0 (4) must equal query_offsets dim 0 (3)");
  EXPECT_EQ(error(q, k, AttendOptions().mask(at::zeros({5, 7}, at::kBool))),
            "attend_varlen: mask must be absent: the offsets say what a query may see");
  EXPECT_EQ(error(q, k, AttendOptions().documents(at::zeros({5}, at::kLong))),
            "attend_varlen: documents must be absent: the offsets say what a query may see");
  EXPECT_EQ(error(q, k, AttendOptions().bias(at::zeros({5, 7}))),
            "attend_varlen: bias must be absent: sequences differ in shape");
  EXPECT_EQ(error(q, k, AttendOptions().window(0)), "attend_varlen: window (0) must be at least 1");
  EXPECT_ERROR("attend_varlen: key rank (4) must equal 3; key [1, 7, 2, 8]",
               attend_varlen(query, key.unsqueeze(0), key, q, k));
  EXPECT_ERROR(
      "attend_varlen: value dim 0 (6) must equal key dim 0 (7); key [7, 2, 8], value [6, 2, 8]",
      attend_varlen(query, key, key.narrow(0, 0, 6), q, k));
  EXPECT_ERROR(
      "attend_varlen: key dim 2 (4) must equal query dim 2 (8); query [5, 4, 8], key [7, 2, 4]",
      attend_varlen(query, key.narrow(2, 0, 4), key, q, k));
}

}  // namespace
}  // namespace heed::test
