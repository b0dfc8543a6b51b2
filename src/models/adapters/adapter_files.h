// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "weights/formats/bytes.h"

/// Names in a folder of PEFT's.

namespace heed::detail {

constexpr auto kAdapterConfig = "adapter_config.json";
constexpr auto kAdapterSafetensors = "adapter_model.safetensors";
constexpr auto kAdapterBin = "adapter_model.bin";
constexpr auto kAdapterPrefix = "base_model.model.";  // of all tensors

/// The module of a tensor: "fc_q" of "fc_q.weight"; empty for a tensor of the module itself.
inline std::string module_of(const std::string& tensor) {
  const auto dot = tensor.rfind('.');
  return dot == std::string::npos ? "" : tensor.substr(0, dot);
}

/// How a file spells names: some programs write "layers.0.attn" for "model.layers.0.attn".
class Spelling {
 public:
  /// One name as it is known, and as the file has it.
  Spelling(const std::string& known, const std::string& theirs) {
    size_t same = 0;
    const auto most = std::min(known.size(), theirs.size());
    while (same < most && known[known.size() - 1 - same] == theirs[theirs.size() - 1 - same]) {
      ++same;
    }
    known_ = known.substr(0, known.size() - same);
    theirs_ = theirs.substr(0, theirs.size() - same);
  }

  std::string of(const std::string& known) const {
    return begins_with(known, known_) ? theirs_ + known.substr(known_.size()) : known;
  }

 private:
  std::string known_, theirs_;  // the parts before what the two have in common
};

}  // namespace heed::detail
