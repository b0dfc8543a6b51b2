#include "team.h"

#include <ATen/Functions.h>
#include <torch/nn/utils/clip_grad.h>

#include <cstdlib>
#include <stdexcept>

#include "process_team.h"
#include "support/distinct_parameters.h"

namespace heed::examples {

namespace {

at::Tensor mean_loss(const at::Tensor& scores, const at::Tensor& targets) {
  return at::cross_entropy_loss(scores.flatten(0, 1).to(at::kFloat), targets.flatten());
}

/// One process.
class Alone : public Team {
 public:
  bool leads() const override { return true; }
  std::string lead(const std::function<std::string()>& work) const override { return work(); }
  void check_same(const std::string& /*name*/, const std::string& /*text*/) const override {}
  void split(Decoder& /*model*/) override {}
  bool splits_weights() const override { return false; }
  at::Tensor own_rows(const at::Tensor& batch) const override { return batch; }
  at::Tensor loss(Decoder& model, const at::Tensor& windows) const override {
    const auto context = windows.size(1) - 1;
    return mean_loss(model(windows.narrow(1, 0, context)), windows.narrow(1, 1, context));
  }
  at::Tensor own_loss(const std::function<at::Tensor()>& loss, bool /*last_batch*/) override {
    return loss();
  }
  double mean(double value) const override { return value; }
  bool any(bool value) const override { return value; }
  void clip(Decoder& model, double most) const override {
    torch::nn::utils::clip_grad_norm_(distinct_parameters(*model), most);
  }
  at::Tensor whole(const Decoder& /*model*/, const std::string& /*name*/,
                   const at::Tensor& part) const override {
    return part;
  }
  at::Tensor part(const Decoder& /*model*/, const std::string& /*name*/,
                  const at::Tensor& whole) const override {
    return whole;
  }
};

bool has_company() {
  const auto* processes = std::getenv("WORLD_SIZE");
  return processes != nullptr && std::string(processes) != "1";
}

}  // namespace

std::unique_ptr<Team> make_team(const TeamSizes& sizes) {
  if (has_company()) return make_process_team(sizes);
  if (sizes.data > 1 || sizes.context > 1 || sizes.tensor > 1) {
    throw std::runtime_error(
        "several processes must be started by torchrun: torchrun --no-python --standalone "
        "--nproc-per-node 2 train_gpt ...");
  }
  return std::make_unique<Alone>();
}

std::unique_ptr<Team> make_team_of_one() {
  if (has_company()) {
    throw std::runtime_error("this program trains in one process: start it without torchrun");
  }
  return std::make_unique<Alone>();
}

}  // namespace heed::examples
