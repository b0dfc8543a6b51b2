#pragma once

#include <heed/named_tensors.h>

#include <functional>
#include <string>
#include <string_view>

namespace heed::detail {

/// Passes the bytes of a safetensors file to `write`, in their order. `shapes` may be on the meta
/// device: `values` returns each tensor when it is written. Throws c10::ValueError when the format
/// has no such dtype or name.
void write_safetensors(const NamedTensors& shapes,
                       const std::function<at::Tensor(const std::string&)>& values,
                       const std::function<void(std::string_view)>& write);

}  // namespace heed::detail
