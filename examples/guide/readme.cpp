// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <limits>

#include "guide.h"

namespace guide {

void readme() {
  const int64_t L = 50;
  auto query = torch::randn({2, 8, L, 64});  // [batch, heads, length, head dim]
  auto key = torch::randn({2, 8, L, 64}), value = torch::randn({2, 8, L, 64});

  // Causal attention by hand:
  auto scores = torch::matmul(query, key.transpose(-2, -1)) / std::sqrt(query.size(-1));
  auto future = torch::ones({L, L}, torch::kBool).triu(1);
  scores = scores.masked_fill(future, -std::numeric_limits<float>::infinity());
  auto weights = torch::softmax(scores, -1);
  auto by_hand = torch::matmul(weights, value);

  // Causal attention by one call of heed:
  auto output = heed::attend(query, key, value, heed::AttendOptions().causal(true));

  std::cout << "attend is the five lines: " << torch::allclose(output, by_hand, 1e-4, 1e-5) << '\n';
}

}  // namespace guide
