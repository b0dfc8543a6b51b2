#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace heed::detail {

/// The dtype that a header calls this, if LibTorch has it.
std::optional<at::ScalarType> safetensors_dtype(std::string_view name);

/// What a header calls the dtype, if the format has it.
std::optional<std::string_view> safetensors_name(at::ScalarType dtype);

}  // namespace heed::detail
