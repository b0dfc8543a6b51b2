// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

namespace guide {

namespace {

void packed_sequences() {
  auto device = torch::Device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  // Sequences of 3, 5 and 2 tokens.
  auto offsets = torch::tensor({0, 3, 8, 10}).to(device);
  auto query = torch::randn({10, 8, 64}, device);  // [T, H, D]
  auto key = torch::randn({10, 2, 64}, device), value = torch::randn({10, 2, 64}, device);

  auto output = heed::attend_varlen(query, key, value, offsets, offsets, /*longest_query=*/5,
                                    /*longest_key=*/5, heed::AttendOptions().causal(true));
  std::cout << "packed on a device " << output.sizes() << '\n';
}

}  // namespace

void gpu() {
  packed_sequences();

  auto query = torch::randn({1, 8, 10, 64}), key = torch::randn({1, 2, 10, 64});
  auto path = heed::attend_path(query, key, key, heed::AttendOptions().causal(true).window(4));
  std::cout << "attend takes " << heed::to_string(path) << '\n';
}

}  // namespace guide
