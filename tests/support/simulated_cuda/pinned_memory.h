// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>

/// Memory of the host that the device can copy from while the host goes on.

namespace heed::test {

c10::Allocator& pinned_allocator();
bool is_pinned(const void* data);

}  // namespace heed::test
