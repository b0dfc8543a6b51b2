// SPDX-License-Identifier: BSD-3-Clause
// Training of an Encoder, with and without checkpointing, beside a plain run: modes that are
// switched and tensors that are changed in place between forward and backward, hooks, frozen
// parameters, and modules that stand twice. Gradients are those of the plain run bit for bit, and
// within a tolerance those in float64; or an error names the tensor that was changed.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <heed/grad_scaler.h>
#include <heed/transformer.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attend_verdict.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/transformers.h"

namespace heed::fuzz {

namespace {

constexpr int64_t kWidth = 8;
constexpr double kLossScale = 1024.0;

/// Tensors that Case::edit changes.
enum Edit : int64_t { kNoEdit, kInput, kItsMask, kItsBias, kItsSlopes, kParameter, kOutput };

using Tensors = std::vector<at::Tensor>;

/// The leaves of a graph without those that stand twice in `parameters()`, and where in them each
/// of `parameters()` is.
struct Leaves {
  explicit Leaves(Encoder& encoder) {
    for (const auto& parameter : encoder->parameters()) {
      const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const at::Tensor& known) {
        return known.is_same(parameter);
      });
      places.push_back(static_cast<size_t>(found - tensors.begin()));
      if (found == tensors.end()) tensors.push_back(parameter);
    }
  }

  Tensors tensors;
  std::vector<size_t> places;
};

/// A choice for each leaf, the input and the bias being the last two.
struct Plan {
  std::vector<bool> frozen, hooked, asked;
  size_t edited = 0;
  bool by_view = false;  // whether a part of what is changed is, through a view
};

/// Steps of a run that the plain one does not have.
struct Extras {
  bool checkpointing = false, switches = false, hooks = false, scales = false, edits = false;
};

/// The results of a run; gradients are undefined where there are none.
struct Run {
  Tensors gradients;
  at::Tensor output;
  std::vector<int64_t> calls;  // of the hook of each leaf
};

TransformerBlockImpl& block_of(const Encoder& encoder, size_t i) {
  return *encoder->blocks->ptr<TransformerBlockImpl>(i);
}

TransformerBlockOptions options_of_blocks(const Case& c) {
  auto block = test::block_options(kWidth, 2, 1 + c.G % 2);
  block.attention().dropout(c.dropout == 0 ? 0.0 : 0.3).causal(c.causal != 0);
  block.attention().alibi(c.alibi != 0).sinks(c.sinks != 0);
  if (c.softcap != 0) block.attention().softcap(0.5);
  return block.dropout(c.builder == 0 ? 0.0 : 0.2)
      .norm_placement(static_cast<NormPlacement>(c.norm % 4));
}

/// Lets a block, a feed-forward layer or a projection stand in two places.
void share(int64_t twice, Encoder& encoder) {
  const auto first = encoder->blocks->ptr<TransformerBlockImpl>(0);
  if (twice == 1) encoder->blocks->push_back(first);
  if (twice == 2) {
    auto& last = block_of(encoder, 1);
    last.feed_forward = first->feed_forward;
    last.replace_module("feed_forward", first->feed_forward);
  }
  if (twice == 3) {
    first->attention->fc_v = first->attention->fc_k;
    first->attention->replace_module("fc_v", first->attention->fc_k);
  }
}

Encoder make_encoder(const Case& c, int64_t twice, bool checkpointing) {
  at::manual_seed(static_cast<uint64_t>(c.seed));
  const auto blocks = c.twice % 4 == 1 || c.twice % 4 == 2 ? 2 : 1 + c.steps % 2;
  Encoder encoder(
      EncoderOptions(options_of_blocks(c), twice == 1 ? 1 : blocks).checkpointing(checkpointing));
  share(twice, encoder);
  encoder->to(c.dtype % 2 == 0 ? at::kFloat : at::kDouble);
  encoder->train(c.training != 0);
  if (c.cross != 0) block_of(encoder, 0).feed_forward->train(c.training == 0);
  return encoder;
}

void switch_modes(const Case& c, Encoder& encoder) {
  auto& first = block_of(encoder, 0);
  const bool training = c.training == 0;
  if (c.change == 1) encoder->train(training);
  if (c.change == 2) first.train(training);
  if (c.change == 3) first.attention->train(training);
}

bool toss() { return draw_below(2) == 1; }

std::vector<bool> toss_all(size_t count, bool decided) {
  std::vector<bool> result(count, true);
  for (size_t i = 0; i < count && !decided; ++i) result[i] = toss();
  return result;
}

Plan make_plan(const Case& c, Encoder& encoder) {
  at::manual_seed(static_cast<uint64_t>(c.seed) + 1);
  const Leaves leaves(encoder);
  const auto count = leaves.tensors.size();
  Plan plan{toss_all(count, /*decided=*/c.frozen == 3), toss_all(count + 2, c.hooks == 2),
            toss_all(count + 2, c.asked == 0)};
  plan.edited = static_cast<size_t>(draw_below(static_cast<int64_t>(count)));
  plan.by_view = toss();
  if (c.frozen == 0) plan.frozen.assign(count, false);
  if (c.frozen != 2) return plan;
  const auto block = block_of(encoder, toss() ? encoder->blocks->size() - 1 : 0).parameters();
  for (size_t i = 0; i < count; ++i) {
    plan.frozen[i] = std::any_of(block.begin(), block.end(), [&](const at::Tensor& parameter) {
      return parameter.is_same(leaves.tensors[i]);
    });
  }
  return plan;
}

/// One forward and backward pass. All runs of a case draw the same numbers.
class Training {
 public:
  Training(const Case& c, const Plan& plan, Encoder encoder, const Extras& extras)
      : c_(c), plan_(plan), encoder_(std::move(encoder)), extras_(extras), leaves_(encoder_) {
    at::manual_seed(static_cast<uint64_t>(c.seed) + 2);
    const auto B = 1 + c.B % 2, L = 1 + c.L % 5;
    source_ = uniform({B, L, kWidth}).requires_grad_(requires_grad(kQuery));
    x_ = requires_grad(kKey) ? source_.clone() : source_;
    gradient_ = uniform({B, L, kWidth});
    if (c.mask != 0) inputs_.mask(test::random_mask({L, L}));
    const auto bias = uniform({L, L}).requires_grad_(requires_grad(kBias));
    if (c.bias != 0) inputs_.bias(bias);
    for (size_t i = 0; i < plan.frozen.size(); ++i) {
      leaves_.tensors[i].requires_grad_(!plan.frozen[i]);
    }
    leaves_.tensors.push_back(source_);
    leaves_.tensors.push_back(bias);
  }

  /// The name by which the error tells what is changed, if something is.
  std::optional<std::string> edited_name() const {
    if (!edited().defined()) return std::nullopt;
    if (c_.edit != kParameter) {
      return std::vector<const char*>{"", "x", "mask", "bias", "alibi_slopes", "", ""}.at(
          static_cast<size_t>(c_.edit));
    }
    const auto parameter = edited();
    return parameter.requires_grad() ? "a parameter " + c10::str(parameter.sizes())
                                     : "a parameter without gradient";
  }

  /// Whether what is changed is outside of what the backward pass computes again.
  bool is_edited_outside() const {
    if (c_.edit == kOutput) return true;
    const auto& norm = encoder_->final_norm;
    if (c_.edit != kParameter || !norm) return false;
    const auto parameters = norm->parameters();
    return std::any_of(parameters.begin(), parameters.end(),
                       [&](const at::Tensor& each) { return each.is_same(edited()); });
  }

  Run run() {
    result_.calls.assign(leaves_.tensors.size(), 0);
    if (extras_.hooks) add_hooks();
    output_ = encoder_->forward(x_, inputs_);
    result_.output = output_.detach().clone();
    result_.gradients.resize(leaves_.tensors.size());
    if (!output_.requires_grad()) return result_;
    if (extras_.switches) switch_modes(c_, encoder_);
    if (c_.asked != 0) {
      ask();
    } else {
      accumulate();
    }
    return result_;
  }

 private:
  bool requires_grad(Victim victim) const { return (c_.grad >> victim & 1) != 0; }

  at::Tensor uniform(at::IntArrayRef shape) const {
    const auto drawn = test::uniform(shape, c_.dtype % 2 == 0 ? at::kFloat : at::kDouble);
    return drawn.to(leaves_.tensors.front().scalar_type());
  }

  at::Tensor edited() const {
    const std::array<at::Tensor, kOutput + 1> all = {at::Tensor(),
                                                     x_,
                                                     inputs_.mask().value_or(at::Tensor()),
                                                     inputs_.bias().value_or(at::Tensor()),
                                                     block_of(encoder_, 0).attention->alibi_slopes,
                                                     leaves_.tensors[plan_.edited],
                                                     output_};
    return all.at(static_cast<size_t>(c_.edit));
  }

  void edit() const {
    const at::NoGradGuard no_grad;
    if (!extras_.edits || !edited().defined()) return;
    if (c_.edit == kOutput) {
      output_.copy_(gradient_);
      return;
    }
    const auto tensor = plan_.by_view ? edited().narrow(0, 0, 1) : edited();
    tensor.scalar_type() == at::kBool ? tensor.logical_not_() : tensor.mul_(0.5).add_(0.125);
  }

  void add_hooks() {
    for (size_t i = 0; i < leaves_.tensors.size(); ++i) {
      const auto& leaf = leaves_.tensors[i].is_same(source_) ? x_ : leaves_.tensors[i];
      if (!plan_.hooked[i] || !leaf.requires_grad()) continue;
      leaf.register_hook([this, i](const at::Tensor& gradient) {
        ++result_.calls[i];
        return gradient * 2;
      });
    }
  }

  /// Takes gradients of some leaves, which are returned.
  void ask() {
    Tensors asked;
    std::vector<size_t> places;
    for (size_t i = 0; i < leaves_.tensors.size(); ++i) {
      if (!plan_.asked[i] || !leaves_.tensors[i].requires_grad()) continue;
      asked.push_back(leaves_.tensors[i]);
      places.push_back(i);
    }
    edit();
    if (asked.empty()) return;
    const auto found = torch::autograd::grad({output_}, asked, {given_gradient()},
                                             /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                                             /*allow_unused=*/true);
    for (size_t i = 0; i < found.size(); ++i) result_.gradients[places[i]] = found[i];
  }

  at::Tensor given_gradient() const {
    return extras_.edits && c_.edit == kOutput ? output_.detach() : gradient_;
  }

  /// Takes gradients of all leaves, which accumulate. GradScaler divides those of parameters.
  void accumulate() {
    const bool scales = extras_.scales && c_.scale != 0;
    GradScaler scaler(GradScalerOptions().init_scale(kLossScale));
    const auto loss = scales ? scaler.scale((output_ * gradient_).sum()) : at::Tensor();
    edit();
    if (scales) {
      loss.backward();
      torch::optim::SGD optimizer(encoder_->parameters(), torch::optim::SGDOptions(0.1));
      scaler.unscale_(optimizer);
      for (const auto& leaf : {source_, leaves_.tensors.back()}) {
        if (leaf.grad().defined()) leaf.mutable_grad() = leaf.grad() / kLossScale;
      }
    } else {
      output_.backward(given_gradient());
    }
    for (size_t i = 0; i < leaves_.tensors.size(); ++i) {
      result_.gradients[i] = leaves_.tensors[i].grad();
    }
  }

  const Case& c_;
  const Plan& plan_;
  Encoder encoder_;
  Extras extras_;
  Leaves leaves_;
  at::Tensor source_, x_, gradient_, output_;
  TransformerInputs inputs_;
  Run result_;
};

bool drops_out(const Case& c) {
  return (c.dropout != 0 || c.builder != 0) && (c.training != 0 || c.cross != 0);
}

/// The gradients in float64, where nothing is frozen and nothing stands twice: a tensor that does
/// has the sum.
void check_in_float64(const Case& given, const Encoder& encoder, const Leaves& leaves,
                      const Run& actual) {
  Case c = given;
  c.grad = -1;
  c.asked = 0;
  auto alone = make_encoder(c, /*twice=*/0, /*checkpointing=*/false);
  const auto values = encoder->parameters();
  auto own = alone->parameters();
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < own.size(); ++i) own[i].copy_(values[i]);
  }
  alone->to(at::kDouble);
  const auto run = Training(c, Plan(), alone, {}).run();
  Tensors expected(actual.gradients.size());
  for (size_t i = 0; i < run.gradients.size(); ++i) {
    const auto beyond = i - std::min(i, leaves.places.size());
    const auto place = i < leaves.places.size() ? leaves.places[i] : leaves.tensors.size() + beyond;
    auto& sum = expected[place];
    if (run.gradients[i].defined()) {
      sum = sum.defined() ? sum + run.gradients[i] : run.gradients[i];
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!actual.gradients[i].defined()) continue;
    const auto largest = std::max(expected[i].abs().max().item<double>(), 1.0);
    const auto roundoff = test::unit_roundoff(actual.gradients[i].scalar_type());
    expect(test::is_close(actual.gradients[i], expected[i], 0x1p14 * roundoff * largest),
           "gradient of leaf " + std::to_string(i) + " beside float64");
  }
}

/// Where something has been changed in place, the error names it: heed's does where the backward
/// pass would compute with it again, LibTorch's elsewhere.
void expect_rightly_refused(const Training& training, bool recomputes, const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  const auto name = training.edited_name();
  expect(name.has_value(), "refused a valid call: " + text);
  if (recomputes && !training.is_edited_outside()) {
    expect(text == "Encoder: " + *name +
                       " must not be changed in place before the backward pass, which computes "
                       "with it again",
           "refused in other words than ours: " + text);
  } else {
    expect(text.find("modified by an inplace operation") != std::string::npos,
           "refused in other words than LibTorch's: " + text);
  }
  ++tally.refused;
}

void compare(const Case& c, const Plan& plan, const Run& actual, const Run& expected) {
  expect(actual.output.equal(expected.output), "output");
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    const auto name = "gradient of leaf " + std::to_string(i);
    const auto& gradient = expected.gradients[i];
    expect(actual.gradients[i].defined() == gradient.defined(), name + " is there or not");
    if (!gradient.defined()) continue;
    const bool hooked = c.hooks != 0 && plan.hooked[i];
    expect(test::is_close(actual.gradients[i], hooked ? gradient * 2 : gradient, 0.0), name);
    expect(actual.calls[i] == (hooked ? 1 : 0), "calls of the hook on leaf " + std::to_string(i));
  }
}

}  // namespace

void check_training(const Case& c) {
  const at::AutoGradMode with_grad(true);
  auto encoder = make_encoder(c, c.twice % 4, /*checkpointing=*/false);
  const auto plan = make_plan(c, encoder);
  const Leaves leaves(encoder);
  const auto expected = Training(c, plan, encoder, {}).run();
  if (!drops_out(c)) check_in_float64(c, encoder, leaves, expected);
  const bool recomputes = c.weights != 0 && c.training != 0;
  const Extras extras{c.weights != 0, true, c.hooks != 0, true, true};
  Training training(c, plan, make_encoder(c, c.twice % 4, extras.checkpointing), extras);
  try {
    const auto actual = training.run();
    compare(c, plan, actual, expected);
    ++tally.taken;
  } catch (const c10::Error& error) {
    expect_rightly_refused(training, recomputes, error);
  }
}

}  // namespace heed::fuzz
