// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <typeinfo>

#include "core/error.h"

namespace heed::detail {

/// Checks a module's input [B, L, E] by the weight that it is multiplied by: E must be the
/// weight's dim 1, and device and dtype must be equal as in check_module_dtype.
void check_input(const char* function, const char* name, const at::Tensor& input,
                 const at::Tensor& weight, const char* dim_name = "emb_dim");

/// Checks a module's input [..., E] in the same way.
void check_rows(const char* function, const char* name, const at::Tensor& input,
                const at::Tensor& weight, const char* dim_name = "emb_dim");

/// Throws where a module is cloned that is of a subclass of `Impl`.
template <typename Impl>
void check_no_subclass(const char* function, const Impl& module) {
  HEED_CHECK(typeid(module) == typeid(Impl),
             "{}: clone must not be called for a subclass: the copy would be a plain {}", function,
             function);
}

/// Checks that an input has the device of the module's weight and, without autocast, its dtype.
void check_module_dtype(const char* function, const char* name, const at::Tensor& input,
                        const at::Tensor& weight);

/// Checks indices [B, L] into the rows of `embeddings`: int64, below `limit`, on their device.
void check_indices(const char* function, const char* name, const at::Tensor& indices,
                   const at::Tensor& embeddings, const char* limit_name, int64_t limit);

/// Checks that numbers on the CPU are at least 0 and below `limit`. On other devices the kernel
/// that reads them checks it, because reading them here would wait for the device.
void check_range(const char* function, const char* name, const at::Tensor& numbers,
                 const char* limit_name, int64_t limit);

/// Checks positions of tokens: integers [L] or [B, L].
void check_positions(const char* function, const at::Tensor& positions);

/// Checks a module's query, key and value inputs: equal batch sizes, and equal lengths of key and
/// value.
void check_sources(const char* function, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value);

}  // namespace heed::detail
