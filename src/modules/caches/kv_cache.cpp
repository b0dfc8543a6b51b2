// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <heed/kv_cache.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "core/check_memory.h"
#include "core/checks.h"
#include "core/direct.h"
#include "core/offsets.h"
#include "core/to_device.h"
#include "modules/caches/caches.h"
#include "modules/caches/step_angles.h"
#include "modules/caches/write_rows.h"
#include "modules/layers/remembered_angles.h"

namespace heed {

namespace {

constexpr auto kAppend = "KVCache::append";
constexpr auto kTruncate = "KVCache::truncate";

void check_options(const KVCacheOptions& options) {
  constexpr auto kName = "KVCache";
  detail::check_positive(kName, "batch", options.batch());
  detail::check_positive(kName, "groups", options.groups());
  detail::check_positive(kName, "capacity", options.capacity());
  detail::check_positive(kName, "head_dim", options.head_dim());
  detail::check_not_negative(kName, "value_head_dim", options.value_head_dim().value_or(0));
  if (const auto window = options.window()) {
    detail::check_positive(kName, "window", *window);
    HEED_CHECK(options.capacity() >= *window, "{}: capacity ({}) must be at least window ({})",
               kName, options.capacity(), *window);
    HEED_CHECK(!options.fixed_shapes(), "{}: window ({}) must be absent with fixed_shapes", kName,
               *window);
  }
  detail::check_cache_dtype(kName, options.dtype());
}

/// Allocates a cache's memory. It is filled with zeros, because uninitialized memory may hold NaN,
/// and 0 times NaN would show although a mask hides it. The tensors are not inference tensors,
/// which could be changed only under InferenceMode.
std::vector<at::Tensor> allocate(const KVCacheOptions& options) {
  const c10::InferenceMode off(false);
  const auto batch = options.batch(), groups = options.groups(), capacity = options.capacity();
  const auto zeros = [&](int64_t columns, at::ScalarType dtype) {
    const auto like = at::device(options.device()).dtype(dtype);
    detail::check_memory("KVCache", "memory", {batch, groups, capacity, columns}, dtype);
    if (!options.device().is_cuda()) return at::zeros({batch, groups, capacity, columns}, like);
    // LibTorch's kernels for CUDA read this memory order without a copy.
    return at::zeros({batch, capacity, groups, columns}, like).transpose(1, 2);
  };
  return detail::allocate_stored(options, zeros);
}

at::Tensor allocate_lengths(const KVCacheOptions& options) {
  if (!options.fixed_shapes()) return {};
  const c10::InferenceMode off(false);
  return at::zeros({options.batch()}, at::device(options.device()).dtype(at::kLong));
}

/// Checks that `tensor` may be appended to `cache`, but not its length.
void check_appended(const char* name, const at::Tensor& tensor, const at::Tensor& cache) {
  HEED_CHECK(tensor.defined(), "{}: {} must be defined", kAppend, name);
  detail::check_rank(kAppend, name, tensor, 4);
  for (const int64_t dim : {0, 1, 3}) {
    detail::check_same_dim(kAppend, name, tensor, "cache", cache, dim);
  }
  detail::check_written(kAppend, name, tensor, cache);
}

/// The first `count` rows of heads [B, G, capacity, D].
at::Tensor first_rows(const at::Tensor& heads, int64_t count) {
  const auto sizes = heads.sizes();
  return detail::strided_view(heads, {sizes[0], sizes[1], count, sizes[3]}, heads.strides());
}

/// The numbers 0 to count - 1.
at::Tensor steps(int64_t count, at::Device device) {
  return at::arange(count, at::device(device).dtype(at::kLong));
}

void check_indices(const char* function, const std::vector<int64_t>& indices) {
  const auto batch = static_cast<int64_t>(indices.size());
  for (size_t b = 0; b < indices.size(); ++b) {
    HEED_CHECK(indices[b] >= 0 && indices[b] < batch,
               "{}: indices[{}] ({}) must be at least 0 and below batch ({})", function, b,
               indices[b], batch);
  }
}

}  // namespace

void detail::check_counts(at::IntArrayRef counts, int64_t batch, int64_t appended) {
  HEED_CHECK(counts.empty() || static_cast<int64_t>(counts.size()) == batch,
             "{}: counts size ({}) must equal batch ({})", kAppend, counts.size(), batch);
  for (size_t b = 0; b < counts.size(); ++b) {
    HEED_CHECK(counts[b] >= 0 && counts[b] <= appended,
               "{}: counts[{}] ({}) must be at least 0 and at most key dim 2 ({})", kAppend, b,
               counts[b], appended);
  }
}

KVCache::KVCache(const KVCacheOptions& options) : options_(options) {
  check_options(options);
  stored_heads_ = allocate(options);
  fixed_lengths_ = allocate_lengths(options);
  fixed_rotated_for_ = allocate_lengths(options);
  rotated_for_.assign(static_cast<size_t>(options.batch()), 0);
  reset();
}

KVCache KVCache::clone() const {
  const c10::InferenceMode off(false);
  KVCache copy(*this);
  for (auto& heads : copy.stored_heads_) heads = heads.clone();
  for (auto* numbers : {&copy.fixed_lengths_, &copy.fixed_rotated_for_}) {
    if (numbers->defined()) *numbers = numbers->clone();
  }
  return copy;
}

int64_t KVCache::stored() const {
  return options_.fixed_shapes() ? options_.capacity() : detail::longest(stored_);
}

/// The number of keys of sequence b that the next query may see.
int64_t KVCache::needed(int64_t b) const {
  const auto window = options_.window();
  return window ? std::min(stored_[b], *window - 1) : stored_[b];
}

/// Evicts keys of sequences in which `count`, or counts[b], more do not fit: moves the keys that
/// the next query may see to the front.
void KVCache::make_room(int64_t count, at::IntArrayRef counts) {
  for (size_t b = 0; b < stored_.size(); ++b) {
    const auto more = counts.empty() ? count : counts[b], kept = needed(static_cast<int64_t>(b));
    if (more > options_.capacity() - stored_[b] && kept < stored_[b]) evict(b, kept);
  }
}

/// Evicts all but the last `kept` keys of sequence b. Everything that may throw comes before the
/// first copy.
void KVCache::evict(size_t b, int64_t kept) {
  const auto dropped = stored_[b] - kept;
  std::vector<std::pair<at::Tensor, at::Tensor>> moves;  // (destination, source)
  moves.reserve(stored_heads_.size());
  for (const auto& heads : stored_heads_) {
    const auto own = heads[static_cast<int64_t>(b)];
    const auto last = own.narrow(1, dropped, kept);
    moves.emplace_back(own.narrow(1, 0, kept), dropped < kept ? last.clone() : last);
  }
  for (const auto& [to, from] : moves) to.copy_(from);
  stored_[b] = kept;
  dropped_[b] += dropped;
  forget_last_append();
}

/// Checks that `count`, or counts[b], more keys fit. Lengths that only the device knows count as
/// 0.
void KVCache::check_room(int64_t count, at::IntArrayRef counts) const {
  auto stay = stored_;  // 0 if only the device knows the length
  if (!options_.fixed_shapes()) {
    for (int64_t b = 0; b < options_.batch(); ++b) stay[b] = needed(b);
  } else if (fixed_lengths_.is_cpu()) {
    stay = detail::to_host(fixed_lengths_);
  }
  for (int64_t b = 0; b < options_.batch(); ++b) {
    const auto more = counts.empty() ? count : counts[b];
    HEED_CHECK(more <= options_.capacity() - stay[b],
               "{}: {} ({}) must fit beside the {} keys that stay, within capacity ({}); see "
               "KVCache::grow",
               kAppend, counts.empty() ? "key dim 2" : fmt::format("counts[{}]", b), more, stay[b],
               options_.capacity());
  }
}

/// Writes counts[b] tokens of sequence b to its places first[b], first[b] + 1, ..., or all if
/// counts are undefined. There must be no more tokens than the capacity. No shape depends on the
/// values of first and counts.
void KVCache::write(const std::vector<at::Tensor>& added, const at::Tensor& first,
                    const at::Tensor& counts) {
  const auto device = options_.device();
  const auto step = steps(added[0].size(2), device);
  const auto sequences = steps(options_.batch(), device).unsqueeze(1);  // [B, 1]
  auto places = first.unsqueeze(1) + step;                              // [B, n]
  at::Tensor is_padding;  // [B, n]: rewrites what is stored, where no token is written
  if (counts.defined()) {
    is_padding = step >= counts.unsqueeze(1);
    places = at::where(is_padding, places.remainder(options_.capacity()), places);
  }
  for (size_t i = 0; i < added.size(); ++i) {
    if (added[i].numel() == 0) continue;
    auto rows = stored_heads_[i].transpose(1, 2);  // [B, capacity, G, D]
    auto more = added[i].transpose(1, 2);
    if (counts.defined()) {
      const auto present = rows.index({sequences, places});
      more = at::where(is_padding.unsqueeze(2).unsqueeze(3), present, more);
    }
    rows.index_put_({sequences, places}, more);
  }
}

void KVCache::append(const at::Tensor& key, const at::Tensor& value, at::IntArrayRef counts) {
  check_appended("key", key, stored_heads_[0]);
  check_appended("value", value, stored_heads_[1]);
  detail::check_same_dim(kAppend, "value", value, "key", key, 2);
  const auto batch = options_.batch();
  const auto count = key.size(2);
  detail::check_counts(counts, batch, count);
  check_room(count, counts);

  const at::NoGradGuard no_grad;
  // key and value may be views of this cache, and must not change while it is written.
  const auto used = counts.empty() ? count : *std::max_element(counts.begin(), counts.end());
  const auto own = [&](const at::Tensor& tensor) {
    const bool is_view =
        tensor.is_alias_of(stored_heads_[0]) || tensor.is_alias_of(stored_heads_[1]);
    const auto own = is_view ? tensor.clone() : tensor;
    return used == count ? own : own.narrow(2, 0, used);
  };
  const auto added = detail::as_stored(own(key), own(value), options_.dtype());
  if (options_.fixed_shapes()) return append_fixed(added, count, counts);
  const auto device = options_.device();
  make_room(count, counts);
  if (counts.empty() && detail::all_equal(stored_)) {
    for (size_t i = 0; i < added.size(); ++i) {
      detail::write_rows(stored_heads_[i], stored_[0], added[i]);
    }
  } else if (!device.is_cpu()) {
    write(added, detail::to_device(stored_, device),
          counts.empty() ? at::Tensor() : detail::to_device(counts.vec(), device));
  } else {
    for (int64_t b = 0; b < batch; ++b) {
      const auto more = counts.empty() ? count : counts[b];
      for (size_t i = 0; i < added.size(); ++i) {
        detail::write_rows(stored_heads_[i].narrow(0, b, 1), stored_[b],
                           added[i].narrow(0, b, 1).narrow(2, 0, more));
      }
    }
  }
  for (int64_t b = 0; b < batch; ++b) {
    appended_[b] = counts.empty() ? count : counts[b];
    stored_[b] += appended_[b];
  }
  last_count_ = count;
  ++appends_;
}

void KVCache::append_fixed(const std::vector<at::Tensor>& added, int64_t count,
                           at::IntArrayRef counts) {
  auto own = counts.empty() ? at::Tensor() : detail::to_device(counts.vec(), options_.device());
  write(added, fixed_lengths_, own);
  // Changed in place, because a CUDA graph has the address of this memory.
  own.defined() ? fixed_lengths_.add_(own) : fixed_lengths_.add_(count);
  last_counts_ = std::move(own);
  last_count_ = count;
  ++appends_;
}

/// Takes the tokens of the last append off the fixed lengths.
void KVCache::shorten_fixed() noexcept {
  if (fixed_lengths_.is_cpu()) {  // must not allocate: memory may have run out
    auto* lengths = fixed_lengths_.mutable_data_ptr<int64_t>();
    const auto* counts = last_counts_.defined() ? last_counts_.const_data_ptr<int64_t>() : nullptr;
    for (int64_t b = 0; b < options_.batch(); ++b) lengths[b] -= counts ? counts[b] : last_count_;
    return;
  }
  try {
    const at::NoGradGuard no_grad;
    last_counts_.defined() ? fixed_lengths_.sub_(last_counts_) : fixed_lengths_.sub_(last_count_);
  } catch (...) {
    return;  // the device has failed, and the cache with it
  }
}

/// For LongRopeScaling, which rotates by other factors beyond the length `border`. Checks that the
/// keys of `count`, or counts[b], more tokens are rotated by the same factors as the cached keys,
/// and keeps the new lengths. Nothing has to be undone if the tokens are not appended: for an
/// empty sequence the kept length is ignored.
void KVCache::rotate_for(const char* function, int64_t count, at::IntArrayRef counts,
                         int64_t border) {
  detail::check_counts(counts, options_.batch(), count);
  const bool fixed = options_.fixed_shapes();
  if (fixed && !options_.device().is_cpu()) {
    const auto more = counts.empty() ? at::full_like(fixed_lengths_, count)
                                     : detail::to_device(counts.vec(), options_.device());
    const auto length = fixed_lengths_ + more, &before = fixed_lengths_, &kept = fixed_rotated_for_;
    const auto same = at::maximum(before, kept).gt(border).eq(length.gt(border));
    at::_assert_async(same.logical_or(before.eq(0)).logical_or(more.eq(0)).all());
    kept.copy_(at::where(before.eq(0), length, at::maximum(kept, length)));  // for a CUDA graph
    return;
  }
  const auto before = lengths();
  auto kept = fixed ? detail::to_host(fixed_rotated_for_) : rotated_for_;
  for (int64_t b = 0; b < options_.batch(); ++b) {
    const auto more = counts.empty() ? count : counts[b];
    kept[b] =
        detail::rotated_length(function, {b, before[b], more, before[b] + more}, kept[b], border);
  }
  if (fixed) fixed_rotated_for_.copy_(detail::to_device(kept, options_.device()));
  rotated_for_ = std::move(kept);
}

at::Tensor KVCache::keys() const { return first_rows(stored_heads_[0], stored()); }

at::Tensor KVCache::values() const { return first_rows(stored_heads_[1], stored()); }

at::Tensor KVCache::key_scales() const {
  return detail::is_quantized(options_.dtype()) ? first_rows(stored_heads_[2], stored()).squeeze(3)
                                                : at::Tensor();
}

at::Tensor KVCache::value_scales() const {
  if (!detail::is_quantized(options_.dtype()) || options_.value_head_dim() == 0)
    return key_scales();
  return first_rows(stored_heads_[3], stored()).squeeze(3);
}

std::vector<int64_t> KVCache::lengths() const {
  if (options_.fixed_shapes()) return detail::to_host(fixed_lengths_);
  auto lengths = stored_;
  for (size_t b = 0; b < lengths.size(); ++b) lengths[b] += dropped_[b];
  return lengths;
}

at::Tensor KVCache::key_lengths() const {
  return options_.fixed_shapes() ? fixed_lengths_ : detail::to_device(stored_, options_.device());
}

at::Tensor KVCache::query_lengths() const {
  if (options_.fixed_shapes()) return last_counts_;
  const bool all = detail::all_equal(appended_) && appended_[0] == last_count_;
  return all ? at::Tensor() : detail::to_device(appended_, options_.device());
}

bool KVCache::has_equal_lengths() const {
  return !options_.fixed_shapes() && detail::all_equal(stored_) && detail::all_equal(appended_) &&
         appended_[0] == last_count_;
}

at::Tensor KVCache::next_positions(int64_t count) const {
  detail::check_not_negative("KVCache::next_positions", "count", count);
  detail::check_memory("KVCache::next_positions", "positions", {options_.batch(), count},
                       at::kLong);
  const auto device = options_.device();
  if (options_.fixed_shapes()) return fixed_lengths_.unsqueeze(1) + steps(count, device);
  const auto first = lengths();
  if (detail::all_equal(first)) return steps(count, device) + first[0];
  return detail::to_device(first, device).unsqueeze(1) + steps(count, device);
}

/// The places among the stored keys of the tokens of the last append: [B, 1, n, 1].
at::Tensor KVCache::last_query_indices() const {
  const auto counts = query_lengths();
  const auto first = counts.defined() ? key_lengths() - counts : key_lengths() - last_count_;
  return first.view({-1, 1, 1, 1}) + steps(last_count_, options_.device()).view({1, 1, -1, 1});
}

/// The places of all stored keys: [1, 1, 1, S].
at::Tensor KVCache::key_indices() const {
  return steps(stored(), options_.device()).view({1, 1, 1, -1});
}

at::Tensor KVCache::distances() const { return (last_query_indices() - key_indices()).abs(); }

at::Tensor KVCache::mask(std::optional<int64_t> window) const {
  if (has_equal_lengths()) return {};
  const auto query = last_query_indices(), key = key_indices();
  if (window) detail::check_positive("KVCache::mask", "window", *window);
  auto mask = (key <= query).logical_and(key < key_lengths().view({-1, 1, 1, 1}));
  if (window) mask = mask.logical_and(key > query - *window);
  return mask;
}

void KVCache::reset() {
  const auto batch = static_cast<size_t>(options_.batch());
  if (fixed_lengths_.defined()) fixed_lengths_.zero_();
  stored_.assign(batch, 0);
  dropped_.assign(batch, 0);
  forget_last_append();
}

/// Makes the last append one without tokens: `mask` and `distances` have no queries then.
void KVCache::forget_last_append() {
  appended_.assign(stored_.size(), 0);
  last_counts_.reset();
  last_count_ = 0;
}

void KVCache::check_truncated(size_t b, int64_t length) const {
  detail::check_not_negative(kTruncate, "length", length);
  if (length >= dropped_[b] + stored_[b]) return;
  detail::check_keys_left(kTruncate, options_.window(), length, dropped_[b]);
}

void KVCache::cut(size_t b, int64_t length) {
  if (length >= dropped_[b] + stored_[b]) return;
  stored_[b] = std::max<int64_t>(length - dropped_[b], 0);
  dropped_[b] = std::min(dropped_[b], length);
}

void KVCache::truncate(int64_t length) {
  for (size_t b = 0; b < stored_.size(); ++b) check_truncated(b, length);
  if (fixed_lengths_.defined()) fixed_lengths_.clamp_max_(length);
  for (size_t b = 0; b < stored_.size(); ++b) cut(b, length);
  forget_last_append();
}

void KVCache::truncate(int64_t sequence, int64_t length) {
  HEED_CHECK(sequence >= 0 && sequence < options_.batch(),
             "{}: sequence ({}) must be at least 0 and below batch ({})", kTruncate, sequence,
             options_.batch());
  const auto b = static_cast<size_t>(sequence);
  check_truncated(b, length);
  if (fixed_lengths_.defined()) fixed_lengths_[sequence].clamp_max_(length);
  cut(b, length);
  forget_last_append();
}

void KVCache::reorder(const at::Tensor& indices) {
  constexpr auto kName = "KVCache::reorder";
  HEED_CHECK(indices.defined() && indices.scalar_type() == at::kLong && indices.dim() == 1 &&
                 indices.size(0) == options_.batch(),
             "{}: indices must be int64 [{}]", kName, options_.batch());
  std::vector<int64_t>* const of_sequences[] = {&stored_, &dropped_, &appended_, &rotated_for_};
  const bool differ = !std::all_of(std::begin(of_sequences), std::end(of_sequences),
                                   [](const auto* own) { return detail::all_equal(*own); });
  std::vector<int64_t> from;
  if (indices.is_cpu() || differ) {
    from = detail::to_host(indices);
    check_indices(kName, from);
  }
  const at::NoGradGuard no_grad;
  const auto device = options_.device();
  const auto on_device = detail::to_device(indices, device);
  const auto reordered = [&](const at::Tensor& tensor) {
    return tensor.index_select(0, on_device);
  };
  // Everything that may throw comes before the first copy.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // (destination, source)
  for (const auto& heads : stored_heads_) {
    const auto used = heads.narrow(2, 0, stored());
    copies.emplace_back(used, reordered(used));
  }
  if (fixed_lengths_.defined()) {
    copies.emplace_back(fixed_lengths_, reordered(fixed_lengths_));
    copies.emplace_back(fixed_rotated_for_, reordered(fixed_rotated_for_));
  }
  auto last_counts = last_counts_.defined() ? reordered(last_counts_) : last_counts_;
  std::vector<std::vector<int64_t>> numbers;  // of_sequences, reordered
  for (const auto* own : of_sequences) {
    numbers.push_back(*own);
    for (size_t b = 0; differ && b < from.size(); ++b) numbers.back()[b] = (*own)[from[b]];
  }
  for (const auto& [to, copied] : copies) to.copy_(copied);
  last_counts_ = std::move(last_counts);
  for (size_t i = 0; i < numbers.size(); ++i) *of_sequences[i] = std::move(numbers[i]);
}

void KVCache::grow(int64_t capacity) {
  HEED_CHECK(capacity >= options_.capacity(),
             "KVCache::grow: capacity ({}) must be at least the present one ({})", capacity,
             options_.capacity());
  auto options = options_;
  options.capacity(capacity);
  auto grown = allocate(options);
  for (size_t i = 0; i < grown.size(); ++i) {
    grown[i].narrow(2, 0, stored()).copy_(stored_heads_[i].narrow(2, 0, stored()));
  }
  options_ = options;
  stored_heads_ = std::move(grown);
}

}  // namespace heed
