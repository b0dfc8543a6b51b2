// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/heed.h>
#include <torch/torch.h>

#include <string>

namespace recipes {

/// nanoGPT's names, for a model whose c_attn has keys first, then queries, then values.
inline heed::NameMap key_query_value() {
  return heed::NameMap()
      .split("attn.c_attn", {"attention.fc_k", "attention.fc_q", "attention.fc_v"})
      .rename("attn.c_proj", "attention.fc_o")
      .rename("mlp.c_fc", "feed_forward.fc_in")
      .rename("mlp.c_proj", "feed_forward.fc_out")
      .rename("ln_1", "attention_norm")
      .rename("ln_2", "feed_forward_norm")
      .rename("transformer.ln_f", "stack.final_norm")
      .tied("lm_head", {"transformer.wte"})
      .rename("transformer.wte", "token_embedding")
      .rename("transformer.wpe", "position_embedding")
      .inside("transformer.h", "stack.blocks");
}

/// Loading cannot notice that rows of equal shapes are in another order. The output can.
inline void check_port(heed::Decoder& model, const std::string& file) {
  torch::NoGradGuard no_grad;
  auto expected = heed::read_weights(file);
  auto difference = (model(expected.at("tokens")) - expected.at("y")).abs().max().item<double>();
  TORCH_CHECK(difference < 1e-4, "the port and Python differ by ", difference);
}

/// For GPT(...).load_state_dict(safetensors.torch.load_file(file)) in Python.
inline void save_for_python(heed::Decoder& model, const std::string& file) {
  heed::save_weights(*model, file, heed::SaveOptions().name_map(heed::name_maps::nanogpt()));
}

}  // namespace recipes
