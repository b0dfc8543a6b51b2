#include "sampling.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

namespace heed::examples {

int64_t sample(const at::Tensor& scores, const SamplingOptions& options) {
  if (options.greedy) return scores.argmax().item<int64_t>();
  const auto count = options.top_k > 0 ? std::min(options.top_k, scores.size(0)) : scores.size(0);
  const auto [likeliest, tokens] = scores.to(at::kFloat).topk(count);  // in descending order
  // From the likeliest on, in double: a temperature near 0 then overflows to probabilities of 0.
  auto probabilities =
      ((likeliest - likeliest[0]).to(at::kDouble) / options.temperature).softmax(0);
  // A token stays while those before it have not reached top_p; the first always does.
  const auto before = probabilities.cumsum(0) - probabilities;
  probabilities = probabilities.masked_fill((before >= options.top_p).logical_and(before > 0), 0);
  return tokens[probabilities.multinomial(1).item<int64_t>()].item<int64_t>();
}

}  // namespace heed::examples
