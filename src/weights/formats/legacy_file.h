// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include "weights/formats/file_entries.h"

namespace heed::detail {

/// Whether a file begins like one of torch.save before version 1.6: with a pickle of a magic
/// number.
bool is_legacy_file(std::string_view file);

/// Reads what torch.save wrote before version 1.6, and writes with
/// _use_new_zipfile_serialization=False: pickles of a magic number, a protocol, the machine's
/// types, an object and the keys of its storages, then each storage behind its int64 element count.
/// `key` is the dotted path to the weights in a checkpoint's dicts, or empty.
FileEntries read_legacy_file(const Bytes& bytes, const std::string& key);

}  // namespace heed::detail
