// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/export.h>
#include <heed/module.h>
#include <torch/arg.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>

namespace heed {

/// How a token's position becomes a vector.
enum class PositionKind {
  sinusoidal,  ///< fixed waves: no parameters and no limit on the length
  learned,     ///< one parameter vector for each position
};

/// Options of `PositionEmbedding`.
struct HEED_API PositionEmbeddingOptions {
  /// Required options.
  /* implicit */ PositionEmbeddingOptions(int64_t emb_dim) : emb_dim_(emb_dim) {}
  HEED_NO_BOOL(PositionEmbeddingOptions);
  /// E; even for sinusoidal.
  HEED_NUMBER_ARG(int64_t, emb_dim);
  /// Sinusoidal or learned.
  TORCH_ARG(PositionKind, kind) = PositionKind::sinusoidal;
  /// The number of positions of `learned`, which requires it.
  HEED_NUMBER_ARG(std::optional<int64_t>, max_length) = std::nullopt;
  /// The row of position 0 of `learned`, of max_length rows: models whose padding once took the
  /// first ones begin behind these.
  HEED_NUMBER_ARG(int64_t, offset) = 0;
  /// Whether the sines and cosines of `sinusoidal` alternate. If not, the first half of a vector
  /// has the sines, and the second half the cosines, as in the paper's own program.
  TORCH_ARG(bool, interleaved) = true;
};

/// Adds to every token's embedding a vector that depends on the token's position. For sinusoidal,
/// elements 2 i and 2 i + 1 are the sine and cosine of position / 10000^(2 i / E).
/// Vaswani et al. 2017 (arXiv:1706.03762), section 3.5.
///
/// @code
/// heed::PositionEmbedding positions(/*emb_dim=*/64);
/// auto y = positions->forward(torch::randn({2, 10, 64}));  // [B, L, E]
/// @endcode
///
/// Parameters: for learned, weight [max_length, E], initialized from a normal distribution with
/// standard deviation 0.02.
///
/// A subclass may override `forward`, and stand in the place of a model's position_embedding.
class HEED_API PositionEmbeddingImpl : public Cloneable<PositionEmbeddingImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit PositionEmbeddingImpl(const PositionEmbeddingOptions& options);

  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// Returns x [B, L, E] plus the vectors of the positions. Positions are integers [L] or [B, L]; 0
  /// to L - 1 by default.
  /// Throws c10::ValueError when a shape, dtype or position is invalid.
  virtual at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& positions = {});

  /// Returns a copy. Throws c10::ValueError for a subclass, and so does `clone` of a module that
  /// holds one: the copy would be a plain PositionEmbedding.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const final;

  /// The options given at construction.
  PositionEmbeddingOptions options;
  at::Tensor weight;  ///< [max_length, E]; undefined for sinusoidal

 protected:
  HEED_DEFAULT_ARGS(1, std::optional<at::Tensor>);

 private:
  HEED_LOCAL at::Tensor vectors(const at::Tensor& positions, at::ScalarType dtype) const;
};
TORCH_MODULE(PositionEmbedding);

}  // namespace heed
