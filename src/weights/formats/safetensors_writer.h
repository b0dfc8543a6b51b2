// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/named_tensors.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace heed::detail {

/// Passes the bytes of a safetensors file to `write`, in their order. `shapes` may be on the meta
/// device: `values` returns each tensor when it is written. `metadata` is written too. Throws
/// c10::ValueError when the format has no such dtype or name.
void write_safetensors(const NamedTensors& shapes,
                       const std::function<at::Tensor(const std::string&)>& values,
                       const std::function<void(std::string_view)>& write,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace heed::detail
