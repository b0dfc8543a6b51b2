// An Encoder that is switched between training and evaluation after its forward pass: gradients are
// those of the modes that it was in, whether inner tensors are kept or computed again.

#include <ATen/core/grad_mode.h>
#include <heed/transformer.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "attend_verdict.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/transformers.h"

namespace heed::fuzz {

namespace {

constexpr int64_t kWidth = 8;

Encoder make_encoder(const Case& c, bool checkpointing) {
  auto block = test::block_options(kWidth, 2, 1);
  block.attention().dropout(c.dropout == 0 ? 0.0 : 0.3).causal(c.causal != 0);
  block.dropout(c.builder == 0 ? 0.0 : 0.2);
  Encoder encoder(EncoderOptions(block, 1 + c.steps % 2).checkpointing(checkpointing));
  encoder->to(c.dtype % 2 == 0 ? at::kFloat : at::kDouble);
  encoder->train(c.training != 0);
  if (c.cross != 0)
    encoder->blocks->ptr<TransformerBlockImpl>(0)->feed_forward->train(c.training == 0);
  return encoder;
}

void switch_modes(const Case& c, Encoder& encoder) {
  auto& first = *encoder->blocks->ptr<TransformerBlockImpl>(0);
  const bool training = c.training == 0;
  if (c.change == 1) encoder->train(training);
  if (c.change == 2) first.train(training);
  if (c.change == 3) first.attention->train(training);
}

std::vector<at::Tensor> output_and_gradients(const Case& c, bool checkpointing, bool switches) {
  at::manual_seed(static_cast<uint64_t>(c.seed));
  auto encoder = make_encoder(c, checkpointing);
  const auto dtype = encoder->parameters().front().scalar_type();
  const auto B = 1 + c.B % 2, L = 1 + c.L % 5;
  const auto x = test::uniform({B, L, kWidth}, dtype).requires_grad_();
  const auto gradient = test::uniform({B, L, kWidth}, dtype);
  const auto output = encoder->forward(x);
  if (switches) switch_modes(c, encoder);
  auto leaves = encoder->parameters();
  leaves.push_back(x);
  auto result = torch::autograd::grad({output}, leaves, {gradient});
  result.push_back(output.detach());
  return result;
}

}  // namespace

void check_modes(const Case& c) {
  const at::AutoGradMode with_grad(true);
  const auto expected = output_and_gradients(c, /*checkpointing=*/false, /*switches=*/false);
  const auto actual =
      outcome(true, {}, [&] { return output_and_gradients(c, c.weights != 0, /*switches=*/true); });
  for (size_t i = 0; i < expected.size(); ++i) {
    expect(test::is_close((*actual)[i], expected[i], 0.0),
           i + 1 < expected.size() ? "gradient of leaf " + std::to_string(i) : "output");
  }
}

}  // namespace heed::fuzz
