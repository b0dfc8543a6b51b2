// SPDX-License-Identifier: BSD-3-Clause
// Writes files/0.3 when write.sh compiles it with version 0.3. Programs like it must compile with
// all that came since.
#include <heed/heed.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <filesystem>
#include <iostream>
#include <string>

#include "box.h"
#include "modules_of_0_3.h"
#include "training.h"

namespace heed::compatibility {
namespace {

void write_modules(Box& outputs, const std::string& folder) {
  Box modules;
  visit_modules_of_0_3(
      [&](const std::string& name, auto module, const at::Tensor& x, const auto& call) {
        module->eval();
        const at::NoGradGuard no_grad;
        // Norms and biases that are 1 and 0 at first shall be something else.
        for (auto& parameter : module->parameters())
          parameter.add_(numbers(parameter.sizes()), 0.1);
        modules.register_module(name, module.ptr());
        outputs.add(name, {{"x", x}, {"output", call(module, x)}});
      });
  save_weights(modules, folder + "/modules.safetensors");
}

void write_packed(Box& outputs, const std::string& folder) {
  const at::NoGradGuard no_grad;
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  visit_packings([&](const std::string& name, const PackOptions& options, int64_t width,
                     double /*tolerance*/) {
    auto model = packable_decoder(width);
    pack_weights(*model, options);
    save_weights(*model, folder + "/" + name + ".safetensors");
    outputs.add(name, {{"x", tokens}, {"output", model->forward(tokens)}});
  });
}

/// The state of a training in bfloat16, whose optimizer has masters.
void write_training(Box& outputs, const std::string& folder) {
  MultiHeadAttention module(E, H);
  module->to(at::kBFloat16);
  module->eval();  // without dropout
  FusedAdamW optimizer(module->parameters(), training_options());
  GradScaler scaler(GradScalerOptions().enabled(false));
  const auto x = numbers({B, L, E}).to(at::kBFloat16);
  for (int step = 0; step < 3; ++step) train_step(module, optimizer, scaler, x);
  torch::save(module, folder + "/module.archive");
  torch::save(optimizer, folder + "/fused_adamw.archive");
  train_step(module, optimizer, scaler, x);
  outputs.add("training", {{"x", x}, {"output", module->forward(x)}});
}

void write_adapter(Box& outputs, const std::string& folder) {
  MultiHeadAttention module(E, H);
  module->eval();
  save_weights(*module, folder + "/base.safetensors");
  add_adapter(*module, LoraOptions(/*rank=*/2).alpha(4).dora(true));
  const at::NoGradGuard no_grad;
  for (auto& parameter : adapter_parameters(*module)) {
    parameter.add_(numbers(parameter.sizes()), 0.1);
  }
  save_adapter(*module, folder);
  save_weights(*module, folder + "/adapted.safetensors");
  const auto x = numbers({B, L, E});
  outputs.add("adapter", {{"x", x}, {"output", module->forward(x)}});
}

}  // namespace
}  // namespace heed::compatibility

int main(int argc, char** argv) {
  using namespace heed::compatibility;
  if (argc != 2) {
    std::cerr << "usage: write_0_3 FOLDER\n";
    return 2;
  }
  const std::string folder = argv[1];
  for (const char* name : {"/packed", "/training", "/adapter"}) {
    std::filesystem::create_directories(folder + name);
  }
  torch::manual_seed(3);
  Box outputs;
  write_modules(outputs, folder);
  write_packed(outputs, folder + "/packed");
  write_training(outputs, folder + "/training");
  write_adapter(outputs, folder + "/adapter");
  heed::save_weights(outputs, folder + "/outputs.safetensors");
}
