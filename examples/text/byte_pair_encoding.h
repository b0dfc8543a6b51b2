#pragma once

#include <memory>

#include "model.h"

namespace heed::examples::text {

/// Byte-pair encoding: two neighboring tokens of a word merge into one, the pair that was learned
/// first before all others, until no pair is left that was learned (Sennrich et al. 2016,
/// arXiv:1508.07909).
std::unique_ptr<Model> read_byte_pair_encoding(const Json& model);

}  // namespace heed::examples::text
