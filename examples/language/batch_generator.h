// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Generator.h>
#include <heed/paged_kv_cache.h>
#include <heed/sampling.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "language_model.h"
#include "text/stop_strings.h"

namespace heed::examples {

struct BatchOptions {
  int64_t at_once = 16;    ///< how many texts a step continues, at most
  int64_t pages = 0;       ///< of the cache; 0: as many as these texts can need
  int64_t page_size = 16;  ///< tokens that a page has room for
  int64_t longest = 0;     ///< tokens of a prompt and its answer, at most; 0: the context
};

/// A prompt that is to be continued.
struct GenerationRequest {
  std::string prompt;              ///< an empty one is the model's start
  int64_t tokens = 1;              ///< of the answer, at most
  std::vector<std::string> stops;  ///< an answer ends before the first of these texts in it
  SamplingOptions sampling;
  uint64_t seed = 0;
  bool raw = false;  ///< the prompt is read without the tokens that the codec puts around a text
};

/// The next token of an answer.
struct GeneratedToken {
  size_t request;    ///< its number
  std::string text;  ///< that it completes, which may be empty
  bool last;
};

/// Continues several texts, each step by one token of each: continuous batching. Yu et al. 2022
/// (Orca). A text begins as soon as there are pages for it, while others go on. When pages run out,
/// the text that began last gives its own back, waits, and is read again later.
///
/// What a text becomes does not depend on the others, to the rounding of its scores.
class BatchGenerator {
 public:
  /// Puts the model, which must have a codec, into evaluation mode.
  BatchGenerator(const LanguageModel& language_model, const BatchOptions& options);

  /// Lets a text wait for its turn; their numbers are 0, 1, ... Throws std::runtime_error when the
  /// prompt cannot be read, and when the cache has too few pages even for this text alone.
  void add(GenerationRequest request);

  /// Whether all answers are whole.
  bool done() const { return running_.empty() && waiting_.empty(); }

  /// Generates the next token of each text that is not waiting.
  std::vector<GeneratedToken> step();

  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }
  int64_t pages_free() const { return cache_.pages_free(); }
  /// How often a text gave its pages back.
  int64_t preemptions() const { return preemptions_; }

 private:
  struct Text {
    size_t number;
    GenerationRequest request;
    std::vector<int64_t> tokens;     // all of them, with the prompt's
    std::vector<int64_t> window;     // what the model sees; the cache holds the beginning of it
    bool has_prompt;                 // or the window is the model's start
    at::Generator generator;         // from here on: once it has begun
    std::optional<Speller> speller;  // likewise
    StopStrings stops;
    int64_t generated = 0;
    int64_t sequence = -1;  // in the cache, if it is not waiting
  };
  /// The tokens that a step reads: `counts[i]` of them belong to the text in `sequences[i]`.
  struct Unread {
    std::vector<int64_t> sequences, counts, tokens;
  };

  Unread unread() const;
  int64_t pages_needed() const;
  void make_room();
  void begin(Text& text) const;
  void admit();
  at::Tensor sample_next(const at::Tensor& scores);
  GeneratedToken take(Text& text, int64_t token);
  std::string spell(Text& text, int64_t token, bool& last) const;

  LanguageModel language_model_;
  BatchOptions options_;
  PagedKVCache cache_;
  std::vector<Text> running_;  // in the order of their numbers
  std::deque<Text> waiting_;   // likewise; they come after all that are running
  size_t added_ = 0;
  int64_t preemptions_ = 0;
};

}  // namespace heed::examples
