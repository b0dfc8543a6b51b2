// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/export.h>
#include <heed/module.h>
#include <torch/arg.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

namespace heed {

/// Options of `RelativePositionBias`.
struct HEED_API RelativePositionBiasOptions {
  /// Required options.
  /* implicit */ RelativePositionBiasOptions(int64_t head_num) : head_num_(head_num) {}
  HEED_NO_BOOL(RelativePositionBiasOptions);
  /// H.
  HEED_NUMBER_ARG(int64_t, head_num);
  /// The number of T5's buckets. Half of those of a direction have one distance each, the others
  /// ever more, up to `max_distance`, from which on the last bucket has all. At least 2, or 4 with
  /// `bidirectional`.
  HEED_NUMBER_ARG(int64_t, buckets) = 32;
  /// More than half of the buckets of a direction.
  HEED_NUMBER_ARG(int64_t, max_distance) = 128;
  /// Whether keys after the query have half of the buckets; without, they share the bucket of
  /// distance 0. T5's decoder is causal and has none.
  TORCH_ARG(bool, bidirectional) = true;
  /// The height and width of an image's window, whose tokens are its rows, one after the other:
  /// then there are no buckets, but an entry for each distance in rows and columns.
  TORCH_ARG(std::vector<int64_t>, image_window) = {};
  /// Whether a class token stands before the tokens of the window. It has three entries: for keys
  /// that it sees, for queries that see it, and for itself. Bao et al. 2021 (arXiv:2106.08254).
  TORCH_ARG(bool, class_token) = false;
};

/// A relative bias for AttendOptions, AttentionInputs or TransformerInputs.
struct RelativeBias {
  at::Tensor relative_bias;                      ///< [H, 2 R + 1]
  std::optional<at::Tensor> relative_positions;  ///< int64 [S], if they are not the indices
};

/// A learned bias for the distance of query and key, for each head: T5's buckets (Raffel et al.
/// 2020, arXiv:1910.10683), or the two-dimensional tables of Swin (Liu et al. 2021,
/// arXiv:2103.14030) and BEiT.
///
/// @code
/// heed::RelativePositionBias bias(/*head_num=*/4);
/// auto [table, positions] = bias->relative();
/// auto options = heed::AttendOptions().relative_bias(table).relative_positions(positions);
/// auto x = torch::randn({2, 4, 10, 16});
/// auto output = heed::attend(x, x, x, options);
/// @endcode
///
/// `relative` needs no tensor of L x S, as `forward` does. The biases of Shaw et al. 2018
/// (arXiv:1803.02155) and of Transformer-XL depend on the query too. They are products, which a
/// `bias` of attend takes.
///
/// Parameters: weight [buckets, H], or [(2 height - 1) (2 width - 1), H] and three rows more with a
/// class token, initialized from a normal distribution with standard deviation 0.02. T5 calls it
/// relative_attention_bias.weight, Swin relative_position_bias_table.
class HEED_API RelativePositionBiasImpl final : public Cloneable<RelativePositionBiasImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit RelativePositionBiasImpl(const RelativePositionBiasOptions& options);

  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// Returns the bias [1, H, L, S] of queries that are the last L of S tokens, for the option
  /// `bias`. With an image's window, L and S are the number of its tokens.
  /// Throws c10::ValueError when a length is negative, or not the window's.
  at::Tensor forward(int64_t query_length, int64_t key_length) const;

  /// Returns the bias by distance.
  /// Throws c10::ValueError with a class token, which has no distance: `forward` is for it.
  RelativeBias relative() const;

  /// The options given at construction.
  RelativePositionBiasOptions options;
  at::Tensor weight;  ///< [entries, H]

 private:
  HEED_LOCAL void check_options() const;
};
TORCH_MODULE(RelativePositionBias);

}  // namespace heed
