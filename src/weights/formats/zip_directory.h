#pragma once

#include "weights/formats/bytes.h"

namespace heed::detail {

/// Checks the records in a zip archive's directory. Call it before LibTorch's reader, which
/// allocates as much memory as a record claims to need. Throws c10::ValueError.
void check_zip_directory(const Bytes& bytes, size_t most_memory);

}  // namespace heed::detail
