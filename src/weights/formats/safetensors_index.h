#pragma once

#include <heed/named_tensors.h>

#include <functional>
#include <string>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// Whether a file begins as JSON does.
bool is_safetensors_index(std::string_view file);

/// The tensors of a model in several safetensors files, of which the index says which tensor is
/// where: {"weight_map": {"fc_q.weight": "model-00001-of-00002.safetensors", ...}}. `open` gives
/// the bytes of the file of that name, which is never a path.
NamedTensors read_safetensors_index(const Bytes& index,
                                    const std::function<Bytes(const std::string&)>& open);

}  // namespace heed::detail
