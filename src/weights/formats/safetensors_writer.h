#pragma once

#include <heed/named_tensors.h>

#include <functional>
#include <string_view>

namespace heed::detail {

/// Gives `write` the bytes of a safetensors file, one after the other; of the tensors, no more than
/// one at a time is copied. Throws c10::ValueError when the format has no such dtype or name.
void write_safetensors(const NamedTensors& tensors,
                       const std::function<void(std::string_view)>& write);

}  // namespace heed::detail
