// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace heed::detail {

/// The dtype with this name in a header, if LibTorch has it.
std::optional<at::ScalarType> safetensors_dtype(std::string_view name);

/// The name of the dtype in a header, if the format has it.
std::optional<std::string_view> safetensors_name(at::ScalarType dtype);

}  // namespace heed::detail
