#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace heed::examples {

/// Appends `text` to `window`, the part of a text that a model sees. If the context has no room
/// left, only the last half of it stays, which leaves room for as many new tokens. Returns whether
/// that happened: then the model must read the window again.
bool append_to_window(std::string& window, std::string_view text, int64_t context);

/// The tokens of a text, its bytes: int64 [1, L].
at::Tensor tokens_of(std::string_view text, at::Device device);

}  // namespace heed::examples
