#pragma once

#include "core/problem.h"

namespace heed::detail {

/// The same call with keys and values in the query's dtype, and not in pages.
Problem dequantized(Problem problem);

}  // namespace heed::detail
