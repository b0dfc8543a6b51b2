// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace heed::detail {

/// The dtype of a class of Python's storages, such as "torch.FloatStorage", if LibTorch has it.
std::optional<at::ScalarType> dtype_of_storage(std::string_view name);

/// The dtype that Python calls "torch.float32", if LibTorch has it.
std::optional<at::ScalarType> dtype_named(std::string_view name);

/// The dtype with this number in an exported program (torch/_export/serde/schema.py), if heed reads
/// it.
std::optional<at::ScalarType> dtype_numbered(int64_t number);

/// Python's name of a dtype, such as "torch.float32"; empty if heed does not read the dtype.
std::string_view pytorch_name(at::ScalarType dtype);

}  // namespace heed::detail
