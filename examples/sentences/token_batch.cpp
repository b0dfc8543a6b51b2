#include "token_batch.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace heed::examples {

PaddedBatch pad(const std::vector<Tokens>& sentences) {
  Tokens lengths;
  for (const auto& tokens : sentences) lengths.push_back(static_cast<int64_t>(tokens.size()));
  const auto count = static_cast<int64_t>(sentences.size());
  const auto longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  // The padding may be any token, because nothing attends to it.
  auto ids = at::zeros({count, longest}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    ids[i].narrow(0, 0, lengths[i]).copy_(at::tensor(sentences[i]));
  }
  return {ids, at::tensor(lengths)};
}

}  // namespace heed::examples
