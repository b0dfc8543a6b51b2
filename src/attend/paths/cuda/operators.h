// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <vector>

/// Calls LibTorch's operators for CUDA with named arguments. Their schemas differ between versions
/// of LibTorch, so a schema is read when its operator is called.

namespace heed::detail {

using NamedValues = std::vector<std::pair<std::string, c10::IValue>>;

/// The arguments of an operator in the order of its schema: the given ones, and defaults for the
/// others. If versions of LibTorch name an argument differently, it is given by its newest name.
/// Throws c10::Error for an argument that is not given and has no default, and for a given one,
/// other than None, that the schema lacks.
std::vector<c10::IValue> arguments_of(const c10::FunctionSchema& schema, NamedValues given);

/// Whether LibTorch has a CUDA kernel of this operator, such as "aten::_flash_attention_forward".
bool has_cuda_kernel(const char* name);

/// Whether the operator has a result of this name.
bool returns(const char* name, const char* result);

/// Calls the operator. Throws c10::Error if there is no such operator, and any error that it
/// throws.
std::vector<c10::IValue> call_operator(const char* name, NamedValues given);

}  // namespace heed::detail
