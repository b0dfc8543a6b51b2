#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/attention.h>
#include <heed/autocast.h>
#include <heed/decoder.h>
#include <heed/distributed/context_parallel.h>
#include <heed/multi_head_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "distributed/processes.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test::of_context {
namespace {

using distributed::ring_attend;
using distributed::shard_sequence;
using distributed::ulysses_attend;
using distributed::unshard_sequence;

using Attend = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                        const ProcessGroup&, const AttendOptions&)>;

struct Case {
  Sizes sizes;
  AttendOptions options;  // of the whole sequences
  bool documents = false;
};

/// Options of all kinds, alone and together.
class Cases {
 public:
  Cases(int64_t processes, uint32_t seed)
      : processes_(processes), random_(static_cast<uint32_t>(moved(seed))) {}

  Case next(bool heads_divide) {
    Case c;
    auto& s = c.sizes;
    s.B = 1 + pick(2);
    s.G = heads_divide ? processes_ : 1 + pick(3);
    s.H = s.G * (1 + pick(3));
    s.L = 2 * processes_ * (1 + pick(4));
    s.S = pick(3) == 0 ? 2 * processes_ * (1 + pick(4)) : s.L;
    s.D = 1 + pick(9);
    s.Dv = 1 + pick(9);
    auto& o = c.options;
    o.causal(pick(2) == 0);
    if (pick(3) == 0) o.window(1 + pick(s.S));
    if (pick(4) == 0) o.scale(0.1 * static_cast<double>(1 + pick(20)));
    if (pick(4) == 0) o.softcap(0.5 + static_cast<double>(pick(3)));
    if (pick(4) == 0) o.alibi_slopes(uniform({s.H}, at::kDouble).abs());
    if (pick(4) == 0) o.sinks(uniform({s.H}, at::kDouble));
    const auto or_one = [&](int64_t size) { return pick(2) == 0 ? size : int64_t{1}; };
    const auto shape_of_scores = [&]() -> std::vector<int64_t> {
      const auto rank = 2 + pick(3);
      if (rank == 2) return {s.L, s.S};
      if (rank == 3) return {or_one(s.B), or_one(s.L), s.S};
      return {or_one(s.B), or_one(s.H), or_one(s.L), s.S};
    };
    if (pick(4) == 0) o.mask(random_mask(shape_of_scores()));
    if (pick(4) == 0) o.bias(uniform(shape_of_scores(), at::kDouble));
    c.documents = pick(4) == 0;
    return c;
  }

 private:
  int64_t pick(int64_t count) {
    return std::uniform_int_distribution<int64_t>(0, count - 1)(random_);
  }
  int64_t processes_;
  std::mt19937 random_;
};

/// The rows of this process's queries.
at::Tensor own_rows(const at::Tensor& scores, const ProcessGroup& group) {
  return scores.size(-2) == 1 ? scores : shard_sequence(scores, -2, group);
}

at::Tensor sum_over_processes(const at::Tensor& tensor, const ProcessGroup& group) {
  std::vector<at::Tensor> tensors = {tensor.clone(at::MemoryFormat::Contiguous)};
  group->allreduce(tensors)->wait();
  return tensors[0];
}

/// Compares output and gradients of this process with its share of the reference's.
void expect_share_of_reference(const Case& c, const Attend& attend, at::ScalarType dtype,
                               const ProcessGroup& group) {
  const auto& s = c.sizes;
  const auto computed_in = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto inputs = make_inputs(s, dtype);
  auto options = c.options;
  for (auto* tensor : {&options.bias(), &options.sinks(), &options.alibi_slopes()}) {
    if (*tensor) *tensor = (*tensor)->to(computed_in);
  }
  const auto output_gradient = uniform({s.B, s.H, s.L, s.Dv}, dtype);
  auto whole = options;
  const auto documents = at::floor_divide(at::arange(s.L, at::kLong), 3);
  const auto key_documents = at::floor_divide(at::arange(s.S, at::kLong), 3);
  if (c.documents) {
    const auto same = documents.unsqueeze(1).eq(key_documents);
    whole.mask(options.mask() ? options.mask()->logical_and(same) : same);
  }
  const auto expected = reference(inputs, whole, output_gradient);

  const auto share = [&](const at::Tensor& x) { return shard_sequence(x, 2, group); };
  const auto query = share(inputs.query).requires_grad_(), key = share(inputs.key).requires_grad_(),
             value = share(inputs.value).requires_grad_();
  std::vector<at::Tensor> leaves = {query, key, value};
  std::vector<at::Tensor> gradients = {share(expected.query_grad), share(expected.key_grad),
                                       share(expected.value_grad)};
  auto own = options;
  if (options.mask()) own.mask(own_rows(*options.mask(), group));
  if (options.bias()) {
    own.bias(own_rows(*options.bias(), group).clone().requires_grad_());
    leaves.push_back(*own.bias());
    gradients.push_back(own_rows(expected.bias_grad, group).reshape(own.bias()->sizes()));
  }
  if (options.sinks()) {
    own.sinks(options.sinks()->clone().requires_grad_());
    leaves.push_back(*own.sinks());
    gradients.push_back(expected.sinks_grad);
  }
  if (c.documents) {
    own.documents(shard_sequence(documents, 0, group));
    if (s.L != s.S) own.key_documents(shard_sequence(key_documents, 0, group));
  }
  const auto output = attend(query, key, value, group, own);
  ASSERT_EQ(output.scalar_type(), dtype);
  // Sums of up to 32 products, parts of which are joined by a few operations more.
  const double roundoff = unit_roundoff(dtype);
  EXPECT_TRUE(is_close(output, share(expected.output), 64 * roundoff));
  const auto found = torch::autograd::grad({output}, leaves, {share(output_gradient)});
  for (size_t i = 0; i < leaves.size(); ++i) {
    const bool shared = i >= 3 && leaves[i].sizes() == gradients[i].sizes() &&
                        (leaves[i].dim() == 1 || leaves[i].size(-2) == 1);
    const auto sum = shared ? sum_over_processes(found[i], group) : found[i];
    EXPECT_TRUE(is_close(sum, gradients[i], 512 * roundoff)) << "gradient " << i;
  }
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(
      is_close(attend(query, key, value, group, own), share(expected.output), 64 * roundoff));
}

void expect_reference(int64_t processes, const Attend& attend, bool heads_divide, int64_t count) {
  in_processes(processes, [&](const ProcessGroup& group) {
    torch::manual_seed(moved(1));
    Cases cases(processes, 7);
    for (int64_t i = 0; i < count; ++i) {
      const auto c = cases.next(heads_divide);
      SCOPED_TRACE("case " + std::to_string(i));
      const auto dtype = i % 4 == 3 ? at::kFloat : i % 8 == 5 ? at::kBFloat16 : at::kDouble;
      ASSERT_NO_FATAL_FAILURE(expect_share_of_reference(c, attend, dtype, group));
      if (testing::Test::HasFailure()) return;
    }
  });
}

class RingAttend : public testing::TestWithParam<int64_t> {};

TEST_P(RingAttend, IsAttentionToTheWholeSequence) {
  expect_reference(GetParam(), ring_attend, /*heads_divide=*/false, 200);
}

TEST_P(RingAttend, IsTheSameByHeads) {
  expect_reference(GetParam(), ulysses_attend, /*heads_divide=*/true, 60);
}

INSTANTIATE_TEST_SUITE_P(Processes, RingAttend, testing::Values(1, 2, 3, 4),
                         [](const auto& p) { return std::to_string(p.param); });

TEST(ContextParallel, DropsTheWeightsThatOneProcessDrops) {
  for (const auto& attend_shares : {Attend(ring_attend), Attend(ulysses_attend)}) {
    in_processes(2, [&](const ProcessGroup& group) {
      torch::manual_seed(moved(3));
      Sizes s;
      s.L = s.S = 44;  // chunks of 11 keys, no multiple of what is drawn together
      const auto inputs = make_inputs(s, at::kDouble);
      for (auto* x : {&inputs.query, &inputs.key, &inputs.value}) x->requires_grad_();
      const auto options = AttendOptions().dropout(0.4).causal(true);
      const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, at::kDouble);
      torch::manual_seed(moved(4));
      const auto output = attend(inputs, options);
      const auto expected =
          torch::autograd::grad({output}, {inputs.query, inputs.key, inputs.value}, {gradient});
      const auto share = [&](const at::Tensor& x) {
        return shard_sequence(x.detach(), 2, group).requires_grad_();
      };
      const auto query = share(inputs.query), key = share(inputs.key), value = share(inputs.value);
      torch::manual_seed(moved(4));
      const auto own = attend_shares(query, key, value, group, options);
      EXPECT_TRUE(is_close(own, share(output), 1e-14));
      const auto found = torch::autograd::grad({own}, {query, key, value}, {share(gradient)});
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(is_close(found[i], share(expected[i]), 1e-13));
    });
  }
}

TEST(ContextParallel, ShardsAndUnshards) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto x = at::arange(16, at::kDouble).view({2, 8}).requires_grad_();
    const auto own = shard_sequence(x, -1, group);
    const std::vector<int64_t> columns =
        group->getRank() == 0 ? std::vector<int64_t>{0, 1, 6, 7} : std::vector<int64_t>{2, 3, 4, 5};
    EXPECT_TRUE(own.equal(x.index_select(1, at::tensor(columns))));
    const auto whole = unshard_sequence(own, 1, group);
    EXPECT_TRUE(whole.equal(x));
    whole.square().sum().backward();
    // Both processes use the whole.
    const auto expected = at::zeros_like(x).index_copy(1, at::tensor(columns), 4 * own.detach());
    EXPECT_TRUE(x.grad().equal(expected));
  });
}

heed::Decoder make_decoder(bool learned_positions) {
  auto attention = GroupQueryAttentionOptions(16, 4, 2).causal(true).dropout(0.3);
  if (!learned_positions) attention.rotary(RotaryEmbeddingOptions(4));
  const auto block = TransformerBlockOptions(attention).norm(NormKind::rms_norm);
  auto options = DecoderOptions(/*vocab_size=*/11, block, /*num_layers=*/2);
  if (learned_positions) {
    options.positions(PositionEmbeddingOptions(16).kind(PositionKind::learned).max_length(64));
  }
  return Decoder(options);
}

TEST(ContextParallel, TrainsADecoderAsOneProcess) {
  using distributed::SequenceExchange;
  for (const auto exchange : {SequenceExchange::ring, SequenceExchange::ulysses}) {
    in_processes(2, [&](const ProcessGroup& group) {
      for (const bool learned_positions : {false, true}) {
        torch::manual_seed(moved(1));
        auto whole = make_decoder(learned_positions);
        auto shared = std::dynamic_pointer_cast<DecoderImpl>(whole->clone());
        for (auto* model : {whole.get(), shared.get()}) model->to(at::kDouble);
        distributed::share_sequence(*shared, group, exchange);
        const auto tokens = at::randint(11, {3, 17}, at::kLong);
        const auto loss = [](DecoderImpl& model, const at::Tensor& x, const at::Tensor& y) {
          torch::manual_seed(moved(9));  // dropout
          return at::cross_entropy_loss(model.forward(x).flatten(0, 1), y.flatten());
        };
        const auto share = [&](const at::Tensor& x) { return shard_sequence(x, 1, group); };
        const auto inputs = tokens.narrow(1, 0, 16), targets = tokens.narrow(1, 1, 16);
        const auto expected = loss(*whole, inputs, targets);
        expected.backward();
        const auto own = loss(*shared, share(inputs), share(targets));
        own.backward();
        EXPECT_TRUE(is_close(sum_over_processes(own.detach(), group) / 2, expected, 1e-12));
        const auto parameters = whole->named_parameters();
        for (const auto& parameter : shared->named_parameters()) {
          const auto mean = sum_over_processes(parameter.value().grad(), group) / 2;
          EXPECT_TRUE(is_close(mean, parameters[parameter.key()].grad(), 1e-12)) << parameter.key();
        }
        distributed::share_sequence(*shared, {});
        EXPECT_TRUE(is_close(loss(*shared, inputs, targets), expected, 1e-12));
      }
    });
  }
}

TEST(ContextParallelErrors, NameWhatIsWrong) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto x = at::zeros({2, 4, 6, 8});
    EXPECT_ERROR(
        "shard_sequence: dim 2 (6) must be a multiple of 4, two chunks for each of 2 processes; "
        "tensor [2, 4, 6, 8]",
        shard_sequence(x, 2, group));
    EXPECT_ERROR("shard_sequence: dim (4) must be from -4 to 3; tensor [2, 4, 6, 8]",
                 shard_sequence(x, 4, group));
    EXPECT_ERROR(
        "unshard_sequence: dim 2 (3) must be even, as shard_sequence makes it; tensor [2, 4, 3, 8]",
        unshard_sequence(x.narrow(2, 0, 3), 2, group));
    EXPECT_ERROR("ring_attend: group must not be null", ring_attend(x, x, x, {}));
    const auto by_rule = make_block_mask(
        1, 1, 6, 6, [](int64_t /*b*/, int64_t /*h*/, int64_t i, int64_t j) { return j <= i; });
    EXPECT_ERROR("ring_attend: block_mask must be absent: pass its mask() as mask",
                 ring_attend(x, x, x, group, AttendOptions().block_mask(by_rule)));
    EXPECT_ERROR(
        "ring_attend: query dim 2 (5) must be even, as shard_sequence makes it; query [2, 4, 5, 8]",
        ring_attend(x.narrow(2, 0, 5), x, x, group));
    EXPECT_ERROR(
        "ring_attend: mask dim 1 (6) must equal S (12), the keys of all processes; mask [6, 6], "
        "key [2, 4, 6, 8]",
        ring_attend(x, x, x, group, AttendOptions().mask(at::ones({6, 6}, at::kBool))));
    EXPECT_ERROR(
        "ulysses_attend: query dim 1 (3) must be a multiple of the number of processes (2); query "
        "[2, 3, 6, 8]",
        ulysses_attend(x.narrow(1, 0, 3), x.narrow(1, 0, 3), x.narrow(1, 0, 3), group));
  });
}

TEST(ContextParallelErrors, NameWhatCannotShareASequence) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::nn::Linear linear(2, 2);
    EXPECT_ERROR("share_sequence: module must contain a MultiHeadAttention or GroupQueryAttention",
                 distributed::share_sequence(*linear, group));
    torch::nn::ModuleList attentions(MultiHeadAttention(8, 2), AttentionV1(8));
    EXPECT_ERROR("share_sequence: 1: module must not be or contain AttentionV1",
                 distributed::share_sequence(*attentions, group));
    MultiHeadAttention attention(8, 2);
    distributed::share_sequence(*attention, group);
    const auto x = at::zeros({1, 4, 8});
    EXPECT_ERROR(
        "MultiHeadAttention: forward_with_weights must not be used while processes share the "
        "sequence",
        attention->forward_with_weights(x));
    EXPECT_ERROR(
        "MultiHeadAttention: mask dim 1 (4) must equal S (8); mask [4, 4], query [1, 4, 8], key "
        "[1, 4, 8]",
        attention->forward(x, at::ones({4, 4}, at::kBool)));
    auto cache = attention->make_cache(1, 8);
    EXPECT_ERROR("MultiHeadAttention: a cache must not be used while processes share the sequence",
                 attention->forward_cached(x, cache));
  });
}

TEST(ContextParallelErrors, NameTheProcessThatDiffers) {
  in_processes(3, [](const ProcessGroup& group) {
    const bool odd = group->getRank() == 1;
    const auto x = at::zeros({2, 4, 6, 8}), longer = at::zeros({2, 4, 8, 8});
    EXPECT_ERROR(
        "ring_attend: call of rank 1 (key [2, 4, 8, 8] Float) must equal that of rank 0 (key [2, "
        "4, 6, 8] Float)",
        ring_attend(x, odd ? longer : x, odd ? longer : x, group));
    EXPECT_ERROR("ring_attend: call of rank 1 (scale 2) must equal that of rank 0 (scale 1)",
                 ring_attend(x, x, x, group, AttendOptions().causal(true).scale(odd ? 2.0 : 1.0)));
  });
}

/// A change to tensors that the backward pass reads again ends in an error of autograd's, and in no
/// wrong number.
TEST(ContextParallel, NoticesWhatChangesBeforeTheBackwardPass) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(10));
    const auto x = uniform({2, 2, 4, 8}, at::kFloat).requires_grad_();
    const auto mask = random_mask({4, 8});
    const auto documents = at::zeros({4}, at::kLong);
    const auto slopes = uniform({2}, at::kFloat);
    for (const auto& changed : {mask, documents, slopes}) {
      const auto options = AttendOptions().mask(mask).documents(documents).alibi_slopes(slopes);
      const auto output = ring_attend(x, x, x, group, options).sum();
      changed.zero_();
      EXPECT_THAT(error_text<c10::Error>([&] { output.backward(); }),
                  testing::HasSubstr("modified by an inplace operation"));
    }
  });
}

/// As `attend`: shares travel in autocast's dtype.
TEST(ContextParallel, ConvertsUnderAutocast) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(9));
    for (const Attend& shared_attend : {Attend(ring_attend), Attend(ulysses_attend)}) {
      const auto x = uniform({2, 4, 8, 8}, at::kFloat);
      const auto share = shard_sequence(x, 2, group).requires_grad_();
      const auto low = share.detach().to(at::kHalf).requires_grad_();
      const auto options = AttendOptions().causal(true);
      const auto expected = shared_attend(low, low, low, group, options);
      const auto output = [&] {
        const Autocast autocast(at::kCPU, at::kHalf);
        return shared_attend(share, share, share, group, options);
      }();
      EXPECT_EQ(output.scalar_type(), at::kHalf);
      EXPECT_TRUE(output.equal(expected));
      const auto gradient = torch::autograd::grad({output.sum()}, {share})[0];
      EXPECT_EQ(gradient.scalar_type(), at::kFloat);
      // The gradient of three uses: added in float32 here, and rounded to float16 there.
      EXPECT_TRUE(is_close(gradient, torch::autograd::grad({expected.sum()}, {low})[0],
                           8 * unit_roundoff(at::kHalf)));
    }
  });
}

}  // namespace
}  // namespace heed::test::of_context
