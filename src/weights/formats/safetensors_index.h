#pragma once

#include <functional>
#include <string>

#include "weights/formats/bytes.h"
#include "weights/formats/pytorch_file.h"

namespace heed::detail {

/// Whether a file begins like JSON.
bool is_safetensors_index(std::string_view file);

/// The tensors of a model in several safetensors files. The index says which file has which tensor:
/// {"weight_map": {"fc_q.weight": "model-00001-of-00002.safetensors", ...}}. `open` returns the
/// bytes of the file with this name, which is never a path.
FileEntries read_safetensors_index(const Bytes& index,
                                   const std::function<Bytes(const std::string&)>& open);

}  // namespace heed::detail
