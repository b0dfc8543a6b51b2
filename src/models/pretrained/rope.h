// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/rotary_embedding.h>

#include <cstdint>
#include <optional>

#include "models/pretrained/config.h"

namespace heed::detail {

/// A family's own names of the fields of rotary embeddings that newer files have in
/// rope_parameters, and their values where a file leaves them out.
struct RopeFields {
  const char* theta_name = "rope_theta";
  double theta = 10000.0;
  const char* partial_name = "partial_rotary_factor";
  double partial = 1.0;
  bool may_be_partial = false;  // otherwise the family rotates whole heads
  std::optional<int64_t> original_length = std::nullopt;
  bool only_longrope = false;  // su and yarn are older names of it
  RotaryPairing pairing = RotaryPairing::half_split;
  // The scaling where a file describes none; an explicit type "default" means none.
  std::optional<RotaryScaling> scaling = std::nullopt;
};

/// The rotary embedding of heads of `head_dim` elements, by rope_parameters or by the fields of
/// older files. `max_length` is max_position_embeddings.
RotaryEmbeddingOptions read_rope(const Config& config, int64_t head_dim, int64_t max_length,
                                 const RopeFields& fields);

/// The rotary embeddings of layers with full attention and with a window.
struct RopesByLayer {
  RotaryEmbeddingOptions full, sliding;
};

/// The bases of two rotary embeddings, for full attention and with a window: their names in older
/// files, and their values where a file leaves them out.
struct RopesFields {
  const char* full_name;
  double full;
  const char* sliding_name;
  double sliding;
  bool scaling_is_of_both;  // otherwise rope_scaling is for full attention alone
};

RopesByLayer read_ropes(const Config& config, int64_t head_dim, int64_t max_length,
                        const RopesFields& fields);

}  // namespace heed::detail
