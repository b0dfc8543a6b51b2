// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "core/problem.h"

namespace heed::detail {

/// Converts quantized keys and values to the query's dtype, and copies them out of pages.
Problem dequantized(Problem problem);

}  // namespace heed::detail
