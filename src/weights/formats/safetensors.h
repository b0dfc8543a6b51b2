#pragma once

#include <heed/named_tensors.h>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// Whether a file begins like a safetensors file: the header's size, then JSON.
bool is_safetensors(std::string_view file);

/// The tensors of a safetensors file; their values are not read yet.
/// github.com/huggingface/safetensors, "Format".
NamedTensors read_safetensors(const Bytes& bytes);

}  // namespace heed::detail
