// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/feed_forward.h>
#include <heed/module.h>
#include <heed/position_embedding.h>
#include <heed/transformer.h>
#include <torch/nn/modules/conv.h>

#include <ostream>

namespace heed {

/// Options of `FrameEncoder`.
struct HEED_API FrameEncoderOptions {
  /// Required options. `positions` is the number of positions behind the convolutions.
  FrameEncoderOptions(int64_t mels, int64_t positions, const EncoderOptions& stack)
      : mels_(mels), positions_(positions), stack_(stack) {}
  HEED_NO_BOOL(FrameEncoderOptions);
  /// The number of values in a frame, such as those of a log-mel spectrogram.
  HEED_NUMBER_ARG(int64_t, mels);
  /// The largest number of positions, each of two frames.
  HEED_NUMBER_ARG(int64_t, positions);
  /// Options of the stack of blocks.
  TORCH_ARG(EncoderOptions, stack);
  /// Probability in [0, 1) of dropping an element of an embedding, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
};

/// An encoder of frames, such as those of speech: two convolutions, of which the second halves the
/// length, positions, and a stack of blocks. Radford et al. 2022 (arXiv:2212.04356).
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
/// heed::EncoderOptions stack(attention, /*num_layers=*/2);
/// heed::FrameEncoder encoder(heed::FrameEncoderOptions(/*mels=*/80, /*positions=*/50, stack));
/// auto y = encoder->forward(torch::randn({2, 80, 100}));  // [B, mels, T] -> [B, T / 2, E]
/// @endcode
///
/// Modules: first_convolution, a Conv1d(mels, E, 3), and second_convolution, a Conv1d(E, E, 3) with
/// stride 2, each with a padding of 1 and followed by gelu; position_embedding, learned; stack, an
/// Encoder.
class HEED_API FrameEncoderImpl : public Cloneable<FrameEncoderImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit FrameEncoderImpl(const FrameEncoderOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters as Encoder does, including the embeddings.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// frames [B, mels, T]; inputs: a mask, or a TransformerInputs, of the positions. Returns
  /// [B, S, E], where S is T / 2 rounded up.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& frames, const TransformerInputs& inputs = {});

  /// The options given at construction.
  FrameEncoderOptions options;
  torch::nn::Conv1d first_convolution{nullptr};   ///< weight [E, mels, 3]
  torch::nn::Conv1d second_convolution{nullptr};  ///< weight [E, E, 3]
  PositionEmbedding position_embedding{nullptr};  ///< learned
  Encoder stack{nullptr};                         ///< the blocks

 protected:
  HEED_DEFAULT_ARGS(1, TransformerInputs);
};
TORCH_MODULE(FrameEncoder);

}  // namespace heed
