// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <torch/torch.h>

#include "attend/attend_lengths.h"
#include "cuda/calls.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/simulated_cuda/simulated_cuda.h"

/// Sequences of different lengths whose lengths stay on the device.

namespace heed::test::of_sequences {
namespace {

const at::ScalarType kDtypes[] = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};

double tolerance_of(at::ScalarType dtype) {
  return (dtype == at::kFloat || dtype == at::kDouble ? 64 : 4) * unit_roundoff(dtype);
}

at::Tensor ends(const std::vector<int64_t>& numbers) { return at::tensor(numbers).to(cuda()); }

struct Case {
  const char* name;
  AttendOptions options;
};

struct Packing {
  std::vector<int64_t> query_ends, key_ends;
};

const Packing kSame{{0, 7, 7, 8, 29}, {0, 7, 7, 8, 29}},
    kCross{{0, 7, 7, 8, 29}, {0, 9, 12, 14, 40}}, kFewKeys{{0, 7, 7, 8, 29}, {0, 3, 12, 12, 40}};

/// The reference of each sequence. The gradients of output [T, H, Dv] and lse [T, H]; the latter
/// may be undefined.
ReferenceResult expected_of(const Inputs& inputs, const Packing& packing,
                            const AttendOptions& options, const at::Tensor& gradient,
                            const at::Tensor& lse_gradient = {}) {
  ReferenceResult all;
  std::vector<at::Tensor> outputs, lses, query_grads, key_grads, value_grads;
  const auto rows = [](const at::Tensor& x, const std::vector<int64_t>& ends, size_t n) {
    return x.narrow(0, ends[n], ends[n + 1] - ends[n]).unsqueeze(0).transpose(1, 2);
  };
  const auto back = [](const at::Tensor& x) { return x.transpose(1, 2).squeeze(0); };
  for (size_t n = 0; n + 1 < packing.query_ends.size(); ++n) {
    const Inputs own = {rows(inputs.query, packing.query_ends, n),
                        rows(inputs.key, packing.key_ends, n),
                        rows(inputs.value, packing.key_ends, n)};
    ReferenceExtras extras{rows(gradient, packing.query_ends, n)};
    if (lse_gradient.defined()) {
      extras.lse_gradient = rows(lse_gradient.unsqueeze(2), packing.query_ends, n).squeeze(3);
    }
    const auto found = dense_reference(own, options, extras);
    outputs.push_back(back(found.output));
    lses.push_back(back(found.lse.unsqueeze(3)).squeeze(2));
    query_grads.push_back(back(found.query_grad));
    key_grads.push_back(back(found.key_grad));
    value_grads.push_back(back(found.value_grad));
  }
  all.output = at::cat(outputs);
  all.lse = at::cat(lses);
  all.query_grad = at::cat(query_grads);
  all.key_grad = at::cat(key_grads);
  all.value_grad = at::cat(value_grads);
  return all;
}

/// The options' tensors on the device.
AttendOptions on_cuda(AttendOptions options) {
  for (auto* tensor : {&options.sinks(), &options.alibi_slopes(), &options.relative_bias()}) {
    if (*tensor) *tensor = (*tensor)->to(cuda());
  }
  return options;
}

/// The lse is -inf in the same places, and else close.
void expect_lse(const at::Tensor& lse, const at::Tensor& expected, double tolerance) {
  const auto none = expected.isinf();
  EXPECT_TRUE(lse.isinf().cpu().equal(none));
  EXPECT_TRUE(
      is_close(lse.cpu().masked_fill(none, 0.0), expected.masked_fill(none, 0.0), tolerance));
}

TEST(CudaVarlen, EqualsTheReferenceAndWaitsForNothing) {
  const auto sinks = at::randn({4});
  const Case cases[] = {{"plain", {}},
                        {"causal", AttendOptions().causal(true)},
                        {"window", AttendOptions().causal(true).window(3)},
                        {"two-sided window", AttendOptions().window(3)},
                        {"left and right", AttendOptions().left_window(4).right_window(1)},
                        {"right", AttendOptions().right_window(2)},
                        {"right 0", AttendOptions().right_window(0)},
                        {"top left", AttendOptions().causal(true).top_left(true)},
                        {"top left, window", AttendOptions().top_left(true).window(2)},
                        {"relative bias", AttendOptions().relative_bias(at::randn({4, 9}))},
                        {"softcap", AttendOptions().causal(true).softcap(5.0)},
                        {"sinks", AttendOptions().causal(true).sinks(sinks)}};
  for (const auto dtype : kDtypes) {
    for (const auto& packing : {kSame, kCross, kFewKeys}) {
      for (auto c : cases) {
        SCOPED_TRACE(std::string(c10::toString(dtype)) + ", " + c.name);
        const auto on_device = at::device(cuda()).dtype(dtype);
        const auto T = packing.query_ends.back(), U = packing.key_ends.back();
        Inputs inputs = {uniform({T, 4, 8}, on_device), uniform({U, 2, 8}, on_device),
                         uniform({U, 2, 8}, on_device)};
        const auto gradient = uniform({T, 4, 8}, on_device);
        const auto expected = expected_of(inputs, packing, c.options, gradient);
        c.options = on_cuda(c.options);
        for (auto* x : {&inputs.query, &inputs.key, &inputs.value}) x->requires_grad_();
        const auto query_ends = ends(packing.query_ends);
        const auto key_ends =
            packing.query_ends == packing.key_ends ? query_ends : ends(packing.key_ends);
        const auto run = [&] {
          const auto output =
              attend_varlen(inputs.query, inputs.key, inputs.value, query_ends, key_ends,
                            /*longest_query=*/22, /*longest_key=*/28, c.options);
          auto found =
              torch::autograd::grad({output}, {inputs.query, inputs.key, inputs.value}, {gradient});
          found.push_back(output);
          return found;
        };
        run();
        const WorkOfDevice device;
        const auto found = run();
        EXPECT_EQ(device.work().synchronizations(), 0);
        EXPECT_TRUE(is_close(found[3], expected.output, tolerance_of(dtype)));
        EXPECT_TRUE(is_close(found[0], expected.query_grad, 8 * tolerance_of(dtype)));
        EXPECT_TRUE(is_close(found[1], expected.key_grad, 8 * tolerance_of(dtype)));
        EXPECT_TRUE(is_close(found[2], expected.value_grad, 8 * tolerance_of(dtype)));
      }
    }
  }
}

TEST(CudaVarlen, ReturnsTheLseOfEachSequence) {
  const Case cases[] = {
      {"plain", {}},
      {"causal", AttendOptions().causal(true)},
      {"left and right", AttendOptions().left_window(4).right_window(1)},
      {"top left", AttendOptions().causal(true).top_left(true)},
      {"sinks", AttendOptions().causal(true).sinks(at::randn({4}))},
      {"relative bias", AttendOptions().causal(true).relative_bias(at::randn({4, 9}))}};
  for (const auto dtype : {at::kHalf, at::kFloat}) {
    for (const auto& packing : {kSame, kCross, kFewKeys}) {
      for (const auto& c : cases) {
        SCOPED_TRACE(std::string(c10::toString(dtype)) + ", " + c.name);
        const auto on_device = at::device(cuda()).dtype(dtype);
        const auto T = packing.query_ends.back(), U = packing.key_ends.back();
        Inputs inputs = {uniform({T, 4, 8}, on_device), uniform({U, 2, 8}, on_device),
                         uniform({U, 2, 8}, on_device)};
        const auto gradient = uniform({T, 4, 8}, on_device);
        const auto lse_gradient = uniform({T, 4}, at::device(cuda()).dtype(at::kFloat));
        const auto expected = expected_of(inputs, packing, c.options, gradient, lse_gradient);
        const auto query_ends = ends(packing.query_ends);
        const auto key_ends =
            packing.query_ends == packing.key_ends ? query_ends : ends(packing.key_ends);
        const auto options = on_cuda(c.options);
        const auto run = [&] {
          return attend_varlen_with_lse(inputs.query, inputs.key, inputs.value, query_ends,
                                        key_ends, /*longest_query=*/22, /*longest_key=*/28,
                                        options);
        };
        {
          run();
          const WorkOfDevice device;
          const auto [output, lse] = run();
          EXPECT_EQ(device.work().synchronizations(), 0);
          EXPECT_TRUE(is_close(output, expected.output, tolerance_of(dtype)));
          expect_lse(lse, expected.lse, 4 * tolerance_of(dtype));
        }
        for (auto* x : {&inputs.query, &inputs.key, &inputs.value}) x->requires_grad_();
        const auto [output, lse] = run();
        EXPECT_TRUE(is_close(output, expected.output, tolerance_of(dtype)));
        expect_lse(lse.detach(), expected.lse, 4 * tolerance_of(dtype));
        const auto found = torch::autograd::grad(
            {output, lse}, {inputs.query, inputs.key, inputs.value}, {gradient, lse_gradient});
        EXPECT_TRUE(is_close(found[0], expected.query_grad, 8 * tolerance_of(dtype)));
        EXPECT_TRUE(is_close(found[1], expected.key_grad, 8 * tolerance_of(dtype)));
        EXPECT_TRUE(is_close(found[2], expected.value_grad, 8 * tolerance_of(dtype)));
      }
    }
  }
}

TEST(CudaVarlen, IsOneLaunchOfFlash) {
  const auto x = uniform({29, 4, 8}, at::device(cuda()).dtype(at::kHalf));
  const auto offsets = ends(kSame.query_ends);
  const WorkOfDevice device;
  attend_varlen(x, x, x, offsets, offsets, 21, 21, AttendOptions().causal(true));
  attend_varlen(x, x, x, offsets, offsets, 21, 21, AttendOptions().causal(true));
  // The first use is checked by one call more.
  EXPECT_EQ(device.work().operators.at("aten::_flash_attention_forward"), 3);
}

struct Lengths {
  int64_t queries;
  std::vector<int64_t> query_lengths, key_lengths;  // queries: none means all
};

TEST(CudaLengths, EqualTheReferenceOfEachSequence) {
  const auto slopes = at::tensor({0.5F, 0.25F, 0.1F, 0.05F});
  const Case cases[] = {{"plain", {}},
                        {"causal", AttendOptions().causal(true)},
                        {"window", AttendOptions().causal(true).window(3)},
                        {"ALiBi", AttendOptions().causal(true).alibi_slopes(slopes)}};
  const Lengths all_lengths[] = {{1, {}, {12, 5, 1}},
                                 {4, {}, {12, 5, 4}},
                                 {4, {4, 1, 2}, {12, 5, 2}},
                                 {1, {1, 0, 1}, {3, 4, 5}}};
  for (const auto place : {at::Device(at::kCPU), cuda()}) {
    for (const auto dtype : kDtypes) {
      for (const auto& lengths : all_lengths) {
        for (auto c : cases) {
          SCOPED_TRACE(std::string(c10::toString(dtype)) + ", " + c.name + ", " + place.str() +
                       ", " + std::to_string(lengths.queries));
          const auto options = at::device(place).dtype(dtype);
          // A cache: more rows than the longest sequence has keys.
          const auto cache = uniform({3, 16, 2, 8}, options).transpose(1, 2);
          const auto key = cache.narrow(2, 0, 12), value = (cache * 0.5).narrow(2, 0, 12);
          const auto query = uniform({3, 4, lengths.queries, 8}, options);
          const auto count = [&](const std::vector<int64_t>& numbers) {
            return numbers.empty() ? at::Tensor() : at::tensor(numbers).to(place);
          };
          auto own = c.options;
          if (own.alibi_slopes()) own.alibi_slopes(own.alibi_slopes()->to(place));
          const auto query_lengths = count(lengths.query_lengths),
                     key_lengths = count(lengths.key_lengths);
          const auto run = [&] {
            return detail::attend_lengths("f", query, key, value, query_lengths, key_lengths, own);
          };
          run();
          const WorkOfDevice device;
          const auto found = run();
          EXPECT_EQ(device.work().synchronizations(), 0);
          for (int64_t b = 0; b < 3; ++b) {
            const auto queries =
                lengths.query_lengths.empty() ? lengths.queries : lengths.query_lengths[b];
            const auto keys = lengths.key_lengths[b];
            const auto part = [&](const at::Tensor& x, int64_t length) {
              return x.narrow(0, b, 1).narrow(2, 0, length);
            };
            const Inputs inputs = {part(query, queries), part(key, keys), part(value, keys)};
            const auto expected = dense_reference(inputs, c.options).output;
            EXPECT_TRUE(is_close(part(found, queries), expected, tolerance_of(dtype)));
            const auto rest = found.narrow(0, b, 1).narrow(2, queries, lengths.queries - queries);
            EXPECT_TRUE(is_close(rest, at::zeros_like(rest), 0.0));
          }
        }
      }
    }
  }
}

/// Lengths that the caller gives attend, with the lse, which is -inf or a sink's for queries that
/// do not exist.
TEST(CudaLengths, AreOptionsOfAttend) {
  const Case cases[] = {{"plain", {}},
                        {"causal", AttendOptions().causal(true)},
                        {"left and right", AttendOptions().left_window(4).right_window(1)},
                        {"top left", AttendOptions().causal(true).top_left(true)},
                        {"sinks", AttendOptions().causal(true).sinks(at::randn({4}))},
                        {"distances", AttendOptions()
                                          .causal(true)
                                          .relative_bias(at::randn({4, 9}))
                                          .alibi_slopes(at::rand({3, 4}))}};
  const std::vector<int64_t> counts = {6, 2, 0}, key_counts = {12, 0, 5};
  for (const auto dtype : kDtypes) {
    for (const auto& c : cases) {
      for (const bool of_queries : {false, true}) {
        SCOPED_TRACE(std::string(c10::toString(dtype)) + ", " + c.name +
                     (of_queries ? ", of queries" : ""));
        const auto inputs = make_inputs({3, 4, 2, 6, 12, 8, 8}, at::device(cuda()).dtype(dtype));
        auto options = AttendOptions(c.options).key_lengths(at::tensor(key_counts));
        if (of_queries) options.query_lengths(at::tensor(counts));
        const auto expected = dense_reference(inputs, options);
        options = on_cuda(options);
        options.key_lengths(options.key_lengths()->to(cuda()));
        if (of_queries) options.query_lengths(options.query_lengths()->to(cuda()));
        const auto run = [&] { return attend_with_lse(inputs, options); };
        run();
        const WorkOfDevice device;
        const auto [output, lse] = run();
        EXPECT_EQ(device.work().synchronizations(), 0);
        EXPECT_TRUE(is_close(output, expected.output, tolerance_of(dtype)));
        expect_lse(lse, expected.lse, 4 * tolerance_of(dtype));
      }
    }
  }
}

TEST(CudaVarlenErrors, NameTheLongestLength) {
  const auto message = [](int64_t longest_query, int64_t longest_key, at::Device place) {
    const auto x = at::ones({10, 2, 4}, place);
    const auto offsets = torch::tensor({0, 3, 8, 10}).to(place);
    return value_error(
        [&] { attend_varlen(x, x, x, offsets, offsets, longest_query, longest_key); });
  };
  EXPECT_EQ(
      message(11, 5, cuda()),
      "attend_varlen: longest_query (11) must be at least 0 and at most the packed length (10)");
  EXPECT_EQ(
      message(5, -1, cuda()),
      "attend_varlen: longest_key (-1) must be at least 0 and at most the packed length (10)");
  EXPECT_EQ(
      message(5, 4, at::kCPU),
      "attend_varlen: longest_key (4) must be at least the longest length of key_offsets (5)");
}

}  // namespace
}  // namespace heed::test::of_sequences
