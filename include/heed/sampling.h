// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/export.h>

#include <cstdint>
#include <map>
#include <vector>

namespace heed {

/// Numbers to add to the scores of tokens.
using LogitBias = std::map<int64_t, double>;

/// How the next token of a sequence is sampled. The scores are changed in this order, which is that
/// of transformers: logit_bias, repetition_penalty, frequency_penalty, presence_penalty,
/// no_repeat_ngram_size, min_new_tokens. Then come the temperature, top_k, top_p and min_p, each on
/// what the one before keeps. Tokens of equal score are kept or left out together.
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
  /// Divides the scores above 0 of the tokens that the prompt or the text has, and multiplies the
  /// others of them: above 1, they become less likely. Keskar et al. 2019 (arXiv:1909.05858).
  HEED_NUMBER_ARG(double, repetition_penalty) = 1.0;
  /// Is subtracted from the score of each token that has been generated.
  HEED_NUMBER_ARG(double, presence_penalty) = 0.0;
  /// Is subtracted from the score of a token once for each time that it has been generated.
  HEED_NUMBER_ARG(double, frequency_penalty) = 0.0;
  /// No n tokens in a row come twice, in the prompt and the text together; 0: they may.
  HEED_NUMBER_ARG(int64_t, no_repeat_ngram_size) = 0;
  /// None of end_tokens, which must be given, is sampled before so many tokens are generated.
  HEED_NUMBER_ARG(int64_t, min_new_tokens) = 0;
  /// The tokens that min_new_tokens holds back. `sample` does not end a text.
  TORCH_ARG(std::vector<int64_t>, end_tokens);
  /// Is added to the scores of these tokens. A token with -inf is never sampled.
  TORCH_ARG(LogitBias, logit_bias);
};

/// The tokens of a sequence so far, in the host's memory.
struct HEED_API TokenHistory {
  /// The prompt, and then the tokens that have been generated.
  at::ArrayRef<int64_t> tokens;
  /// How many tokens at the end have been generated.
  int64_t generated = 0;
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
///
/// // With the tokens so far: tokens that have come already are less likely.
/// std::vector<int64_t> first = {12, 7, 80}, second = {3, 3};
/// std::vector<heed::TokenHistory> histories = {{first, /*generated=*/1}, {second, 1}};
/// const auto penalized = heed::SamplingOptions().repetition_penalty(1.2).frequency_penalty(0.5);
/// tokens = heed::sample(scores, penalized, generators, histories);
/// @endcode
///
/// `options` are one for all rows, or one for each. `generators` are none for LibTorch's own, one
/// for all rows, or one for each. With one for each, a row's token depends on nothing but its
/// scores, its options and its generator, which gives one number. A generator may be of the CPU
/// whatever the device of the scores: the same seed then gives the same tokens everywhere.
///
/// A token of score -inf is never sampled. So a program may change the scores first, for instance
/// to follow a grammar. The computation is in float64. Throws c10::ValueError when a shape, dtype,
/// option or number of options or generators is invalid, when an option needs the tokens so far,
/// and, on the CPU, when the largest score of a row is not finite. Elsewhere, reading it would wait
/// for the device: such a row gives any token.
HEED_API at::Tensor sample(const at::Tensor& scores,
                           at::ArrayRef<SamplingOptions> options = SamplingOptions(),
                           at::ArrayRef<at::Generator> generators = {});

/// Samples with options that look at the tokens so far. `histories` are one for each row, or none.
/// Throws c10::ValueError also when a history has a token that the scores do not have.
HEED_API at::Tensor sample(const at::Tensor& scores, at::ArrayRef<SamplingOptions> options,
                           at::ArrayRef<at::Generator> generators,
                           at::ArrayRef<TokenHistory> histories);

}  // namespace heed
