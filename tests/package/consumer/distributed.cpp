// SPDX-License-Identifier: BSD-3-Clause
// Uses heed::distributed: a group that the program makes itself, and one from a launcher that is
// not there.
#include <ATen/Functions.h>
#include <heed/distributed.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
#include <iostream>

int main() {
  const auto group =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  const at::Tensor heads = at::ones({2, 4, 6, 8});
  const at::Tensor attended = heed::distributed::ring_attend(heads, heads, heads, group);
  std::cout << "attended " << attended.sizes() << "\n";
  ::unsetenv("WORLD_SIZE");
  try {
    heed::distributed::init_process_group();
  } catch (const c10::ValueError& error) {
    std::cout << error.what_without_backtrace() << "\n";
  }
}
