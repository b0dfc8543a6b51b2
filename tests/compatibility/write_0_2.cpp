// SPDX-License-Identifier: BSD-3-Clause
// Writes files/0.2 when write.sh compiles it with version 0.2. Programs like it must compile with
// all that came since.
#include <heed/heed.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "box.h"
#include "modules_of_0_2.h"
#include "training.h"

namespace heed::compatibility {
namespace {

const char* const kConfig = R"({
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 11,
  "hidden_size": 8,
  "intermediate_size": 12,
  "num_hidden_layers": 1,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 2,
  "hidden_act": "silu",
  "max_position_embeddings": 32,
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "attention_bias": false,
  "mlp_bias": false,
  "tie_word_embeddings": false
})";

void write_modules(Box& outputs, const std::string& folder) {
  Box modules;
  visit_modules_of_0_2(
      [&](const std::string& name, auto module, const at::Tensor& x, const auto& call) {
        module->eval();
        const at::NoGradGuard no_grad;
        // Norms and biases that are 1 and 0 at first shall be something else.
        for (auto& parameter : module->parameters())
          parameter.add_(numbers(parameter.sizes()), 0.1);
        modules.register_module(name, module.ptr());
        outputs.add(name, {{"x", x}, {"output", call(module, x)}});
        if (name != "group_query_attention" && name != "decoder") return;
        save_weights(*module, folder + "/" + name + ".torchscript",
                     SaveOptions().format(WeightFormat::torchscript));
        torch::save(module, folder + "/" + name + ".archive");
      });
  save_weights(modules, folder + "/modules.safetensors");
}

void write_training(Box& outputs, const std::string& folder) {
  std::filesystem::create_directories(folder);
  MultiHeadAttention module(E, H);
  module->eval();  // without dropout
  torch::optim::AdamW optimizer(module->parameters(), training_options());
  GradScaler scaler(GradScalerOptions().init_scale(1024).growth_interval(2));
  const auto x = numbers({B, L, E});
  for (int step = 0; step < 3; ++step) train_step(module, optimizer, scaler, x);
  torch::save(module, folder + "/module.archive");
  torch::save(optimizer, folder + "/adamw.archive");
  torch::save(scaler, folder + "/grad_scaler.archive");
  train_step(module, optimizer, scaler, x);
  outputs.add("training", {{"x", x},
                           {"scale", at::scalar_tensor(scaler.scale(), at::kDouble)},
                           {"output", module->forward(x)}});
}

void write_published(Box& outputs, const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << kConfig;
  auto model = make_model(folder);
  save_pretrained(model, folder, folder);
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  outputs.add("published", {{"x", tokens}, {"output", model->forward(tokens)}});
}

}  // namespace
}  // namespace heed::compatibility

int main(int argc, char** argv) {
  using namespace heed::compatibility;
  if (argc != 2) {
    std::cerr << "usage: write_0_2 FOLDER\n";
    return 2;
  }
  const std::string folder = argv[1];
  std::filesystem::create_directories(folder);
  torch::manual_seed(2);
  Box outputs;
  write_modules(outputs, folder);
  write_training(outputs, folder + "/training");
  write_published(outputs, folder + "/llama");
  heed::save_weights(outputs, folder + "/outputs.safetensors");
}
