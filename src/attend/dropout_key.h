#pragma once

#include <heed/export.h>

#include <cstdint>

namespace heed::detail {

/// What determines the random numbers of one call's dropout: one draw of LibTorch's generator, so
/// that torch::manual_seed controls it; 0 without dropout.
HEED_API uint64_t draw_dropout_key(double dropout);

}  // namespace heed::detail
