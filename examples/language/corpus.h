// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "codec.h"

namespace heed::examples {

/// A text from one or more files.
struct Corpus {
  std::vector<std::string> training;  ///< the first nine tenths of each file
  std::vector<std::string> held_out;  ///< the last tenth of each file
};

/// Reads a file, or the files below a folder in the order of their names; hidden and binary files
/// are left out. No character is cut in two. Throws std::runtime_error when there is no text.
Corpus read_corpus(const std::string& path);

/// Reads heed's own sources from `folder`.
Corpus read_own_sources(const std::string& folder);

/// The texts one after the other.
std::string joined(const std::vector<std::string>& texts);

/// A corpus as tokens, one text after the other.
struct TokenCorpus {
  at::Tensor training, held_out;  ///< [N], of the narrowest dtype that holds the tokens
  int64_t files = 0;
};

/// Throws std::runtime_error when a text cannot be encoded.
TokenCorpus encode(const Corpus& corpus, const Codec& codec);

/// A number that differs between different texts.
uint64_t fingerprint(const TokenCorpus& corpus);

}  // namespace heed::examples
