// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

namespace guide {

void from_python() {
  auto query = torch::randn({2, 8, 10, 16});
  auto key = torch::randn({2, 2, 10, 16}), value = torch::randn({2, 2, 10, 16});

  // F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
  auto output = heed::attend(query, key, value, heed::AttendOptions().causal(true));

  auto theirs = at::scaled_dot_product_attention(query, key, value, {}, /*dropout_p=*/0.0,
                                                 /*is_causal=*/true, /*scale=*/{},
                                                 /*enable_gqa=*/true);
  std::cout << "like scaled_dot_product_attention: " << torch::allclose(output, theirs, 1e-4, 1e-5)
            << '\n';

  // With L != S, is_causal is top-left; causal is bottom-right.
  auto some = query.slice(2, 0, 4);
  auto top_left = heed::attend(some, key, value, heed::AttendOptions().causal(true).top_left(true));
  std::cout << "top left: " << torch::allclose(top_left, output.slice(2, 0, 4), 1e-4, 1e-5) << '\n';

  // add_zero_attn=True: one more key and value, both 0.
  auto zero = torch::zeros({2, 2, 1, 16});
  auto appended = heed::attend(query, torch::cat({key, zero}, 2), torch::cat({value, zero}, 2));
  auto sinks = heed::attend(query, key, value, heed::AttendOptions().sinks(torch::zeros({8})));
  std::cout << "add_zero_attn: " << torch::allclose(sinks, appended, 1e-4, 1e-5) << '\n';
}

}  // namespace guide
