#pragma once

#include <cstdint>
#include <string>

namespace heed::examples {

/// A text from one or more files. Its tokens are its bytes.
struct Corpus {
  std::string training;  ///< the first nine tenths of every file
  std::string held_out;  ///< the last tenth of every file
  int64_t files = 0;
};

/// Reads a file, or the files below a folder in the order of their names; hidden and binary files
/// are left out. Throws std::runtime_error when there is no text.
Corpus read_corpus(const std::string& path);

/// Reads heed's own sources from `folder`.
Corpus read_own_sources(const std::string& folder);

/// A number that differs between different texts.
uint64_t fingerprint(const Corpus& corpus);

}  // namespace heed::examples
