#pragma once

#include <heed/export.h>

#include <cstdint>

namespace heed::detail {

/// Draws the key of one call's dropout, from which all of its random numbers follow. LibTorch's
/// generator for the CPU gives it, so torch::manual_seed controls it. Without dropout it is 0.
HEED_API uint64_t draw_dropout_key(double dropout);

}  // namespace heed::detail
