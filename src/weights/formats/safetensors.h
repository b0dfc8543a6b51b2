// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "weights/formats/bytes.h"
#include "weights/formats/file_entries.h"

namespace heed::detail {

/// In a file's metadata, the name of a packed weight stands after this, and its description is the
/// value: FileEntries::packed.
inline constexpr std::string_view kPackedKey = "heed.packed:";

/// Whether a file begins like a safetensors file: the header's size, then JSON.
bool is_safetensors(std::string_view file);

/// The tensors of a safetensors file; their values are not read yet.
/// github.com/huggingface/safetensors, "Format".
FileEntries read_safetensors(const Bytes& bytes);

}  // namespace heed::detail
