// SPDX-License-Identifier: BSD-3-Clause
// Runs one language model for models.py, which times other engines in turns with it:
//
//     heed_models FOLDER THREADS FORMAT
//
// FOLDER has the model in Hugging Face's format. FORMAT is that of the packed weights: as_is,
// float32, bfloat16, int8, int4, or int8_activations and int4_activations, with activations that
// are rounded too; "unpacked" leaves the weights as they are. Each line on standard input is
// answered with a number, and with one token chosen by argmax after each forward pass:
//
//     prompt 1024   tokens a second of a prompt of 1024
//     decode 1024   tokens a second of one sequence, one at a time behind a prompt of 1024
//     batch 16      tokens a second of 16 sequences that are decoded at once
//     token 128     the token that follows a prompt of 128
//     start         seconds from the files to the first token
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <c10/core/InferenceMode.h>
#include <heed/pretrained.h>
#include <heed/sampling.h>

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "support/answer_lines.h"
#include "support/pack_formats.h"
#include "support/throughput.h"

namespace {

using Clock = std::chrono::steady_clock;

// Tokens that are decoded, and those of a prompt in a batch: models_peers.py has the same numbers.
constexpr int64_t kDecoded = 64, kPromptInBatch = 64;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Returns the tokens [1, N] that follow by scores [1, N, V].
at::Tensor next_tokens(const at::Tensor& scores) {
  static const auto greedy = heed::SamplingOptions().temperature(0.0);
  return heed::sample(scores[0], greedy).unsqueeze(0);
}

class Work {
 public:
  Work(const std::string& folder, const std::string& format)
      : model_(heed::load_pretrained(folder, heed::bench::pretrained_options(format))) {
    auto caches = model_->make_caches(1, 1);
    read(prompt(1), caches);
  }

  double answer(const std::string& work) {
    int64_t count = 0;
    std::cin >> count;
    if (work == "prompt") return prompt_rate(count);
    if (work == "decode") return decode_rate(count);
    if (work == "batch") return batch_rate(count);
    return static_cast<double>(token_after(count));
  }

 private:
  /// Returns tokens [1, length], which models_peers.py makes by the same rule.
  at::Tensor prompt(int64_t length, int64_t sequence = 0) const {
    const auto vocabulary = model_->options.vocab_size();
    return at::arange(length)
        .mul(7919)
        .add(13 + 104729 * sequence)
        .remainder(vocabulary)
        .unsqueeze(0);
  }

  at::Tensor read(const at::Tensor& tokens, std::vector<heed::KVCache>& caches) const {
    const c10::InferenceMode inference;
    return next_tokens(model_->forward_cached(tokens, caches, {}, /*last_only=*/true));
  }

  at::Tensor read(const at::Tensor& tokens, heed::PagedKVCache& cache, at::IntArrayRef sequences,
                  at::IntArrayRef counts) const {
    const c10::InferenceMode inference;
    auto step = cache.append(sequences, counts);
    return next_tokens(model_->forward_cached(tokens, step, /*last_only=*/true));
  }

  double prompt_rate(int64_t length) const {
    auto caches = model_->make_caches(1, length);
    const auto tokens = prompt(length);
    return heed::bench::throughput([&] {
      for (auto& cache : caches) cache.reset();
      read(tokens, caches);
      return length;
    });
  }

  double decode_rate(int64_t context) const {
    auto caches = model_->make_caches(1, context + kDecoded);
    auto token = read(prompt(context), caches);
    const auto start = Clock::now();
    for (int64_t i = 0; i < kDecoded; ++i) token = read(token, caches);
    return static_cast<double>(kDecoded) / seconds_since(start);
  }

  double batch_rate(int64_t count) const {
    const heed::PagedCacheOptions options;
    const auto longest = kPromptInBatch + kDecoded, size = options.page_size();
    auto cache = model_->make_paged_cache(count * ((longest + size - 1) / size), options);
    std::vector<int64_t> sequences;
    std::vector<at::Tensor> prompts;
    for (int64_t n = 0; n < count; ++n) {
      sequences.push_back(cache.add());
      prompts.push_back(prompt(kPromptInBatch, n));
    }
    const std::vector<int64_t> lengths(count, kPromptInBatch), ones(count, 1);
    auto tokens = read(at::cat(prompts, 1), cache, sequences, lengths);
    const auto start = Clock::now();
    for (int64_t i = 0; i < kDecoded; ++i) tokens = read(tokens, cache, sequences, ones);
    return static_cast<double>(count * kDecoded) / seconds_since(start);
  }

  int64_t token_after(int64_t length) const {
    auto caches = model_->make_caches(1, length);
    return read(prompt(length), caches).item<int64_t>();
  }

  heed::Decoder model_;
};

}  // namespace

int main(int argc, char** argv) {
  return heed::bench::answer_lines<Work>("heed_models", argc, argv);
}
