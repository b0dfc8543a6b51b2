// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

namespace guide {

namespace {

void paths() {
  auto query = torch::randn({1, 8, 512, 64});
  auto key = torch::randn({1, 2, 512, 64}), value = torch::randn({1, 2, 512, 64});
  auto local = heed::AttendOptions().causal(true).window(128);
  std::cout << "a window: " << to_string(heed::attend_path(query, key, value, local)) << '\n';

  torch::NoGradGuard no_grad;
  auto last = query.slice(2, 511);
  std::cout << "one query: " << to_string(heed::attend_path(last, key, value)) << '\n';
}

void packed() {
  // Sequences of 3, 5 and 2 tokens, end to end: [T, H, D] instead of [B, H, L, D] with padding.
  auto query = torch::randn({10, 8, 64});
  auto key = torch::randn({10, 2, 64}), value = torch::randn({10, 2, 64});
  auto offsets = torch::tensor({0, 3, 8, 10});
  auto output =
      heed::attend_varlen(query, key, value, offsets, offsets, heed::AttendOptions().causal(true));
  std::cout << "packed " << output.sizes() << '\n';
}

}  // namespace

void performance() { run(paths, packed); }

}  // namespace guide
