// SPDX-License-Identifier: BSD-3-Clause
// GroupQueryAttention with a cache against the whole sequences in float64.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "attend_verdict.h"
#include "module_case.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/modules.h"

namespace heed::fuzz {

namespace {

const Names kCacheModuleNames = {"GroupQueryAttention", "RotaryEmbedding", "Norm"};
const Names kCacheNames = {"GroupQueryAttention", "KVCache", "KVCache::append"};

/// How many tokens of each sequence go in with `part`; none given: all of them.
std::vector<int64_t> draw_counts(const Case& c, int64_t part) {
  if (c.ragged == 0) return {};
  auto counts = draw_lengths(c, part);
  if (c.victim == kOffsets && c.defect == kExtraDim) counts.push_back(0);
  if (c.victim == kOffsets && c.defect >= kLargerDim && !counts.empty()) counts[0] = part + 1;
  return counts;
}

/// The window of a module in a cache, which the left side alone may give.
std::optional<int64_t> causal_window_of(const Case& c) {
  const auto left = left_of(c);
  return left ? std::min(*left, std::numeric_limits<int64_t>::max() - 1) + 1 : window_of(c);
}

KVCacheOptions cache_options(const Case& c) {
  const auto larger = [&](int64_t dim) {
    return c.victim == kKey && c.defect == kLargerDim + dim ? 1 : 0;
  };
  const auto capacity = c.capacity > 0 ? c.capacity : std::max<int64_t>(c.L + 3, 1);
  KVCacheOptions options(c.B + larger(0), c.G + larger(1), capacity, head_dim(c) + larger(2));
  if (c.cache_window > 0) options.window(causal_window_of(c).value_or(4));
  return options.dtype(dtype_of(c.dtype + c.key_dtype));
}

bool has_valid_cache(const KVCacheOptions& options) {
  const auto window = options.window().value_or(1);
  return options.batch() >= 1 && options.groups() >= 1 && options.head_dim() >= 1 && window >= 1 &&
         options.capacity() >= window && at::isFloatingType(options.dtype());
}

AttentionInputs cached_inputs(const Case& c) {
  if (c.relative == 0) return {};
  return AttentionInputs().relative_bias(test::uniform({c.H, 2 * reach_of(c) + 1}, at::kFloat));
}

/// Goes on token by token, and keeps what the reference needs to say what should have come out.
class CachedCalls {
 public:
  CachedCalls(const Case& c, GroupQueryAttention module, KVCache cache)
      : c_(c),
        module_(std::move(module)),
        cache_(std::move(cache)),
        inputs_(cached_inputs(c)),
        tokens_(static_cast<size_t>(c.B)),
        outputs_(static_cast<size_t>(c.B)) {}

  /// False where the cache has no room, or the call is wrong.
  bool append(const at::Tensor& part) {
    const auto length = is_dense(part, 3) ? part.size(1) : 0;
    const auto counts = draw_counts(c_, length);
    const auto before = cache_.lengths();
    const auto output = outcome(is_valid(part, counts), kCacheNames, [&] {
      return module_->forward_cached(part, cache_, counts, inputs_);
    });
    if (!output) {
      expect(cache_.lengths() == before, "a refused call changed the cache");
      return false;
    }
    for (int64_t b = 0; b < c_.B; ++b) {
      const auto count = counts.empty() ? length : counts[static_cast<size_t>(b)];
      tokens_[static_cast<size_t>(b)].push_back(part[b].narrow(0, 0, count));
      outputs_[static_cast<size_t>(b)].push_back((*output)[b].narrow(0, 0, count));
    }
    return true;
  }

  void check_outputs() const {
    for (size_t b = 0; b < tokens_.size() && !tokens_[b].empty(); ++b) {
      const auto x = at::cat(tokens_[b]).unsqueeze(0);
      expect(cache_.lengths()[b] == x.size(1), "the cache has another length");
      const auto heads = heads_of(c_, parts_of(module_), {x, x, x});
      const auto options =
          call_options(c_, parts_of(module_)).causal(true).relative_bias(inputs_.relative_bias());
      const auto attended = test::dense_reference(heads.heads, options).output;
      const auto expected = test::linear64(module_->fc_o, test::merge_heads(attended));
      const auto actual = at::cat(outputs_[b]).unsqueeze(0);
      expect(test::is_finite(actual), "output");
      expect(test::is_close(actual, expected, module_tolerance(c_, x.scalar_type(), heads)),
             "output of sequence " + std::to_string(b));
    }
  }

 private:
  bool is_valid(const at::Tensor& part, const std::vector<int64_t>& counts) const {
    const auto& options = cache_.options();
    if (!is_input(part, module_->fc_q) || !can_compute(c_, part) ||
        part.scalar_type() != options.dtype())
      return false;
    if (at::GradMode::is_enabled()) return false;  // the cache would lose the gradient
    if (c_.top_left != 0 || c_.right != 0) return false;
    const bool fits = part.size(0) == options.batch() && c_.G == options.groups() &&
                      head_dim(c_) == options.head_dim();
    const auto kept = options.window();
    if (!fits || (kept && causal_window_of(c_).value_or(*kept + 1) > *kept)) return false;
    if (!counts.empty() && static_cast<int64_t>(counts.size()) != options.batch()) return false;
    const auto lengths = cache_.lengths();
    for (size_t b = 0; b < lengths.size(); ++b) {
      const auto count = counts.empty() ? part.size(1) : counts[b];
      const auto needed = kept ? std::min(lengths[b], *kept - 1) : lengths[b];
      if (count > part.size(1) || needed + count > options.capacity()) return false;
    }
    return true;
  }

  const Case& c_;
  GroupQueryAttention module_;
  KVCache cache_;
  AttentionInputs inputs_;
  std::vector<std::vector<at::Tensor>> tokens_, outputs_;  // of each sequence
};

}  // namespace

void check_cached(const Case& given) {
  Case c = given;
  c.training = 0;
  auto module =
      outcome(has_valid_module_options(c), kCacheModuleNames, [&] { return make_group_query(c); });
  if (!module) return;
  const auto options = cache_options(c);
  auto cache = outcome(has_valid_cache(options), kCacheNames, [&] { return KVCache(options); });
  if (!cache) return;
  const at::AutoGradMode mode(c.inference == 0);
  const auto x = make_values(c, kQuery, {c.B, c.L, width(c)}, dtype_of(c.dtype), c.query_layout);
  CachedCalls calls(c, *module, std::move(*cache));
  const bool parts = c.chunk > 0 && is_dense(x, 3);
  for (const auto& part : parts ? x.split(c.chunk, 1) : std::vector<at::Tensor>{x}) {
    if (!calls.append(part)) break;
  }
  calls.check_outputs();
}

}  // namespace heed::fuzz
