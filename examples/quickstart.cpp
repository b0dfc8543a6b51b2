// SPDX-License-Identifier: BSD-3-Clause
#include <heed/heed.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  // Eight query heads share two key/value heads.
  heed::GroupQueryAttention attention(/*emb_dim=*/128, /*head_num=*/8, /*group_num=*/2);
  auto x = torch::randn({3, 50, 128});  // [batch, length, embedding]

  // Masks say what a query may see: the past, and no padding.
  auto mask = heed::causal_mask(50, 50) & heed::padding_mask(torch::tensor({50, 31, 7}), 50);
  auto [output, weights] = attention->forward_with_weights(x, mask);
  std::cout << "output " << output.sizes() << ", weights " << weights.sizes() << '\n';

  // The function underneath, on heads of your own: [batch, heads, length, head dim].
  auto query = torch::randn({3, 8, 50, 16});
  auto key = torch::randn({3, 2, 50, 16}), value = torch::randn({3, 2, 50, 16});
  auto context = heed::attend(query, key, value, heed::AttendOptions().causal(true).window(16));
  std::cout << "context " << context.sizes() << '\n';
}
