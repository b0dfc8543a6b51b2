#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <vector>

/// LibTorch's operators for CUDA, called by the names of their arguments. Their schemas differ
/// between versions of LibTorch, so a schema is read where the operator is called.

namespace heed::detail {

using NamedValues = std::vector<std::pair<std::string, c10::IValue>>;

/// The arguments of an operator in their order: the given ones, and the defaults of the others. An
/// argument that other versions of LibTorch name otherwise is given by the newest name.
/// Throws c10::Error for an argument that is not given and has no default, and for a given one,
/// other than None, that the schema lacks.
std::vector<c10::IValue> arguments_of(const c10::FunctionSchema& schema, NamedValues given);

/// Whether LibTorch has a CUDA kernel of this operator, such as "aten::_flash_attention_forward".
bool has_cuda_kernel(const char* name);

/// Whether the operator has a result of this name.
bool returns(const char* name, const char* result);

/// Calls the operator. Throws c10::Error where there is none, and what the operator throws.
std::vector<c10::IValue> call_operator(const char* name, NamedValues given);

}  // namespace heed::detail
