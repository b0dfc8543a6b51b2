// SPDX-License-Identifier: BSD-3-Clause
// Caches of modules whose rotary embedding changes with the length, about the length that it was
// trained for. The result is the attention of keys that were rotated for the length when they
// came, and equal to that of the whole sequence where that is the present length's rotation; or an
// error that leaves the cache as it was.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <heed/decoder.h>
#include <heed/group_query_attention.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attend_verdict.h"
#include "rotary_case.h"
#include "support/expect.h"
#include "support/modules.h"
#include "support/transformers.h"

namespace heed::fuzz {

namespace {

constexpr int64_t kTokens = 16;  // a Decoder's

/// Tokens [n, E] or [n], and for which length each was rotated.
struct RotatedSequence {
  at::Tensor tokens;
  Integers lengths;
  std::vector<KVCache> alone;  // with these tokens, in these pieces, and no other sequence

  int64_t length() const { return static_cast<int64_t>(lengths.size()); }
};

/// A module, or a stack of them, that attends with a cache.
struct CachedModel {
  std::function<at::Tensor(int64_t batch, int64_t count)> draw;
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::function<at::Tensor(const at::Tensor&, std::vector<KVCache>&, const Integers&)> cached;
  std::function<at::Tensor(const at::Tensor&, PagedStep&)> step;
  std::function<std::vector<KVCache>(int64_t batch, const CacheOptions&)> make_caches;
  std::function<PagedKVCache()> make_pages;
  /// The output of the last `count` tokens in float64; none if only other calls tell it.
  std::function<std::optional<at::Tensor>(const RotatedSequence&, int64_t count)> expected;
};

int64_t most_tokens(const Case& c) { return trained_length(c) + 6; }

GroupQueryAttentionOptions attention_options(const Case& c, int64_t width) {
  const auto rotary = scaled_rotary(c);
  const auto G = 1 + c.G % 2;
  return GroupQueryAttentionOptions(width, G * (1 + c.H % 2), G)
      .head_dim(rotary.head_dim())
      .causal(true)
      .rotary(rotary);
}

/// The attention of the last tokens, from the projections on, in float64.
at::Tensor attended(const Case& c, const GroupQueryAttention& module,
                    const RotatedSequence& sequence, int64_t count) {
  const auto& options = module->options;
  const auto heads = [&](const torch::nn::Linear& linear, int64_t number) {
    return test::split_heads(test::linear64(linear, sequence.tokens.unsqueeze(0)), number);
  };
  Integers positions;
  for (int64_t i = 0; i < sequence.length(); ++i) positions.push_back(i);
  const auto rotated = [&](const at::Tensor& x) {
    return rotate_scaled(c, x[0], positions, sequence.lengths).unsqueeze(0);
  };
  test::ReferenceInput input;
  const auto first = sequence.length() - count;
  input.query = rotated(heads(module->fc_q, options.head_num())).narrow(2, first, count);
  input.key = rotated(heads(module->fc_k, options.group_num()));
  input.value = heads(module->fc_v, options.group_num());
  input.causal = true;
  const auto output = test::reference_attention(input).output;
  return test::linear64(module->fc_o, test::merge_heads(output))[0];
}

CachedModel attention_model(const Case& c) {
  constexpr int64_t kWidth = 6;
  GroupQueryAttention module(attention_options(c, kWidth));
  const auto dtype = c.dtype % 2 == 0 ? at::kFloat : at::kDouble;
  module->to(dtype);
  module->eval();
  return {
      [dtype](int64_t batch, int64_t count) {
        return test::uniform({batch, count, kWidth}, dtype);
      },
      [module](const at::Tensor& x) mutable { return module->forward(x); },
      [module](const at::Tensor& x, std::vector<KVCache>& caches, const Integers& counts) {
        return module->forward_cached(x, caches[0], counts);
      },
      [module](const at::Tensor& x, PagedStep& step) { return module->forward_cached(x, step); },
      [module, &c](int64_t batch, const CacheOptions& options) {
        std::vector<KVCache> caches;
        caches.push_back(module->make_cache(batch, most_tokens(c), options));
        return caches;
      },
      [module] { return module->make_paged_cache(8, PagedCacheOptions().page_size(16)); },
      [module, &c](const RotatedSequence& sequence, int64_t count) {
        return std::optional(attended(c, module, sequence, count));
      }};
}

/// Two blocks, of which only the last may have the scaling.
CachedModel decoder_model(const Case& c) {
  constexpr int64_t kWidth = 8;
  Case plain = c;
  if (c.cross != 0) plain.scaling = kUnscaled;
  const TransformerBlockOptions first(attention_options(plain, kWidth));
  const TransformerBlockOptions last(attention_options(c, kWidth));
  Decoder module(DecoderOptions(kTokens, EncoderOptions({first, last})));
  module->to(at::kDouble);
  module->eval();
  return {
      [](int64_t batch, int64_t count) {
        return at::randint(kTokens, {batch, count}, at::kLong);
      },
      [module](const at::Tensor& x) mutable { return module->forward(x); },
      [module](const at::Tensor& x, std::vector<KVCache>& caches, const Integers& counts) {
        return module->forward_cached(x, caches, counts);
      },
      [module](const at::Tensor& x, PagedStep& step) { return module->forward_cached(x, step); },
      [module, &c](int64_t batch, const CacheOptions& options) {
        return module->make_caches(batch, most_tokens(c), options);
      },
      [module] { return module->make_paged_cache(8, PagedCacheOptions().page_size(16)); },
      [](const RotatedSequence&, int64_t) { return std::optional<at::Tensor>(); }};
}

/// The sequences' common cache: a KVCache for each layer, or pages.
class CommonCache {
 public:
  CommonCache(const Case& c, const CachedModel& model, int64_t batch) : model_(model) {
    if (c.page != 2) {
      caches_ = model.make_caches(batch, CacheOptions().fixed_shapes(c.page == 1));
      return;
    }
    pages_.emplace(model.make_pages());
    for (int64_t b = 0; b < batch; ++b) names_.push_back(pages_->add());
  }

  /// Appends the first counts[b] tokens of x [B, n, ..] to sequence b; returns their outputs.
  std::vector<at::Tensor> append(const at::Tensor& x, const Integers& counts, bool all) {
    std::vector<at::Tensor> outputs;
    if (!pages_) {
      const auto output = model_.cached(x, caches_, all ? Integers() : counts);
      for (size_t b = 0; b < counts.size(); ++b) {
        outputs.push_back(output[static_cast<int64_t>(b)].narrow(0, 0, counts[b]));
      }
      return outputs;
    }
    std::vector<at::Tensor> packed;
    for (size_t b = 0; b < counts.size(); ++b) {
      packed.push_back(x[static_cast<int64_t>(b)].narrow(0, 0, counts[b]));
    }
    auto step = pages_->append(names_, counts);
    const auto output = model_.step(at::cat(packed).unsqueeze(0), step)[0];
    return output.split_with_sizes(counts);
  }

  void truncate(size_t b, int64_t length) {
    if (pages_) return pages_->truncate(names_[b], length);
    for (auto& cache : caches_) cache.truncate(static_cast<int64_t>(b), length);
  }

  /// A step of pages that cannot be finished is taken back by truncation.
  void check_unchanged(const std::vector<RotatedSequence>& sequences) {
    for (size_t b = 0; pages_ && b < sequences.size(); ++b) truncate(b, sequences[b].length());
    check_lengths(sequences);
  }

  void check_lengths(const std::vector<RotatedSequence>& sequences) const {
    for (size_t b = 0; b < sequences.size(); ++b) {
      const auto length = sequences[b].length();
      if (pages_) expect(pages_->length(names_[b]) == length, "length");
      for (const auto& cache : caches_) expect(cache.lengths()[b] == length, "length");
    }
  }

 private:
  const CachedModel& model_;
  std::vector<KVCache> caches_;
  std::optional<PagedKVCache> pages_;
  Integers names_;
};

class RotatedSteps {
 public:
  RotatedSteps(const Case& c, CachedModel model)
      : c_(c),
        model_(std::move(model)),
        sequences_(static_cast<size_t>(1 + c.B % 3)),
        cache_(c, model_, 1 + c.B % 3) {
    for (auto& sequence : sequences_) {
      sequence.tokens = model_.draw(1, 0)[0];
      sequence.alone = model_.make_caches(1, {});
    }
  }

  void step() {
    if (draw_below(4) == 0) {
      truncate();
    } else {
      append();
    }
    cache_.check_lengths(sequences_);
  }

 private:
  void truncate() {
    const auto b = static_cast<size_t>(draw_below(static_cast<int64_t>(sequences_.size())));
    auto& [tokens, lengths, alone] = sequences_[b];
    const auto length =
        draw_below(2) == 0 ? 0 : std::max<int64_t>(sequences_[b].length() - draw_below(4), 0);
    cache_.truncate(b, length);
    for (auto& cache : alone) cache.truncate(length);
    tokens = tokens.narrow(0, 0, length);
    lengths.resize(static_cast<size_t>(length));
  }

  /// Prompts end about the border; later pieces are short.
  Integers draw_counts() const {
    Integers counts;
    for (const auto& sequence : sequences_) {
      const bool empty = sequence.length() == 0;
      const auto count = empty && draw_below(3) > 0 ? draw_length(c_) : draw_below(4);
      counts.push_back(std::min(count, most_tokens(c_) - sequence.length()));
    }
    if (c_.ragged != 0) return counts;
    return Integers(counts.size(), *std::min_element(counts.begin(), counts.end()));
  }

  /// Keys of longrope must all have the factors of the present length.
  bool is_valid(const Integers& counts) const {
    for (size_t b = 0; b < counts.size(); ++b) {
      const auto& sequence = sequences_[b];
      if (c_.scaling != kLongRope || counts[b] == 0 || sequence.length() == 0) continue;
      const auto length = sequence.length() + counts[b];
      if (!is_rotated_alike(c_, sequence.lengths.back(), length)) return false;
    }
    return true;
  }

  void append() {
    const auto counts = draw_counts();
    const auto most = *std::max_element(counts.begin(), counts.end());
    const auto x = model_.draw(static_cast<int64_t>(counts.size()), most);
    const auto outputs = outcome(is_valid(counts), {"GroupQueryAttention"}, [&] {
      return cache_.append(x, counts, c_.ragged == 0 && draw_below(2) == 0);
    });
    if (!outputs) return cache_.check_unchanged(sequences_);
    for (size_t b = 0; b < counts.size(); ++b) {
      if (counts[b] == 0) continue;
      auto& [tokens, lengths, alone] = sequences_[b];
      const auto more = x[static_cast<int64_t>(b)].narrow(0, 0, counts[b]);
      tokens = at::cat({tokens, more});
      const auto length = sequences_[b].length() + counts[b];
      lengths.resize(static_cast<size_t>(length), length);
      check(sequences_[b], (*outputs)[b], model_.cached(more.unsqueeze(0), alone, {})[0]);
    }
  }

  void check(const RotatedSequence& sequence, const at::Tensor& output, const at::Tensor& alone) {
    const auto allowed = 0x1p12 * test::unit_roundoff(output.scalar_type());
    const auto count = output.size(0);
    expect(test::is_close(output, alone, allowed), "output beside the sequence alone");
    if (const auto expected = model_.expected(sequence, count)) {
      expect(test::is_close(output, *expected, allowed), "output beside float64");
    }
    const auto& lengths = sequence.lengths;
    const bool alike = std::all_of(lengths.begin(), lengths.end(), [&](int64_t length) {
      return is_rotated_alike(c_, length, sequence.length());
    });
    if (!alike) return;
    const auto whole = model_.forward(sequence.tokens.unsqueeze(0))[0];
    expect(test::is_close(output, whole.narrow(0, sequence.length() - count, count), allowed),
           "output beside the whole sequence");
  }

  const Case& c_;
  CachedModel model_;
  std::vector<RotatedSequence> sequences_;
  CommonCache cache_;
};

}  // namespace

void check_rotary_cache(const Case& c) {
  const at::NoGradGuard no_grad;
  RotatedSteps steps(c, c.builder == 0 ? attention_model(c) : decoder_model(c));
  for (int64_t i = 0; i < c.steps; ++i) steps.step();
}

}  // namespace heed::fuzz
