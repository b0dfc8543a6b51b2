// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/decoder.h>
#include <heed/encoder_decoder.h>
#include <heed/transformer.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace heed {

/// How many parameters a model has and what its forward pass costs, part by part. Multiply-adds are
/// those of the matrix products and ignore masks. A number that does not fit into int64 is given as
/// the largest int64.
///
/// @code
/// std::cout << heed::model_cost(*model, /*batch=*/1, /*length=*/1024);
/// @endcode
struct HEED_API ModelCost {
  /// All modules of one kind.
  struct HEED_API Part {
    std::string name;             ///< "attention"
    int64_t count = 0;            ///< how many of them the model has
    int64_t parameters = 0;       ///< elements of all their weights and biases
    int64_t parameter_bytes = 0;  ///< the memory of these; of packed weights, as they are packed
    int64_t macs = 0;             ///< multiply-adds of all of them
    int64_t kv_cache_bytes = 0;   ///< keys and values of the tokens, in the weights' dtype
  };
  /// The parts in the order of the forward pass, and their sum at the end.
  std::vector<Part> parts;
  /// The sum of all parts.
  const Part& total() const { return parts.back(); }
};

/// Prints a table with one row for each part.
HEED_API std::ostream& operator<<(std::ostream& stream, const ModelCost& cost);

/// Returns the cost of one forward pass with batch size B and length L; with cross-attention, over
/// a memory of length memory_length. Parameters that parts share are counted once. Throws
/// c10::ValueError when a size is negative.
/// @{
HEED_API ModelCost model_cost(const EncoderImpl& model, int64_t batch, int64_t length,
                              int64_t memory_length = 0);
HEED_API ModelCost model_cost(const DecoderImpl& model, int64_t batch, int64_t length,
                              int64_t memory_length = 0);
/// @}

/// Returns the cost of one forward pass with batch size B, sources of S tokens or frames, and
/// targets of L tokens. The encoder's parts have names of their own, "encoder attention", and no
/// cache. Throws c10::ValueError when a size is negative.
HEED_API ModelCost model_cost(const EncoderDecoderImpl& model, int64_t batch, int64_t source_length,
                              int64_t length);

}  // namespace heed
