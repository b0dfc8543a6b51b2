// SPDX-License-Identifier: BSD-3-Clause
#include "modules/caches/caches.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <heed/attend.h>
#include <heed/quantize.h>

#include <algorithm>
#include <string>
#include <variant>

#include "attend/attend_lengths.h"
#include "attend/attend_paged.h"
#include "core/attend_checks.h"
#include "core/checks.h"
#include "core/direct.h"
#include "core/dtypes.h"
#include "core/offsets.h"
#include "core/to_device.h"
#include "modules/caches/step_angles.h"

namespace heed::detail {

namespace {

/// The dtype of a cache for keys that `weight` projects: the weight's, or autocast's if it is on.
at::ScalarType cache_dtype(const at::Tensor& weight) {
  const auto dtype = weight.scalar_type();
  const auto device = weight.device().type();
  const bool casts = at::autocast::is_autocast_enabled(device) && dtype != at::kDouble;
  return casts ? at::autocast::get_autocast_dtype(device) : dtype;
}

/// The length beyond which longrope rotates all keys of a sequence by other frequencies; nullopt
/// for other rotary embeddings.
std::optional<int64_t> border_of(const RotaryEmbedding& rotary) {
  const auto& scaling = rotary->options.scaling();
  const auto* longrope = scaling ? std::get_if<LongRopeScaling>(&*scaling) : nullptr;
  return longrope ? std::optional(longrope->original_length()) : std::nullopt;
}

/// Views [1, H, T, D] as [T, H, D], and back.
/// @{
at::Tensor as_rows(const at::Tensor& heads) {
  return strided_view(heads, {heads.size(2), heads.size(1), heads.size(3)},
                      {heads.stride(2), heads.stride(1), heads.stride(3)});
}
at::Tensor as_heads(const at::Tensor& rows) {
  return strided_view(rows, {1, rows.size(1), rows.size(0), rows.size(2)},
                      {rows.stride(0), rows.stride(1), rows.stride(0), rows.stride(2)});
}
/// @}

}  // namespace

void check_cache_dtype(const char* function, at::ScalarType dtype) {
  HEED_CHECK(is_attention_dtype(dtype) || is_quantized(dtype),
             "{}: dtype ({}) must be {}, or Char for int8", function, c10::toString(dtype),
             attention_dtypes());
}

void check_no_dropout(const char* function, const char* name, double probability, bool training) {
  HEED_CHECK(!training || probability == 0.0,
             "{}: {} ({}) must be 0 in training mode with a cache: call eval()", function, name,
             probability);
}

void check_written(const char* function, const char* name, const at::Tensor& tensor,
                   const at::Tensor& cache) {
  if (is_quantized(cache.scalar_type())) {
    check_floating(function, name, tensor);
  } else {
    check_same_dtype(function, name, tensor, "cache", cache);
  }
  check_same_device(function, name, tensor, "cache", cache);
  HEED_CHECK(!(at::GradMode::is_enabled() && tensor.requires_grad()),
             "{}: {} must not require grad: a cache holds no gradients; use torch::NoGradGuard",
             function, name);
}

void check_keys_left(const char* function, std::optional<int64_t> window, int64_t length,
                     int64_t evicted) {
  const auto oldest = oldest_seen(window, length);
  HEED_CHECK(
      oldest >= evicted || oldest == length,
      "{}: length ({}) must leave the window ({}) its keys; those before {} have been evicted",
      function, length, window.value_or(0), evicted);
}

std::vector<at::Tensor> as_stored(const at::Tensor& key, const at::Tensor& value,
                                  at::ScalarType dtype) {
  if (!is_quantized(dtype)) return {key, value};
  const auto [keys, key_scales] = quantize_int8(key);
  const auto [values, value_scales] = quantize_int8(value);
  return {keys, values, key_scales.unsqueeze(-1), value_scales.unsqueeze(-1)};
}

int64_t rotated_length(const char* function, const AppendedSequence& tokens, int64_t before,
                       int64_t border) {
  if (tokens.count == 0) return before;
  if (tokens.cached == 0) return tokens.length;
  const auto longest = std::max(before, tokens.cached);
  const auto factors = [&](int64_t length) { return length > border ? "long" : "short"; };
  HEED_CHECK((longest > border) == (tokens.length > border),
             "{}: sequence {} must be read again from its first token, in a new cache or after "
             "truncate({}, 0): its {} cached keys are rotated by longrope's {} factors, and a "
             "length of {} needs the {} ones; original_length {}",
             function, tokens.name, tokens.name, tokens.cached, factors(longest), tokens.length,
             factors(tokens.length), border);
  return std::max(longest, tokens.length);
}

void check_step_tokens(const char* function, const char* name, const at::Tensor& tensor,
                       const PagedStep& step) {
  check_defined(function, name, tensor);
  HEED_CHECK(tensor.dim() >= 2 && tensor.size(0) == 1 && tensor.size(1) == step.tokens(),
             "{}: {} must be [1, T, ..] with the step's {} tokens; {} {}", function, name,
             step.tokens(), name, shape(tensor));
}

KVCache make_cache(const HeadSizes& sizes, std::optional<int64_t> window, int64_t batch,
                   int64_t capacity, const CacheOptions& asked, const at::Tensor& weight) {
  const bool evicts = window && *window <= capacity && !asked.fixed_shapes();
  return KVCache(KVCacheOptions(batch, sizes.groups, capacity, sizes.head_dim)
                     .value_head_dim(sizes.value_head_dim)
                     .window(evicts ? window : std::nullopt)
                     .dtype(asked.dtype().value_or(cache_dtype(weight)))
                     .device(weight.device())
                     .fixed_shapes(asked.fixed_shapes()));
}

PagedKVCache make_paged_cache(const HeadSizes& sizes, std::optional<int64_t> window, int64_t pages,
                              const PagedCacheOptions& asked, const at::Tensor& weight) {
  return PagedKVCache(PagedKVCacheOptions(pages, sizes.groups, sizes.head_dim)
                          .value_head_dim(sizes.value_head_dim)
                          .window(window)
                          .layers(asked.layers().value_or(1))
                          .page_size(asked.page_size())
                          .dtype(asked.dtype().value_or(cache_dtype(weight)))
                          .device(weight.device()));
}

UndoOnError::UndoOnError(KVCache* caches, size_t count) : caches_(caches) {
  before_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const auto& cache = caches[i];
    before_.push_back({cache.appends_, cache.last_count_, {}, cache.last_counts_});
    for (const auto* numbers : {&cache.stored_, &cache.dropped_, &cache.appended_}) {
      before_.back().numbers.append(numbers->begin(), numbers->end());
    }
  }
}

UndoOnError::~UndoOnError() {
  if (std::uncaught_exceptions() == exceptions_) return;
  for (size_t i = 0; i < before_.size(); ++i) undo(caches_[i], before_[i]);
}

void UndoOnError::undo(KVCache& cache, const Before& before) noexcept {
  if (cache.appends_ == before.appends) return;
  if (cache.fixed_lengths_.defined()) cache.shorten_fixed();
  bool evicted = false;
  const auto batch = cache.stored_.size();
  for (size_t b = 0; b < batch; ++b) {
    const auto more = cache.dropped_[b] - before.numbers[batch + b];
    evicted = evicted || more > 0;
    cache.stored_[b] = before.numbers[b] - more;
    cache.appended_[b] = before.numbers[2 * batch + b];
  }
  cache.appends_ = before.appends;
  cache.last_count_ = before.last_count;
  cache.last_counts_ = before.last_counts;
  if (evicted) cache.forget_last_append();
}

void AppendedTokens::check(const AttendOptions& call) const {
  const auto window = causal_window(call);
  HEED_CHECK(!window_ || (window && *window <= *window_),
             "{}: cache window ({}) must be at least the module's ({})", function_,
             window_.value_or(0), window ? std::to_string(*window) : "none");
  HEED_CHECK(!call.top_left(), "{}: top_left must be false with a cache", function_);
  HEED_CHECK(!call.right_window(), "{}: right_window ({}) must be absent with a cache", function_,
             call.right_window().value_or(0));
  check_no_dropout(function_, "dropout", call.dropout(), /*training=*/true);
  check_precision(function_, dtype_, call);
  check_kind(call);
}

at::Tensor AppendedTokens::as_cached(const at::Tensor& heads) const {
  const bool casts =
      at::autocast::is_autocast_enabled(heads.device().type()) && !is_quantized(dtype_);
  return casts ? heads.to(dtype_) : heads;
}

at::Tensor AppendedTokens::attend(const Heads& heads, const AttendOptions& call) const {
  // Autocast would convert the whole cache to its dtype in each step.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  auto causal = call;
  causal.causal(true);
  if (is_quantized(dtype_)) causal.key_scales(key_scales()).value_scales(value_scales());
  return attend_causally(heads, std::move(causal));
}

at::Tensor AppendedTokens::append_and_attend(const Heads& heads, const AttendOptions& call) {
  append(as_cached(heads.key), as_cached(heads.value));
  return attend({as_cached(heads.query), keys(), values()}, call);
}

RotaryAngles TokensOfBatch::angles(const RotaryEmbedding& rotary, int64_t length,
                                   const at::TensorOptions& like) const {
  if (const auto border = border_of(rotary)) {
    cache_.rotate_for(function_, length, counts_, *border);
  }
  const bool own_lengths = rotary->depends_on_length() && !counts_.empty();
  if (!cache_.options().fixed_shapes() && !own_lengths) {
    const auto first = cache_.lengths();
    if (all_equal(first)) return rotary->angles(first[0], length, like);
  }
  const auto positions = cache_.next_positions(length);
  const auto dtype = c10::typeMetaToScalarType(like.dtype());
  if (!own_lengths) {
    const bool has_axes = !rotary->options.sections().empty();
    return rotary->angles(has_axes ? positions.unsqueeze(-1) : positions, dtype);
  }
  check_counts(counts_, cache_.options().batch(), length);
  const auto before = cache_.next_positions(1).view({-1, 1});
  const auto more = to_device(counts_.vec(), positions.device()).unsqueeze(1);
  return rotary->angles(positions, before + more, dtype);
}

at::Tensor TokensOfBatch::attend_causally(const Heads& heads, AttendOptions call) const {
  const auto& [query, key, value] = heads;
  return cache_.has_equal_lengths()
             ? heed::attend(query, key, value, call)
             : attend_lengths(function_, query, key, value, cache_.query_lengths(),
                              cache_.key_lengths(), call);
}

TokensOfStep::TokensOfStep(const char* function, const at::Tensor& x, PagedStep& step,
                           int64_t layer)
    : AppendedTokens(function, step.options()), step_(step), layer_(layer) {
  check_step_tokens(function, "x", x, step);
}

void TokensOfStep::check_kind(const AttendOptions& call) const {
  if (step_.parents().defined()) check_draft_options(function_, call);
}

RotaryAngles TokensOfStep::angles(const RotaryEmbedding& rotary, int64_t /*length*/,
                                  const at::TensorOptions& like) const {
  return step_.angles_->of(rotary, step_.positions(), c10::typeMetaToScalarType(like.dtype()), [&] {
    if (const auto border = border_of(rotary)) step_.rotate_for(function_, *border);
  });
}

void TokensOfStep::append(const at::Tensor& key, const at::Tensor& value) {
  step_.write(as_rows(key), as_rows(value), layer_);
}

at::Tensor TokensOfStep::attend_causally(const Heads& heads, AttendOptions call) const {
  if (step_.parents().defined()) call.parents(step_.parents());
  return as_heads(attend_paged(as_rows(heads.query), heads.key, heads.value, *step_.call_, call));
}

}  // namespace heed::detail
