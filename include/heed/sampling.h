#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/export.h>

#include <cstdint>

namespace heed {

/// How the next token of a sequence is sampled. The temperature comes first, then top_k, top_p and
/// min_p, each on what the one before keeps. Tokens of equal score are kept or left out together.
struct HEED_API SamplingOptions {
  /// Divides the scores: below 1, likely tokens become likelier; above 1, less likely ones do. At
  /// 0, the most likely token is taken; of several, the first.
  HEED_NUMBER_ARG(double, temperature) = 1.0;
  /// Only the k most likely tokens; 0: all. Fan et al. 2018 (arXiv:1805.04833).
  HEED_NUMBER_ARG(int64_t, top_k) = 0;
  /// Only the most likely tokens that together reach this probability, in [0, 1]; always at least
  /// one. Holtzman et al. 2019 (arXiv:1904.09751).
  HEED_NUMBER_ARG(double, top_p) = 1.0;
  /// Only tokens with at least this share, in [0, 1], of the probability of the most likely one.
  /// Nguyen et al. 2024 (arXiv:2407.01082).
  HEED_NUMBER_ARG(double, min_p) = 0.0;
};

/// Samples a token for each row of scores [N, V], which a model returned. Returns int64 [N].
///
/// @code
/// auto scores = torch::randn({2, 100});  // [N, V]
/// auto tokens = heed::sample(scores, heed::SamplingOptions().temperature(0.8).top_p(0.95));
///
/// // Each sequence with options and a seed of its own.
/// std::vector<heed::SamplingOptions> options(2);
/// options[0].temperature(0);
/// options[1].top_k(40).min_p(0.05);
/// std::vector<at::Generator> generators = {at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1),
///                                          at::make_generator<at::CPUGeneratorImpl>(/*seed=*/2)};
/// tokens = heed::sample(scores, options, generators);
/// @endcode
///
/// `options` are one for all rows, or one for each. `generators` are none for LibTorch's own, one
/// for all rows, or one for each. With one for each, a row's token depends on nothing but its
/// scores, its options and its generator, which gives one number. A generator may be of the CPU
/// whatever the device of the scores: the same seed then gives the same tokens everywhere.
///
/// A token of score -inf is never sampled. So a program may change the scores first, for instance
/// to follow a grammar or to avoid repetitions. The computation is in float64. Throws
/// c10::ValueError when a shape, dtype, option or number of options or generators is invalid, and,
/// on the CPU, when the largest score of a row is not finite. Elsewhere, reading it would wait for
/// the device: such a row gives any token.
HEED_API at::Tensor sample(const at::Tensor& scores,
                           at::ArrayRef<SamplingOptions> options = SamplingOptions(),
                           at::ArrayRef<at::Generator> generators = {});

}  // namespace heed
