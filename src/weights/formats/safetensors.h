#pragma once

#include <heed/named_tensors.h>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// Whether a file begins as a safetensors file does: the header's size, then JSON.
bool is_safetensors(std::string_view file);

/// The tensors of a safetensors file, their values unread.
/// github.com/huggingface/safetensors, "Format".
NamedTensors read_safetensors(const Bytes& bytes);

}  // namespace heed::detail
