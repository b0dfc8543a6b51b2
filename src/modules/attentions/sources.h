#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// The inputs of a call's projections, query [B, L, E], key and value [B, S, ...], and which of
/// them are one tensor. This is found at the beginning of the call.
struct Sources {
  Sources(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value)
      : query(query),
        key(key),
        value(value),
        key_is_query(key.is_same(query)),
        value_is_query(value.is_same(query)),
        value_is_key(value.is_same(key)) {}

  /// The inputs of self-attention.
  explicit Sources(const at::Tensor& x) : query(x), key(x), value(x) {}

  /// Whether the call is self-attention: all three are one tensor.
  bool is_self() const { return key_is_query && value_is_key; }

  /// Other tensors, which were made of these and coincide as these do.
  Sources with(const at::Tensor& new_query, const at::Tensor& new_key,
               const at::Tensor& new_value) const {
    auto result = *this;
    result.query = new_query;
    result.key = new_key;
    result.value = new_value;
    return result;
  }

  at::Tensor query, key, value;
  bool key_is_query = true, value_is_query = true, value_is_key = true;
};

}  // namespace heed::detail
