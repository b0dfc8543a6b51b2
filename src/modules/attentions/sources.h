// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace heed::detail {

/// The inputs of a call's projections, query [B, L, E], key and value [B, S, ...], and which of
/// them are one tensor. This is found at the beginning of the call.
struct Sources {
  at::Tensor query, key, value;
  bool key_is_query, value_is_query, value_is_key;

  static Sources of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
    return {query, key, value, key.is_same(query), value.is_same(query), value.is_same(key)};
  }

  /// The inputs of self-attention.
  static Sources self(const at::Tensor& x) { return {x, x, x, true, true, true}; }

  /// Whether the call is self-attention: all three are one tensor.
  bool is_self() const { return key_is_query && value_is_key; }

  /// Other tensors, which were made of these and coincide as these do.
  Sources with(at::Tensor new_query, at::Tensor new_key, at::Tensor new_value) const {
    return {std::move(new_query), std::move(new_key), std::move(new_value),
            key_is_query,         value_is_query,     value_is_key};
  }
};

}  // namespace heed::detail
