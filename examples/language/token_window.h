#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace heed::examples {

/// Appends `tokens` to `window`, the part of a text that a model sees. If the context has no room
/// left, only the last half of it stays, which leaves room for as many new tokens. Returns whether
/// that happened: then the model must read the window again.
bool append_to_window(std::vector<int64_t>& window, const std::vector<int64_t>& tokens,
                      int64_t context);

/// int64 [1, L].
at::Tensor to_tensor(const std::vector<int64_t>& tokens, at::Device device);

}  // namespace heed::examples
