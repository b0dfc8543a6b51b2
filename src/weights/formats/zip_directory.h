#pragma once

#include "weights/formats/bytes.h"

namespace heed::detail {

/// Checks what a zip archive's directory says of its records, before LibTorch's reader, which
/// allocates what a record claims to need, opens it. Throws c10::ValueError.
void check_zip_directory(const Bytes& bytes, size_t most_memory);

}  // namespace heed::detail
