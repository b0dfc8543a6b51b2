// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/attention_pooling.h>
#include <heed/module.h>
#include <heed/transformer.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <ostream>

namespace heed {

/// Options of `ImageEncoder`.
struct HEED_API ImageEncoderOptions {
  /// Required options.
  ImageEncoderOptions(int64_t image_size, int64_t patch_size, const EncoderOptions& stack)
      : image_size_(image_size), patch_size_(patch_size), stack_(stack) {}
  HEED_NO_BOOL(ImageEncoderOptions);
  /// I, the height and the width of an image in pixels; divisible by patch_size unless `crop`.
  HEED_NUMBER_ARG(int64_t, image_size);
  /// P, the height and the width of a patch in pixels. An image has N = (I / P)^2 patches.
  HEED_NUMBER_ARG(int64_t, patch_size);
  /// Options of the stack of blocks.
  TORCH_ARG(EncoderOptions, stack);
  /// C, the number of an image's channels.
  HEED_NUMBER_ARG(int64_t, channels) = 3;
  /// Probability in [0, 1) of dropping an element of an embedding, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
  /// Whether the pixels at the right and at the bottom that fill no patch are left out.
  TORCH_ARG(bool, crop) = false;
  /// Whether the projection of the patches adds a bias.
  TORCH_ARG(bool, patch_bias) = true;
  /// Whether there is a class token.
  TORCH_ARG(bool, class_token) = true;
  /// R, the number of registers: further learned tokens, which have no positions. Darcet et al.
  /// 2023 (arXiv:2309.16588).
  HEED_NUMBER_ARG(int64_t, register_num) = 0;
  /// Whether there is a norm after the sum of the embeddings, of the kind of the blocks' norms.
  TORCH_ARG(bool, embedding_norm) = false;
  /// Options of the layer that makes the one vector of all others which `forward_pooled` returns;
  /// its emb_dim must be E. By default, the vector is that of the class token.
  TORCH_ARG(std::optional<AttentionPoolingOptions>, attention_pooling) = std::nullopt;
  /// Whether there is a norm of this vector, of the kind of the blocks' norms.
  TORCH_ARG(bool, pooled_norm) = false;
  /// The size to which a Linear without a bias projects this vector, by which images and texts
  /// become comparable; none by default. Radford et al. 2021 (arXiv:2103.00020).
  HEED_NUMBER_ARG(std::optional<int64_t>, projection_dim) = std::nullopt;
};

/// A Vision Transformer without a head: cuts an image into patches, embeds them behind a learned
/// class token, and returns a vector for each, or one for all. Dosovitskiy et al. 2020
/// (arXiv:2010.11929).
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
/// heed::EncoderOptions stack(attention, /*num_layers=*/2);
/// heed::ImageEncoderOptions options(/*image_size=*/32, /*patch_size=*/8, stack);
/// heed::ImageEncoder encoder(options);
/// auto y = encoder->forward(torch::randn({2, 3, 32, 32}));              // [B, 1 + N, E]
/// auto of_image = y.select(1, 0);                                       // [B, E]
/// auto pooled = encoder->forward_pooled(torch::randn({2, 3, 32, 32}));  // [B, E]
/// @endcode
///
/// Modules: patch_embedding, a Conv2d(C, E, P) with stride P; embedding_norm, if there is one;
/// stack, an Encoder; attention_pooling, pooled_norm and projection, a Linear(E, projection_dim),
/// if there are such. Parameters: class_token [1, 1, E], if there is one; registers [1, R, E], if
/// there are any; position_embedding [1, 1 + N, E], or [1, N, E] without a class token.
class HEED_API ImageEncoderImpl : public Cloneable<ImageEncoderImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit ImageEncoderImpl(const ImageEncoderOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters as Encoder does, including the embeddings.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// images [B, C, I, I]; returns [B, 1 + R + N, E], or [B, R + N, E] without a class token: first
  /// this token, then the registers, then the patches row by row.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& images);

  /// images [B, C, I, I]; returns a vector for each, [B, E] or [B, options.projection_dim()].
  /// Throws as `forward` does, and when there is neither a class token nor attention_pooling.
  at::Tensor forward_pooled(const at::Tensor& images);

  /// The options given at construction.
  ImageEncoderOptions options;
  torch::nn::Conv2d patch_embedding{nullptr};   ///< weight [E, C, P, P]
  at::Tensor class_token;                       ///< [1, 1, E]; undefined if there is none
  at::Tensor registers;                         ///< [1, R, E]; undefined if there are none
  at::Tensor position_embedding;                ///< [1, 1 + N, E] or [1, N, E]
  Norm embedding_norm{nullptr};                 ///< empty unless options.embedding_norm()
  Encoder stack{nullptr};                       ///< the blocks
  AttentionPooling attention_pooling{nullptr};  ///< empty unless options.attention_pooling()
  Norm pooled_norm{nullptr};                    ///< empty unless options.pooled_norm()
  torch::nn::Linear projection{nullptr};        ///< empty unless options.projection_dim()

 private:
  HEED_LOCAL void check_options() const;
  HEED_LOCAL void check_images(const at::Tensor& images) const;
  HEED_LOCAL at::Tensor embed(const at::Tensor& images) const;
};
TORCH_MODULE(ImageEncoder);

}  // namespace heed
