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
#include <utility>
#include <variant>
#include <vector>

namespace heed {

/// Which elements of a head are rotated as a pair. R is the number of rotated elements.
enum class RotaryPairing {
  half_split,   ///< i and i + R / 2: GPT-NeoX, Llama and most models published since
  interleaved,  ///< 2 i and 2 i + 1: the paper, GPT-J
};

/// Positions are divided by `factor`. Chen et al. 2023 (arXiv:2306.15595).
struct HEED_API LinearScaling {
  /// Required options.
  explicit LinearScaling(double factor) : factor_(factor) {}
  HEED_NO_BOOL(LinearScaling);
  /// At least 1.
  HEED_NUMBER_ARG(double, factor);
};

/// The base is multiplied by factor^(R / (R - 2)): the highest frequency stays the same, and the
/// lowest is divided by `factor`. With `original_length`, the factor grows with the length of each
/// sequence instead, starting from 1 at that length ("dynamic NTK"); what is cached stays as it is.
struct HEED_API NtkScaling {
  /// Required options.
  explicit NtkScaling(double factor) : factor_(factor) {}
  HEED_NO_BOOL(NtkScaling);
  /// At least 1.
  HEED_NUMBER_ARG(double, factor);
  /// The length trained for.
  HEED_NUMBER_ARG(std::optional<int64_t>, original_length) = std::nullopt;
};

/// Frequencies that turn often within the training length stay the same; frequencies that turn less
/// than once are divided by `factor`; a ramp connects the two. Peng et al. 2023
/// (arXiv:2309.00071).
struct HEED_API YarnScaling {
  /// Required options.
  YarnScaling(double factor, int64_t original_length)
      : factor_(factor), original_length_(original_length) {}
  HEED_NO_BOOL(YarnScaling);
  /// At least 1.
  HEED_NUMBER_ARG(double, factor);
  /// The length trained for.
  HEED_NUMBER_ARG(int64_t, original_length);
  /// Frequencies with at least this many turns within `original_length` stay the same.
  HEED_NUMBER_ARG(double, beta_fast) = 32.0;
  /// Frequencies with at most this many turns within `original_length` are divided by `factor`.
  HEED_NUMBER_ARG(double, beta_slow) = 1.0;
  /// Whether the ramp begins and ends at whole pairs: at the next lower and the next higher one.
  TORCH_ARG(bool, truncate) = true;
  /// Factor on query and on key. By default m(1), where m(x) = 0.1 x ln(factor) + 1; with both
  /// options below, m(mscale) / m(mscale_all_dim).
  HEED_NUMBER_ARG(std::optional<double>, attention_factor) = std::nullopt;
  /// DeepSeek's, as in a `rope_scaling` of Hugging Face: at least 0, where 0 is none.
  /// LatentAttention also multiplies its scores by m(mscale_all_dim)^2.
  /// @{
  HEED_NUMBER_ARG(double, mscale) = 0.0;
  HEED_NUMBER_ARG(double, mscale_all_dim) = 0.0;
  /// @}
};

/// As in Llama 3.1: frequencies with a wavelength above original_length / low_freq_factor are
/// divided by `factor`; those with a wavelength below original_length / high_freq_factor stay the
/// same; a ramp connects the two.
struct HEED_API Llama3Scaling {
  /// Required options.
  Llama3Scaling(double factor, int64_t original_length)
      : factor_(factor), original_length_(original_length) {}
  HEED_NO_BOOL(Llama3Scaling);
  /// At least 1.
  HEED_NUMBER_ARG(double, factor);
  /// The length trained for.
  HEED_NUMBER_ARG(int64_t, original_length);
  /// Above 0.
  HEED_NUMBER_ARG(double, low_freq_factor) = 1.0;
  /// Above low_freq_factor.
  HEED_NUMBER_ARG(double, high_freq_factor) = 4.0;
};

/// Each frequency is divided by a factor of its own: by one of `short_factors` up to the length
/// trained for, and by one of `long_factors` for longer sequences. A sequence that grows beyond
/// that length must be read again, because its cached keys have the short ones: until then, modules
/// throw c10::ValueError. Ding et al. 2024 (arXiv:2402.13753).
struct HEED_API LongRopeScaling {
  /// Required options.
  LongRopeScaling(std::vector<double> short_factors, std::vector<double> long_factors,
                  int64_t original_length)
      : short_factors_(std::move(short_factors)),
        long_factors_(std::move(long_factors)),
        original_length_(original_length) {}
  HEED_NO_BOOL(LongRopeScaling);
  /// R / 2 factors, above 0.
  TORCH_ARG(std::vector<double>, short_factors);
  /// R / 2 factors, above 0.
  TORCH_ARG(std::vector<double>, long_factors);
  /// The length trained for.
  HEED_NUMBER_ARG(int64_t, original_length);
  /// Factor on query and on key.
  HEED_NUMBER_ARG(double, attention_factor) = 1.0;
};

/// Any of the scalings above.
using RotaryScaling =
    std::variant<LinearScaling, NtkScaling, YarnScaling, Llama3Scaling, LongRopeScaling>;

/// Options of `RotaryEmbedding`.
struct HEED_API RotaryEmbeddingOptions {
  /// Required options.
  /* implicit */ RotaryEmbeddingOptions(int64_t head_dim) : head_dim_(head_dim) {}
  HEED_NO_BOOL(RotaryEmbeddingOptions);
  /// D.
  HEED_NUMBER_ARG(int64_t, head_dim);
  /// R, must be even: the first R of the D elements are rotated, the others stay the same; D by
  /// default.
  HEED_NUMBER_ARG(std::optional<int64_t>, rotary_dim) = std::nullopt;
  /// Pair i is rotated by the angle position * base^(-2 i / R).
  HEED_NUMBER_ARG(double, base) = 10000.0;
  /// Which elements are rotated as a pair.
  TORCH_ARG(RotaryPairing, pairing) = RotaryPairing::half_split;
  /// How frequencies change for sequences that are longer than those in training; none by default.
  TORCH_ARG(std::optional<RotaryScaling>, scaling) = std::nullopt;
  /// For tokens with a position on each of 2 or 3 axes, as in images and videos: the first
  /// sections[0] pairs are rotated by the positions on axis 0, the next sections[1] pairs by those
  /// on axis 1, and so on. The sum is R / 2. Wang et al. 2024 (arXiv:2409.12191): M-RoPE, the
  /// `mrope_section` of Qwen2-VL. One axis, by default, where this is empty. Scalings whose
  /// frequencies depend on the length are refused.
  TORCH_ARG(std::vector<int64_t>, sections);
  /// False: frequencies go on over the sections; each pair has the one that it has without them.
  /// True: each section is a rotary embedding of its own, whose pair i of n is rotated by the angle
  /// position * base^(-i / n) before scaling: axial embeddings of vision transformers.
  TORCH_ARG(bool, restart_sections) = false;
};

/// Whether all options are equal, and so all angles.
HEED_API bool operator==(const RotaryEmbeddingOptions& a, const RotaryEmbeddingOptions& b);

/// Cosine and sine of the angles of each pair at each position: floating [1 or B, 1, L, R / 2].
/// RotaryEmbedding computes them in float32, or in float64 for a float64 input. Those of your own
/// may require grad.
struct RotaryAngles {
  at::Tensor cos;  ///< of the angles
  at::Tensor sin;  ///< of the angles
};

namespace detail {
class RememberedAngles;
}

/// Rotary position embedding: rotates pairs of elements of query and key by angles that grow
/// with the position, so that scores depend only on distances. Su et al. 2021 (arXiv:2104.09864).
///
/// @code
/// heed::RotaryEmbedding rotary(/*head_dim=*/64);
/// auto rotated_query = rotary->forward(query);  // [B, H, L, D], positions 0 to L - 1
/// auto rotated_key = rotary->forward(key);      // [B, G, S, D]
/// auto output = heed::attend(rotated_query, rotated_key, value);
/// @endcode
///
/// With `sections`, tokens have a position on each of 2 or 3 axes:
///
/// @code
/// // An image of 2 x 5 patches: 16 pairs of a head are rotated by the row, 16 by the column.
/// auto patch = torch::arange(10);
/// auto places = torch::stack({patch.floor_divide(5), patch.remainder(5)}, 1);  // [L, 2]
/// heed::RotaryEmbedding axial(
///     heed::RotaryEmbeddingOptions(/*head_dim=*/64).sections({16, 16}).restart_sections(true));
/// auto rotated = axial->forward(query, places);
/// @endcode
///
/// A module that holds a RotaryEmbedding with sections, and its cache, take the index of each token
/// for its position on every axis, as Qwen2-VL does for text. See attention_inputs.h for others.
///
/// It has no parameters and no limit on the length. Angles are computed when they are needed, in
/// float64, so that cosines and sines are as exact at position 10,000,000 as at position 10.
///
/// The class is final: heed's modules call it in several ways, and would pass over some of those
/// that a subclass overrides. Hold one in a module of your own instead.
class HEED_API RotaryEmbeddingImpl final : public Cloneable<RotaryEmbeddingImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit RotaryEmbeddingImpl(const RotaryEmbeddingOptions& options);

  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// Rotates x [B, H, L, D]. Positions are integers [L] or [B, L]; 0 to L - 1 by default. Where
  /// frequencies depend on the length, that of each row is its last position + 1. With sections,
  /// positions are [L, axes] or [1 or B, L, axes]; those that are the same on every axis may be
  /// [L], or have 1 as their last dim.
  /// Returns [B, H, L, D] in x's dtype; computed in float32, or in float64 for float64.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& positions = {});

  /// Returns the angles at `positions`, integers as in `forward`. Query, key and all layers can
  /// share them. Where frequencies depend on the length, that of each row is its last position + 1.
  /// Throws c10::ValueError when the positions' shape or dtype is invalid.
  RotaryAngles angles(const at::Tensor& positions, at::ScalarType dtype = at::kFloat) const;

  /// Returns the angles at `positions` in sequences of these lengths: integers on the same device,
  /// [L or 1] or [B or 1, L or 1]. They matter only where frequencies depend on the length.
  /// Throws c10::ValueError also when their shape, dtype or device is invalid.
  RotaryAngles angles(const at::Tensor& positions, const at::Tensor& lengths,
                      at::ScalarType dtype = at::kFloat) const;

  /// Returns the angles at positions first to first + count - 1, which may be negative and are the
  /// same on every axis, on the device of `like` and in the precision that its dtype needs. The
  /// last result is cached until other angles are requested, or the same ones on another stream.
  /// Layers that share this module thus compute the angles once per step.
  RotaryAngles angles(int64_t first, int64_t count, const at::TensorOptions& like) const;

  /// Rotates x [B, H, L, D] by these angles, which may be your own: the pair (a, b) becomes
  /// (a cos - b sin, b cos + a sin). Returns [B, H, L, D] in x's dtype; computed in float32, or in
  /// float64 for float64. Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles) const;

  /// Whether the frequencies of a sequence depend on its length: with LongRopeScaling, and with
  /// NtkScaling that has an original_length.
  bool depends_on_length() const { return !frequencies_.defined(); }

  /// The options given at construction.
  RotaryEmbeddingOptions options;

 protected:
  HEED_DEFAULT_ARGS(1, std::optional<at::Tensor>);

 private:
  HEED_LOCAL int64_t rotary_dim() const;
  HEED_LOCAL at::Tensor frequencies(const at::Tensor& lengths) const;
  HEED_LOCAL RotaryAngles angles_by(const at::Tensor& frequencies, const at::Tensor& positions,
                                    at::ScalarType dtype) const;

  std::shared_ptr<detail::RememberedAngles> remembered_;
  at::Tensor frequencies_;  // [R / 2], float64; undefined if they depend on the length
  double attention_factor_ = 1.0;
};
TORCH_MODULE(RotaryEmbedding);

}  // namespace heed
