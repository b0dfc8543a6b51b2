// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <heed/attend.h>
#include <heed/multi_head_attention.h>

#include <iostream>

int main() {
  heed::MultiHeadAttention attention(/*emb_dim=*/16, /*head_nums=*/4);
  const at::Tensor output = attention->forward(at::ones({2, 5, 16}));
  const at::Tensor heads = at::ones({2, 4, 5, 8});
  const at::Tensor attended = heed::attend(heads, heads, heads);
  std::cout << "output " << output.sizes() << ", attended " << attended.sizes() << ", ones "
            << at::allclose(attended, heads) << "\n";
}
