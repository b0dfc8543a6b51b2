// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string_view>

namespace heed::detail {

/// Whether an error says that memory has run out, and nothing about what was computed or read.
inline bool is_lack_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  // LibTorch's allocator for the CPU throws an error that only its words tell from others.
  const auto* plain = dynamic_cast<const c10::Error*>(&error);
  return plain != nullptr &&
         std::string_view(plain->what_without_backtrace()).find("DefaultCPUAllocator: ") !=
             std::string_view::npos;
}

}  // namespace heed::detail
