// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/decoder.h>
#include <heed/encoder_decoder.h>
#include <heed/export.h>
#include <heed/paged_kv_cache.h>
#include <heed/sampling.h>
#include <heed/transformer.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace heed {

/// When the search for a prompt ends, once it has num_beams finished texts.
enum class EarlyStopping {
  estimated,  ///< When the best beam, at its present length, has no better score than the worst of
              ///< them. `false` in transformers.
  immediate,  ///< At once. `true` in transformers.
  never,      ///< When no beam can get a better score than the worst of them. With a length_penalty
              ///< above 0, that is judged by max_new_tokens. "never" in transformers.
};

/// Options of `beam_search`.
struct HEED_API BeamSearchOptions {
  /// Required options.
  BeamSearchOptions(int64_t num_beams, int64_t max_new_tokens)
      : num_beams_(num_beams), max_new_tokens_(max_new_tokens) {}
  HEED_NO_BOOL(BeamSearchOptions);
  /// The number of texts that are continued at a time for each prompt.
  HEED_NUMBER_ARG(int64_t, num_beams);
  /// The number of tokens after which a text ends.
  HEED_NUMBER_ARG(int64_t, max_new_tokens);
  /// No text ends before so many tokens. Needs end_tokens.
  HEED_NUMBER_ARG(int64_t, min_new_tokens) = 0;
  /// The tokens that end a text. They are a part of it.
  TORCH_ARG(std::vector<int64_t>, end_tokens);
  /// The token that every text begins with, at a log-probability of 0; `forced_bos_token_id` in
  /// transformers, which forces it only if the prompt is one token.
  HEED_NUMBER_ARG(std::optional<int64_t>, first_token) = std::nullopt;
  /// The last token of a text of max_new_tokens, at a log-probability of 0; `forced_eos_token_id`
  /// in transformers.
  HEED_NUMBER_ARG(std::optional<int64_t>, last_token) = std::nullopt;
  /// The number of texts that are returned for each prompt, from 1 to num_beams.
  HEED_NUMBER_ARG(int64_t, num_return_sequences) = 1;
  /// The score of a finished text of n tokens is the sum of their log-probabilities, divided by
  /// n^length_penalty: above 0, longer texts are preferred to those of the same sum.
  HEED_NUMBER_ARG(double, length_penalty) = 1.0;
  /// When the search ends.
  TORCH_ARG(EarlyStopping, early_stopping) = EarlyStopping::estimated;
  /// The changes of log-probabilities, as `sample` makes them to scores: logit_bias, the penalties
  /// and no_repeat_ngram_size. The other options must not be set: no token is drawn.
  TORCH_ARG(SamplingOptions, penalties);
  /// The cache of the search, with room for num_beams texts of max_new_tokens for each prompt.
  TORCH_ARG(PagedCacheOptions, cache);
};

/// A text that `beam_search` found.
struct HEED_API BeamHypothesis {
  /// The tokens after the prompt, with the one that ended the text.
  std::vector<int64_t> tokens;
  /// See BeamSearchOptions::length_penalty; `sequences_scores` in transformers.
  double score = 0.0;
};

/// Searches for the likeliest continuations of each prompt: of all continuations of num_beams
/// texts by one token, it goes on with the num_beams likeliest, until enough texts have ended.
/// Results are those of transformers' `generate(num_beams=.., do_sample=False)`.
///
/// @code
/// std::vector<std::vector<int64_t>> prompts = {{5, 8, 13}, {21, 34}};
/// auto options = heed::BeamSearchOptions(/*num_beams=*/4, /*max_new_tokens=*/20)
///                    .end_tokens({2})
///                    .num_return_sequences(2);
/// auto found = heed::beam_search(model, prompts, options);
/// const auto best = found[0][0];  // the best continuation of the first prompt: tokens and score
/// @endcode
///
/// The beams of a prompt share the pages of a cache with the tokens that they have in common, and
/// nothing is copied when one goes on from another. With cross-attention, `inputs` have a memory or
/// a projected_memory with one row for each prompt, and perhaps its memory_mask [N, 1, 1, S]; the
/// beams of a prompt share its row. A relative_bias is given to every step. The model must be in
/// eval mode if it has dropout.
///
/// Returns for each prompt its texts, the best first; fewer than num_return_sequences where fewer
/// are possible, because the others have a log-probability of -inf.
/// Throws c10::ValueError when an option is out of range, when a prompt is empty or has a token
/// that the model does not have, when the model has no head, when its scores are NaN, and as
/// Decoder::forward_cached does.
HEED_API std::vector<std::vector<BeamHypothesis>> beam_search(
    const Decoder& model, at::ArrayRef<std::vector<int64_t>> prompts,
    const BeamSearchOptions& options, const TransformerInputs& inputs = {});

/// Searches for the likeliest targets of sources: the search above in the decoder of a model that
/// makes one sequence of another. source: tokens [N, S] or frames [N, mels, T], as the model's
/// `forward` takes them; prompts: the N beginnings of the targets, such as the token that every
/// target begins with.
///
/// @code
/// auto source = torch::randint(100, {2, 12});  // [N, S]
/// auto padding = heed::padding_mask(torch::tensor({12, 7}), 12);
/// std::vector<std::vector<int64_t>> starts = {{0}, {0}};  // decoder_start_token_id
/// auto options = heed::BeamSearchOptions(/*num_beams=*/4, /*max_new_tokens=*/20).end_tokens({1});
/// auto found = heed::beam_search(model, source, starts, options, padding);
/// @endcode
///
/// Throws c10::ValueError as the search above and EncoderDecoder::forward do, and when there are
/// not as many sources as prompts.
HEED_API std::vector<std::vector<BeamHypothesis>> beam_search(
    const EncoderDecoder& model, const at::Tensor& source,
    at::ArrayRef<std::vector<int64_t>> prompts, const BeamSearchOptions& options,
    const EncoderDecoderInputs& inputs = {});

}  // namespace heed
