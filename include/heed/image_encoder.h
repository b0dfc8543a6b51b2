#pragma once

#include <heed/arg.h>
#include <heed/module.h>
#include <heed/transformer.h>
#include <torch/nn/modules/conv.h>

#include <ostream>

namespace heed {

/// Options of `ImageEncoder`.
struct HEED_API ImageEncoderOptions {
  /// Required options.
  ImageEncoderOptions(int64_t image_size, int64_t patch_size, const EncoderOptions& stack)
      : image_size_(image_size), patch_size_(patch_size), stack_(stack) {}
  HEED_NO_BOOL(ImageEncoderOptions);
  /// I, the height and the width of an image in pixels; divisible by patch_size.
  HEED_NUMBER_ARG(int64_t, image_size);
  /// P, the height and the width of a patch in pixels. An image has N = (I / P)^2 patches.
  HEED_NUMBER_ARG(int64_t, patch_size);
  /// Options of the stack of blocks.
  TORCH_ARG(EncoderOptions, stack);
  /// C, the number of an image's channels.
  HEED_NUMBER_ARG(int64_t, channels) = 3;
  /// Probability in [0, 1) of dropping an element of an embedding, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
};

/// A Vision Transformer without a head: cuts an image into patches, embeds them behind a learned
/// class token, and returns a vector for each. Dosovitskiy et al. 2020 (arXiv:2010.11929).
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
/// heed::EncoderOptions stack(attention, /*num_layers=*/2);
/// heed::ImageEncoderOptions options(/*image_size=*/32, /*patch_size=*/8, stack);
/// heed::ImageEncoder encoder(options);
/// auto y = encoder->forward(torch::randn({2, 3, 32, 32}));  // [B, 1 + N, E]
/// auto of_image = y.select(1, 0);                           // [B, E]
/// @endcode
///
/// Modules: patch_embedding, a Conv2d(C, E, P) with stride P; stack, an Encoder. Parameters:
/// class_token [1, 1, E] and position_embedding [1, 1 + N, E].
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

  /// images [B, C, I, I]; returns [B, 1 + N, E], first the class token, then the patches row by
  /// row.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& images);

  /// The options given at construction.
  ImageEncoderOptions options;
  torch::nn::Conv2d patch_embedding{nullptr};  ///< weight [E, C, P, P]
  at::Tensor class_token;                      ///< [1, 1, E]
  at::Tensor position_embedding;               ///< [1, 1 + N, E]
  Encoder stack{nullptr};                      ///< the blocks
};
TORCH_MODULE(ImageEncoder);

}  // namespace heed
