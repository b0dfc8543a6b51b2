// SPDX-License-Identifier: BSD-3-Clause
// Which keys a query reaches: windows with two sides, global tokens, alignment, lengths, and the
// batches of a mask; and biases by distance.

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/reference_cases.h"
#include "unit/routes.h"

namespace heed::test::reach {
namespace {

using Lengths = std::pair<int64_t, int64_t>;
const std::vector<Lengths> kLengths = {{1, 1}, {1, 70}, {5, 5}, {9, 4}, {3, 65}, {40, 40}};

Sizes sizes_of(const Lengths& lengths, size_t n) {
  Sizes s;
  s.G = n % 2 == 0 ? 4 : 2;
  s.L = lengths.first;
  s.S = lengths.second;
  s.Dv = n % 3 == 0 ? 5 : s.D;
  return s;
}

std::string name_of(const Sizes& s, const std::string& options) {
  return "G " + std::to_string(s.G) + ", L " + std::to_string(s.L) + ", S " + std::to_string(s.S) +
         ", " + options;
}

/// Options with a name, for these sizes.
using Named = std::vector<std::pair<const char*, AttendOptions>>;

template <typename OptionsOf>
std::vector<ReferenceCase> cases_of(const OptionsOf& options_of) {
  std::vector<ReferenceCase> cases;
  for (const auto& lengths : kLengths) {
    const auto s = sizes_of(lengths, cases.size());
    for (const auto& [name, options] : options_of(s)) {
      cases.push_back({s, options, name_of(s, name)});
    }
  }
  return cases;
}

at::Tensor drawn_lengths(int64_t most, const Sizes& s, at::Device device) {
  return at::randint(0, most + 1, {s.B}, at::kLong).to(device);
}

Named windows(const Sizes& s, at::Device device) {
  const auto bias = uniform({s.B, 1, s.L, s.S}, at::device(device).dtype(at::kFloat));
  return {{"left", AttendOptions().left_window(3)},
          {"right", AttendOptions().right_window(2)},
          {"right 0", AttendOptions().right_window(0)},
          {"both", AttendOptions().left_window(2).right_window(1)},
          {"left 0", AttendOptions().left_window(0).right_window(20)},
          {"left, causal", AttendOptions().left_window(4).causal(true)},
          {"both, causal", AttendOptions().left_window(0).right_window(3).causal(true)},
          {"both and mask", AttendOptions().left_window(9).right_window(17).mask(
                                random_mask({s.B, s.H, s.L, s.S}).to(device))},
          {"both and bias",
           AttendOptions().left_window(17).right_window(9).bias(bias.requires_grad_())}};
}

Named alignments(const Sizes& s, at::Device device) {
  return {{"top left", AttendOptions().top_left(true)},
          {"top left, causal", AttendOptions().top_left(true).causal(true)},
          {"top left, window", AttendOptions().top_left(true).window(2)},
          {"top left, left", AttendOptions().top_left(true).left_window(1).causal(true)},
          {"top left, mask", AttendOptions().top_left(true).causal(true).mask(
                                 random_mask({s.B, 1, s.L, s.S}).to(device))}};
}

Named sequence_lengths(const Sizes& s, at::Device device) {
  const auto queries = drawn_lengths(s.L, s, device), keys = drawn_lengths(s.S, s, device);
  const auto both = [&] { return AttendOptions().query_lengths(queries).key_lengths(keys); };
  const auto ids = [&](int64_t length) {
    return at::randint(0, 2, {s.B, length}, at::kLong).to(device);
  };
  return {
      {"query lengths", AttendOptions().query_lengths(queries)},
      {"key lengths", AttendOptions().key_lengths(keys)},
      {"key lengths, causal", AttendOptions().key_lengths(keys).causal(true)},
      {"both", both()},
      {"both, causal", both().causal(true)},
      {"both, window", both().left_window(2).right_window(1)},
      {"both, top left, causal", both().top_left(true).causal(true)},
      {"both, mask", both().mask(random_mask({1, s.H, s.L, s.S}).to(device))},
      {"both, documents", both().documents(ids(s.L)).key_documents(ids(s.S))},
      {"both, sinks", both().causal(true).sinks(
                          uniform({s.H}, at::device(device).dtype(at::kFloat)).requires_grad_())}};
}

Named global_tokens(const Sizes& s, at::Device device) {
  const auto of_all = at::rand({s.S}).lt(0.2).to(device);
  const auto of_each = at::rand({s.B, s.S}).lt(0.2).to(device);
  const auto keys = drawn_lengths(s.S, s, device);
  return {{"global", AttendOptions().window(2).global_tokens(of_all)},
          {"global of each", AttendOptions().left_window(1).right_window(3).global_tokens(of_each)},
          {"global, causal", AttendOptions().window(2).causal(true).global_tokens(of_each)},
          {"global, right 0", AttendOptions().right_window(0).global_tokens(of_all)},
          {"global, mask", AttendOptions().window(3).global_tokens(of_each).mask(
                               random_mask({s.B, 1, s.L, s.S}).to(device))},
          {"global, lengths", AttendOptions().window(2).global_tokens(of_each).key_lengths(keys)},
          {"global, top left", AttendOptions().window(1).global_tokens(of_all).top_left(true)},
          {"global without a window", AttendOptions().causal(true).global_tokens(of_all)}};
}

/// Masks and biases of 2 batches, for 4 sequences.
std::vector<ReferenceCase> mask_batches(at::Device device) {
  std::vector<ReferenceCase> cases;
  for (const auto& lengths : kLengths) {
    auto s = sizes_of(lengths, cases.size());
    s.B = 4;
    for (const auto order : {MaskBatch::cycled, MaskBatch::repeated}) {
      for (const int64_t n : {1, 2, 4}) {
        const auto mask = random_mask({n, s.H, s.L, s.S}).to(device);
        const auto bias = uniform({n, 1, s.L, s.S}, at::device(device).dtype(at::kFloat));
        const auto options =
            AttendOptions().mask_batch(order).mask(mask).bias(bias.requires_grad_());
        cases.push_back(
            {s, options,
             name_of(s, order == MaskBatch::cycled ? "cycled " : "repeated ") + std::to_string(n)});
      }
      const auto mask = random_mask({2, s.L, s.S}).to(device);
      cases.push_back({s, AttendOptions().mask_batch(order).mask(mask).causal(true),
                       name_of(s, "a mask of rank 3")});
    }
  }
  return cases;
}

Named distances(const Sizes& s, at::Device device) {
  const auto floats = at::device(device).dtype(at::kFloat);
  const auto table = [&](int64_t reach) {
    return uniform({s.H, 2 * reach + 1}, floats).requires_grad_();
  };
  const auto slopes = [&](at::IntArrayRef sizes) {
    return (uniform(sizes, floats) * 0.1).detach().requires_grad_();
  };
  const auto positions = at::randint(-4, 5, {s.B, s.S}, at::kLong).to(device);
  const auto keys = drawn_lengths(s.S, s, device);
  Named cases = {
      {"relative", AttendOptions().relative_bias(table(3))},
      {"relative, one", AttendOptions().relative_bias(table(0)).causal(true)},
      {"relative, far", AttendOptions().relative_bias(table(100)).window(5)},
      {"relative, capped", AttendOptions().relative_bias(table(2)).softcap(0.7)},
      {"relative, mask",
       AttendOptions().relative_bias(table(2)).mask(random_mask({s.B, s.H, s.L, s.S}).to(device))},
      {"relative, top left", AttendOptions().relative_bias(table(4)).top_left(true).causal(true)},
      {"relative, lengths", AttendOptions().relative_bias(table(4)).key_lengths(keys)},
      {"slopes of each", AttendOptions().alibi_slopes(slopes({s.B, s.H})).causal(true)},
      {"slopes", AttendOptions().alibi_slopes(slopes({s.H}))},
      {"slopes, capped", AttendOptions().alibi_slopes(slopes({s.H})).softcap(0.7)},
      {"all", AttendOptions().alibi_slopes(slopes({s.B, s.H})).relative_bias(table(5)).window(9)}};
  if (s.L <= s.S) {
    cases.push_back(
        {"positions", AttendOptions().relative_bias(table(6)).relative_positions(positions)});
    cases.push_back(
        {"positions, short",
         AttendOptions().relative_bias(table(2)).causal(true).relative_positions(positions[0])});
  }
  return cases;
}

/// Positions that all sequences share, of heads with few scores: the CPU's kernel expands the
/// table.
std::vector<ReferenceCase> shared_positions(at::Device device) {
  std::vector<ReferenceCase> cases;
  for (const auto& [length, keys] : {Lengths{49, 49}, Lengths{3, 64}, Lengths{1, 40}}) {
    auto s = sizes_of({length, keys}, cases.size());
    s.B = 3;
    s.D = 24;
    const auto table = uniform({s.H, 15}, at::device(device).dtype(at::kFloat)).requires_grad_();
    const auto positions = at::randint(-5, 6, {keys}, at::kLong).to(device);
    const auto options = AttendOptions().relative_bias(table).relative_positions(positions);
    cases.push_back({s, options, name_of(s, "shared positions")});
    cases.push_back({s, AttendOptions(options).causal(true).softcap(2.0),
                     name_of(s, "shared positions, causal, capped")});
  }
  return cases;
}

class AttendReach : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  template <typename Cases>
  void expect_all(const Cases& cases_on) {
    torch::manual_seed(moved(1));
    for (const auto device : devices()) {
      const auto options = at::device(device).dtype(GetParam());
      expect_outputs_of_reference(cases_on(device), options, /*largest_score=*/8);
      expect_gradients_of_reference(cases_on(device), options, /*largest_score=*/8);
    }
  }
  template <typename OptionsOf>
  void expect_all_of(const OptionsOf& options_of) {
    expect_all([&](at::Device device) {
      return cases_of([&](const Sizes& s) { return options_of(s, device); });
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, AttendReach, kDtypes, kNamed);

TEST_P(AttendReach, WindowsWithTwoSides) { expect_all_of(windows); }
TEST_P(AttendReach, FromTheTopLeft) { expect_all_of(alignments); }
TEST_P(AttendReach, LengthsOfSequences) { expect_all_of(sequence_lengths); }
TEST_P(AttendReach, GlobalTokens) { expect_all_of(global_tokens); }
TEST_P(AttendReach, BatchesOfAMask) { expect_all(mask_batches); }
TEST_P(AttendReach, BiasesByDistance) { expect_all_of(distances); }
TEST_P(AttendReach, PositionsThatSequencesShare) { expect_all(shared_positions); }

}  // namespace
}  // namespace heed::test::reach
