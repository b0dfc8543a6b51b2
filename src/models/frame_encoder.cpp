// SPDX-License-Identifier: BSD-3-Clause
#include <heed/frame_encoder.h>

#include <ATen/ops/gelu.h>

#include "core/checks.h"
#include "models/embedded_positions.h"
#include "modules/layers/drop_out.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kFrameEncoder = "FrameEncoder";

}  // namespace

FrameEncoderImpl::FrameEncoderImpl(const FrameEncoderOptions& options) : options(options) {
  reset();
}

void FrameEncoderImpl::reset() {
  const auto width = options.stack().block().attention().emb_dim();
  detail::check_positive(kFrameEncoder, "mels", options.mels());
  detail::check_positive(kFrameEncoder, "positions", options.positions());
  detail::check_positive(kFrameEncoder, "emb_dim", width);
  detail::check_probability(kFrameEncoder, "dropout", options.dropout());
  first_convolution = register_module(
      "first_convolution", detail::make_frame_convolution(options.mels(), width, /*stride=*/1));
  second_convolution = register_module("second_convolution",
                                       detail::make_frame_convolution(width, width, /*stride=*/2));
  position_embedding = register_module("position_embedding",
                                       PositionEmbedding(PositionEmbeddingOptions(width)
                                                             .kind(PositionKind::learned)
                                                             .max_length(options.positions())));
  stack = register_module("stack", Encoder(options.stack()));
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void FrameEncoderImpl::reset_parameters() {
  for (auto convolution : {first_convolution, second_convolution}) {
    detail::draw_initial(convolution->weight);
    torch::nn::init::zeros_(convolution->bias);
  }
  position_embedding->reset_parameters();
  stack->reset_parameters();
}

void FrameEncoderImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kFrameEncoder)
      .show("mels", options.mels())
      .show("positions", options.positions())
      .option("dropout", options.dropout(), 0.0);
}

at::Tensor FrameEncoderImpl::forward(const at::Tensor& frames, const TransformerInputs& inputs) {
  detail::check_defined(kFrameEncoder, "frames", frames);
  HEED_CHECK(frames.dim() == 3 && frames.size(1) == options.mels() && frames.size(2) > 0,
             "{}: frames must be [B, {}, T] with T of at least 1; frames {}", kFrameEncoder,
             options.mels(), detail::shape(frames));
  const auto limit = 2 * options.positions();
  HEED_CHECK(frames.size(2) <= limit, "{}: frames dim 2 ({}) must be at most 2 positions ({})",
             kFrameEncoder, frames.size(2), limit);
  detail::check_module_dtype(kFrameEncoder, "frames", frames, first_convolution->weight);
  const auto narrow = at::gelu(first_convolution->forward(frames));  // [B, E, T]
  auto x = at::gelu(second_convolution->forward(narrow)).transpose(1, 2);
  x = position_embedding->forward(x, detail::embedded_positions(x.select(2, 0), inputs, stack));
  return stack->forward(detail::drop_out(x, options.dropout(), is_training()), inputs);
}

}  // namespace heed
