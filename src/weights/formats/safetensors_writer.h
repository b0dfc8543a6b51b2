#pragma once

#include <heed/named_tensors.h>

#include <functional>
#include <string_view>

namespace heed::detail {

/// Passes the bytes of a safetensors file to `write`, in their order. At most one tensor at a time
/// is copied. Throws c10::ValueError when the format has no such dtype or name.
void write_safetensors(const NamedTensors& tensors,
                       const std::function<void(std::string_view)>& write);

}  // namespace heed::detail
