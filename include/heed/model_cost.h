#pragma once

#include <heed/decoder.h>
#include <heed/transformer.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace heed {

/// How many parameters a model has and what its forward pass costs, part by part. Multiply-adds are
/// those of matrix products, without regard to a mask. A figure beyond int64 is the largest int64.
///
/// @code
/// std::cout << heed::model_cost(*model, /*batch=*/1, /*length=*/1024);
/// @endcode
struct HEED_API ModelCost {
  /// All modules of one kind.
  struct HEED_API Part {
    std::string name;            ///< "attention"
    int64_t count = 0;           ///< how many the model has
    int64_t parameters = 0;      ///< elements of all their weights and biases
    int64_t macs = 0;            ///< multiply-adds of all of them
    int64_t kv_cache_bytes = 0;  ///< keys and values of the tokens, in the weights' dtype
  };
  /// In the order of the forward pass, the sum at the end.
  std::vector<Part> parts;
  /// The sum of all parts.
  const Part& total() const { return parts.back(); }
};

/// A table with one row a part.
HEED_API std::ostream& operator<<(std::ostream& stream, const ModelCost& cost);

/// Cost of one forward pass over batch B and length L; with cross-attention, over a memory of
/// length memory_length. Parameters that parts share are counted once.
/// Throws c10::ValueError when a size is negative.
/// @{
HEED_API ModelCost model_cost(const EncoderImpl& model, int64_t batch, int64_t length,
                              int64_t memory_length = 0);
HEED_API ModelCost model_cost(const DecoderImpl& model, int64_t batch, int64_t length,
                              int64_t memory_length = 0);
/// @}

}  // namespace heed
