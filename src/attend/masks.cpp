// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <heed/masks.h>

#include <algorithm>

#include "core/attend_checks.h"
#include "core/check_memory.h"
#include "core/checks.h"
#include "core/floating_mask.h"

namespace heed {

namespace {

using detail::FloatingMask;

void check_lengths(const char* function, int64_t query_length, int64_t key_length) {
  detail::check_not_negative(function, "query_length", query_length);
  detail::check_not_negative(function, "key_length", key_length);
  detail::check_memory(function, "positions",
                       {std::max<int64_t>(query_length, 1), std::max<int64_t>(key_length, 1)},
                       at::kLong);
}

/// Checks lengths on the CPU. On other devices they are not checked, because reading them would
/// wait for the device.
void check_values(const at::Tensor& lengths, int64_t key_length) {
  if (!lengths.is_cpu() || lengths.numel() == 0) return;
  const auto [least, most] = at::aminmax(lengths);
  HEED_CHECK(least.item<int64_t>() >= 0 && most.item<int64_t>() <= key_length,
             "padding_mask: lengths ({} to {}) must be at least 0 and at most key_length ({})",
             least.item<int64_t>(), most.item<int64_t>(), key_length);
}

/// Key position minus query position, int64 [L, S], with the first query at key `offset`.
at::Tensor relative_positions(int64_t query_length, int64_t key_length, int64_t offset,
                              at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const auto queries = at::arange(offset, offset + query_length, options).unsqueeze(1);
  return at::arange(key_length, options) - queries;
}

}  // namespace

at::Tensor causal_mask(int64_t query_length, int64_t key_length, at::Device device) {
  check_lengths("causal_mask", query_length, key_length);
  return causal_mask(query_length, key_length, key_length - query_length, device);
}

at::Tensor causal_mask(int64_t query_length, int64_t key_length, int64_t offset,
                       at::Device device) {
  check_lengths("causal_mask", query_length, key_length);
  offset = std::clamp(offset, -query_length, key_length);  // beyond these, all or nothing is seen
  return relative_positions(query_length, key_length, offset, device).le(0);
}

at::Tensor window_mask(int64_t query_length, int64_t key_length, int64_t window, bool causal,
                       at::Device device) {
  detail::check_positive("window_mask", "window", window);
  check_lengths("window_mask", query_length, key_length);
  const auto relative =
      relative_positions(query_length, key_length, key_length - query_length, device);
  const auto recent = relative.gt(-window);
  return recent.bitwise_and(causal ? relative.le(0) : relative.lt(window));
}

at::Tensor padding_mask(const at::Tensor& lengths, int64_t key_length) {
  detail::check_defined("padding_mask", "lengths", lengths);
  detail::check_integer("padding_mask", "lengths", lengths);
  detail::check_rank("padding_mask", "lengths", lengths, 1);
  detail::check_not_negative("padding_mask", "key_length", key_length);
  detail::check_memory("padding_mask", "positions",
                       {std::max<int64_t>(lengths.size(0), 1), key_length}, at::kLong);
  check_values(lengths, key_length);
  const auto positions = at::arange(key_length, lengths.options().dtype(at::kLong));
  return positions.lt(lengths.unsqueeze(1)).unsqueeze(1).unsqueeze(1);
}

at::Tensor key_padding_mask(const at::Tensor& keys) {
  detail::check_mask_dtype("key_padding_mask", "keys", keys, /*takes_bias=*/false);
  detail::check_rank("key_padding_mask", "keys", keys, 2);
  return keys.ne(0).unsqueeze(1).unsqueeze(1);
}

at::Tensor document_mask(const at::Tensor& ids) {
  detail::check_defined("document_mask", "ids", ids);
  detail::check_integer("document_mask", "ids", ids);
  HEED_CHECK(ids.dim() == 1 || ids.dim() == 2,
             "document_mask: ids rank ({}) must be 1 or 2; ids {}", ids.dim(), detail::shape(ids));
  const auto same = ids.unsqueeze(-1).eq(ids.unsqueeze(-2));
  return ids.dim() == 2 ? same.unsqueeze(1) : same;
}

at::Tensor from_hidden(const at::Tensor& hidden) {
  detail::check_defined("from_hidden", "hidden", hidden);
  if (at::isFloatingType(hidden.scalar_type())) {
    const auto kind = detail::read_floating_mask(hidden);
    HEED_CHECK(kind == FloatingMask::zeros || kind == FloatingMask::zeros_and_ones,
               "from_hidden: floating hidden must hold 0 and 1 only{}",
               detail::advice_on(kind, "hidden", /*takes_bias=*/true));
  } else {
    detail::check_mask_dtype("from_hidden", "hidden", hidden, /*takes_bias=*/false);
  }
  return hidden.eq(0);
}

at::Tensor mask_from_additive(const at::Tensor& mask) {
  detail::check_defined("mask_from_additive", "mask", mask);
  detail::check_floating("mask_from_additive", "mask", mask);
  const auto kind = detail::read_floating_mask(mask);
  HEED_CHECK(kind == FloatingMask::zeros || kind == FloatingMask::additive,
             "mask_from_additive: mask must hold 0 and -inf or the least number only{}",
             detail::advice_on(kind, "mask", /*takes_bias=*/true));
  return mask.eq(0);
}

at::Tensor combine_masks(at::TensorList masks) {
  HEED_CHECK(!masks.empty(), "combine_masks: masks must hold at least 1 mask");
  at::Tensor combined;
  for (size_t i = 0; i < masks.size(); ++i) {
    detail::check_mask_dtype("combine_masks", fmt::format("masks[{}]", i).c_str(), masks[i],
                             /*takes_bias=*/false);
    HEED_CHECK(masks[i].dim() >= 2 && masks[i].dim() <= 4,
               "combine_masks: masks[{}] rank ({}) must be 2 [L, S], 3 [B, L, S] or 4 [B, H, L, S]",
               i, masks[i].dim());
    const auto next = masks[i].dim() == 3 ? masks[i].ne(0).unsqueeze(1) : masks[i].ne(0);
    if (!combined.defined()) {
      combined = next;
      continue;
    }
    HEED_CHECK(at::are_expandable(combined.sizes(), next.sizes()),
               "combine_masks: masks[{}] {} must broadcast with those before it {}", i,
               detail::shape(masks[i]), detail::shape(combined));
    combined = combined.logical_and(next);
  }
  return combined;
}

}  // namespace heed
