#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <heed/kv_cache.h>

#include <algorithm>
#include <utility>

#include "core/checks.h"
#include "core/offsets.h"

namespace heed {

namespace {

constexpr auto kAppend = "KVCache::append";

void check_options(const KVCacheOptions& options) {
  constexpr auto kName = "KVCache";
  detail::check_positive(kName, "batch", options.batch());
  detail::check_positive(kName, "groups", options.groups());
  detail::check_positive(kName, "capacity", options.capacity());
  detail::check_positive(kName, "head_dim", options.head_dim());
  if (options.value_head_dim()) {
    HEED_CHECK(*options.value_head_dim() >= 0, "{}: value_head_dim ({}) must be at least 0", kName,
               *options.value_head_dim());
  }
  if (const auto window = options.window()) {
    detail::check_positive(kName, "window", *window);
    HEED_CHECK(options.capacity() >= *window, "{}: capacity ({}) must be at least window ({})",
               kName, options.capacity(), *window);
  }
  HEED_CHECK(at::isFloatingType(options.dtype()), "{}: dtype ({}) must be floating", kName,
             c10::toString(options.dtype()));
}

/// Zeros: what a sequence does not have yet is hidden by a mask, but 0 times NaN would show. Never
/// inference tensors, which could be written to under InferenceMode alone.
at::Tensor allocate(const KVCacheOptions& options, int64_t head_dim) {
  const c10::InferenceMode off(false);
  return at::zeros({options.batch(), options.groups(), options.capacity(), head_dim},
                   at::device(options.device()).dtype(options.dtype()));
}

/// `tensor` must fit into `cache` but for its length.
void check_appended(const char* name, const at::Tensor& tensor, const at::Tensor& cache) {
  HEED_CHECK(tensor.defined(), "{}: {} must be defined", kAppend, name);
  HEED_CHECK(tensor.dim() == 4, "{}: {} rank ({}) must equal 4; {} {}", kAppend, name, tensor.dim(),
             name, detail::shape(tensor));
  for (const int64_t dim : {0, 1, 3}) {
    detail::check_same_dim(kAppend, name, tensor, "cache", cache, dim);
  }
  HEED_CHECK(tensor.scalar_type() == cache.scalar_type(),
             "{}: {} dtype ({}) must equal cache dtype ({})", kAppend, name,
             c10::toString(tensor.scalar_type()), c10::toString(cache.scalar_type()));
  HEED_CHECK(tensor.device() == cache.device(), "{}: {} device ({}) must equal cache device ({})",
             kAppend, name, tensor.device().str(), cache.device().str());
  HEED_CHECK(!(at::GradMode::is_enabled() && tensor.requires_grad()),
             "{}: {} must not require grad: a cache holds no gradients; use torch::NoGradGuard",
             kAppend, name);
}

void check_counts(at::IntArrayRef counts, int64_t batch, int64_t appended) {
  HEED_CHECK(counts.empty() || static_cast<int64_t>(counts.size()) == batch,
             "{}: counts size ({}) must equal batch ({})", kAppend, counts.size(), batch);
  for (size_t b = 0; b < counts.size(); ++b) {
    HEED_CHECK(counts[b] >= 0 && counts[b] <= appended,
               "{}: counts[{}] ({}) must be at least 0 and at most key dim 2 ({})", kAppend, b,
               counts[b], appended);
  }
}

int64_t largest(const std::vector<int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

/// [B, 1, 1, 1]: a number for each sequence.
at::Tensor column(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device).view({-1, 1, 1, 1});
}

}  // namespace

KVCache::KVCache(const KVCacheOptions& options) : options_(options) {
  check_options(options);
  keys_ = allocate(options, options.head_dim());
  values_ = allocate(options, options.value_head_dim().value_or(options.head_dim()));
  reset();
}

KVCache KVCache::clone() const {
  KVCache copy(options_);
  copy.keys_.copy_(keys_);
  copy.values_.copy_(values_);
  copy.stored_ = stored_;
  copy.dropped_ = dropped_;
  copy.appended_ = appended_;
  copy.last_count_ = last_count_;
  return copy;
}

int64_t KVCache::stored() const { return largest(stored_); }

/// How many keys of sequence b the next query may see.
int64_t KVCache::needed(int64_t b) const {
  const auto window = options_.window();
  return window ? std::min(stored_[b], *window - 1) : stored_[b];
}

/// Moves the keys that the next query's window holds to the front, where `count` more do not fit.
void KVCache::make_room(int64_t count) {
  const auto batch = options_.batch();
  for (int64_t b = 0; b < batch; ++b) {
    const auto kept = needed(b);
    const auto dropped = stored_[b] - kept;
    if (stored_[b] + count <= options_.capacity() || dropped == 0) continue;
    for (const auto& tensor : {keys_[b], values_[b]}) {
      const auto last = tensor.narrow(1, dropped, kept);
      tensor.narrow(1, 0, kept).copy_(dropped < kept ? last.clone() : last);
    }
    stored_[b] = kept;
    dropped_[b] += dropped;
  }
}

void KVCache::append(const at::Tensor& key, const at::Tensor& value, at::IntArrayRef counts) {
  check_appended("key", key, keys_);
  check_appended("value", value, values_);
  detail::check_same_dim(kAppend, "value", value, "key", key, 2);
  const auto batch = options_.batch();
  const auto count = key.size(2);
  check_counts(counts, batch, count);
  for (int64_t b = 0; b < batch; ++b) {
    const auto more = counts.empty() ? count : counts[b];
    HEED_CHECK(needed(b) + more <= options_.capacity(),
               "{}: {} ({}) must fit beside the {} keys that stay, within capacity ({}); see "
               "KVCache::grow",
               kAppend, counts.empty() ? "key dim 2" : fmt::format("counts[{}]", b), more,
               needed(b), options_.capacity());
  }

  const at::NoGradGuard no_grad;
  // Views of what is stored here must not change with it.
  const auto own = [&](const at::Tensor& tensor) {
    return tensor.is_alias_of(keys_) || tensor.is_alias_of(values_) ? tensor.clone() : tensor;
  };
  const auto new_keys = own(key), new_values = own(value);
  make_room(count);
  if (counts.empty() && detail::all_equal(stored_)) {
    keys_.narrow(2, stored_[0], count).copy_(new_keys);
    values_.narrow(2, stored_[0], count).copy_(new_values);
  } else {
    for (int64_t b = 0; b < batch; ++b) {
      const auto more = counts.empty() ? count : counts[b];
      keys_[b].narrow(1, stored_[b], more).copy_(new_keys[b].narrow(1, 0, more));
      values_[b].narrow(1, stored_[b], more).copy_(new_values[b].narrow(1, 0, more));
    }
  }
  for (int64_t b = 0; b < batch; ++b) {
    appended_[b] = counts.empty() ? count : counts[b];
    stored_[b] += appended_[b];
  }
  last_count_ = count;
}

at::Tensor KVCache::keys() const { return keys_.narrow(2, 0, stored()); }

at::Tensor KVCache::values() const { return values_.narrow(2, 0, stored()); }

std::vector<int64_t> KVCache::lengths() const {
  auto lengths = stored_;
  for (size_t b = 0; b < lengths.size(); ++b) lengths[b] += dropped_[b];
  return lengths;
}

at::Tensor KVCache::next_positions(int64_t count) const {
  HEED_CHECK(count >= 0, "KVCache::next_positions: count ({}) must be at least 0", count);
  const auto first = lengths();
  const auto steps = at::arange(count, at::device(options_.device()).dtype(at::kLong));
  if (detail::all_equal(first)) return steps + first[0];
  return column(first, options_.device()).view({-1, 1}) + steps;
}

/// Where among the stored keys the tokens of the last append stand: [B, 1, n, 1].
at::Tensor KVCache::last_query_indices() const {
  auto first = stored_;
  for (size_t b = 0; b < first.size(); ++b) first[b] -= appended_[b];
  const auto device = options_.device();
  return column(first, device) +
         at::arange(last_count_, at::device(device).dtype(at::kLong)).view({1, 1, -1, 1});
}

/// [1, 1, 1, S].
at::Tensor KVCache::key_indices() const {
  return at::arange(stored(), at::device(options_.device()).dtype(at::kLong)).view({1, 1, 1, -1});
}

at::Tensor KVCache::distances() const { return (last_query_indices() - key_indices()).abs(); }

at::Tensor KVCache::mask(std::optional<int64_t> window) const {
  if (detail::all_equal(stored_) && detail::all_equal(appended_) && appended_[0] == last_count_)
    return {};
  const auto query = last_query_indices(), key = key_indices();
  auto mask = (key <= query).logical_and(key < column(stored_, options_.device()));
  if (window) mask = mask.logical_and(key > query - *window);
  return mask;
}

void KVCache::reset() {
  const auto batch = static_cast<size_t>(options_.batch());
  stored_.assign(batch, 0);
  dropped_.assign(batch, 0);
  appended_.assign(batch, 0);
  last_count_ = 0;
}

void KVCache::truncate(int64_t length) {
  constexpr auto kName = "KVCache::truncate";
  HEED_CHECK(length >= 0, "{}: length ({}) must be at least 0", kName, length);
  const auto window = options_.window();
  for (size_t b = 0; b < stored_.size(); ++b) {
    if (length >= dropped_[b] + stored_[b]) continue;
    const auto oldest = window ? std::max<int64_t>(length - *window + 1, 0) : 0;
    HEED_CHECK(
        oldest >= dropped_[b] || oldest == length,
        "{}: length ({}) must leave the window ({}) its keys; those before {} have been evicted",
        kName, length, window.value_or(0), dropped_[b]);
  }
  for (size_t b = 0; b < stored_.size(); ++b) {
    if (length >= dropped_[b] + stored_[b]) continue;
    stored_[b] = std::max<int64_t>(length - dropped_[b], 0);
    dropped_[b] = std::min(dropped_[b], length);
  }
  appended_.assign(stored_.size(), 0);
  last_count_ = 0;
}

void KVCache::reorder(const at::Tensor& indices) {
  constexpr auto kName = "KVCache::reorder";
  HEED_CHECK(indices.defined() && indices.scalar_type() == at::kLong && indices.dim() == 1 &&
                 indices.size(0) == options_.batch(),
             "{}: indices must be int64 [{}]", kName, options_.batch());
  const auto host = indices.cpu();
  std::vector<int64_t> from(host.size(0));
  for (int64_t b = 0; b < host.size(0); ++b) {
    from[b] = host[b].item<int64_t>();
    HEED_CHECK(from[b] >= 0 && from[b] < options_.batch(),
               "{}: indices[{}] ({}) must be at least 0 and below batch ({})", kName, b, from[b],
               options_.batch());
  }
  const at::NoGradGuard no_grad;
  const auto on_device = indices.to(options_.device());
  keys().copy_(keys().index_select(0, on_device));
  values().copy_(values().index_select(0, on_device));
  for (auto* numbers : {&stored_, &dropped_, &appended_}) {
    const auto old = *numbers;
    for (size_t b = 0; b < from.size(); ++b) (*numbers)[b] = old[from[b]];
  }
}

void KVCache::grow(int64_t capacity) {
  HEED_CHECK(capacity >= options_.capacity(),
             "KVCache::grow: capacity ({}) must be at least the present one ({})", capacity,
             options_.capacity());
  auto options = options_;
  options.capacity(capacity);
  auto keys = allocate(options, keys_.size(3));
  auto values = allocate(options, values_.size(3));
  keys.narrow(2, 0, stored()).copy_(this->keys());
  values.narrow(2, 0, stored()).copy_(this->values());
  options_ = options;
  keys_ = std::move(keys);
  values_ = std::move(values);
}

}  // namespace heed
