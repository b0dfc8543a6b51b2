// SPDX-License-Identifier: BSD-3-Clause
#include "team.h"

#include <ATen/Functions.h>

#include <cstdlib>
#include <cstring>

namespace heed::examples {

namespace {

bool has_company() {
  const auto* processes = std::getenv("WORLD_SIZE");
  return processes != nullptr && std::string(processes) != "1";
}

}  // namespace

at::Tensor to_bytes(const std::string& text) {
  const auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

std::string to_text(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

void Team::run_in_leader(const std::function<void()>& work) const {
  lead([&] {
    work();
    return "";
  });
}

at::Tensor Team::loss(Decoder& model, const at::Tensor& windows) const {
  const auto context = windows.size(1) - 1;
  return model->loss(windows.narrow(1, 0, context), windows.narrow(1, 1, context));
}

void Team::step(FusedAdamW& optimizer, Decoder& /*model*/, double most) const {
  optimizer.step_clipped(most);
}

std::unique_ptr<Team> make_team(const TeamSizes& sizes) {
  if (has_company()) return make_process_team(sizes);
  if (sizes.data > 1 || sizes.context > 1 || sizes.tensor > 1) {
    throw std::runtime_error(
        "several processes must be started by torchrun: torchrun --no-python --standalone "
        "--nproc-per-node 2 train_gpt ...");
  }
  return std::make_unique<Team>();
}

std::unique_ptr<Team> make_team_of_one() {
  if (has_company()) {
    throw std::runtime_error("this program trains in one process: start it without torchrun");
  }
  return std::make_unique<Team>();
}

}  // namespace heed::examples
