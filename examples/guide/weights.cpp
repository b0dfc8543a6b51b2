// SPDX-License-Identifier: BSD-3-Clause
#include <fstream>

#include "guide.h"

namespace guide {

namespace {

void misfits() {
  heed::save_weights(*heed::MultiHeadAttention(64, 4), "attention.safetensors");
  heed::MultiHeadAttention attention(heed::MultiHeadAttentionOptions(64, 4).output_bias(false));
  try {
    heed::load_weights(*attention, "attention.safetensors");
  } catch (const c10::ValueError& error) {
    std::cout << error.what_without_backtrace() << '\n';
  }

  // Loads what fits, and reports the rest.
  auto report =
      heed::load_weights(*attention, "attention.safetensors", heed::LoadOptions().strict(false));
  std::cout << report.loaded.size() << " loaded, " << report.unexpected.size() << " unexpected\n";
}

void part_of_a_model() {
  auto block = heed::TransformerBlockOptions(heed::GroupQueryAttentionOptions(64, 4, 2));
  heed::save_weights(*heed::Encoder(heed::EncoderOptions(block, 2)), "encoder.safetensors");

  heed::GroupQueryAttention attention(64, 4, 2);
  attention->to(torch::kBFloat16);
  auto options = heed::LoadOptions().prefix("blocks.1.attention.").dtype(torch::kBFloat16);
  auto report = heed::load_weights(*attention, "encoder.safetensors", options);
  std::cout << "of a part: " << report.loaded.size() << '\n';
}

void part_of_each_tensor() {
  torch::nn::Linear half(64, 32);  // the second half of fc_q's 64 outputs
  heed::TensorShard rows = {/*dim=*/0, /*first=*/32, /*size=*/32, /*whole=*/64};
  auto options = heed::LoadOptions().prefix("fc_q.").shards({{"weight", rows}, {"bias", rows}});
  auto report = heed::load_weights(*half, "attention.safetensors", options);
  std::cout << "of each tensor: " << report.bytes_read << " bytes\n";
}

void without_files() {
  heed::MultiHeadAttention attention(64, 4);
  // A file here; in a program, a pipe, or an std::istringstream of bytes that it has decrypted.
  std::ifstream stream("attention.safetensors", std::ios::binary);
  heed::load_weights(*attention, stream);

  // Tensors that are in no module.
  auto [output, weights] = attention->forward_with_weights(torch::randn({2, 10, 64}));
  heed::save_weights({{"output", output}, {"weights", weights}}, "maps.safetensors");
  std::cout << "maps: " << heed::read_weights("maps.safetensors").at("weights").sizes() << '\n';
}

void names_of_pytorch() {
  heed::MultiHeadAttention attention(64, 4);
  auto names = heed::name_maps::in_proj();  // torch.nn.MultiheadAttention's
  heed::save_weights(*attention, "pytorch.safetensors", heed::SaveOptions().name_map(names));
  std::cout << heed::read_weights("pytorch.safetensors").at("in_proj_weight").sizes() << '\n';
}

void other_names() {
  // A model that another program may have trained, with names of its own.
  torch::nn::ModuleDict theirs;
  for (const auto* name : {"query", "key", "value", "dense"}) {
    theirs->register_module(name, torch::nn::Linear(64, 64));
  }
  heed::save_weights(*theirs, "other.safetensors");

  auto names = heed::NameMap()
                   .rename("query", "fc_q")
                   .rename("key", "fc_k")
                   .rename("value", "fc_v")
                   .rename("dense", "fc_out");
  heed::MultiHeadAttention attention(64, 4);
  auto renamed =
      heed::load_weights(*attention, "other.safetensors", heed::LoadOptions().name_map(names));

  // Three matrices of the file become one; "dense" is left out.
  names = heed::NameMap().pack({"query", "key", "value"}, "qkv").drop("dense");
  heed::AttentionV1 single(64);
  auto packed =
      heed::load_weights(*single, "other.safetensors", heed::LoadOptions().name_map(names));
  std::cout << "renamed: " << renamed.loaded.size() << '\n';
  std::cout << "packed: " << packed.loaded.size() << '\n';
}

}  // namespace

void load_files() {
  heed::Attention attention(64);
  // If something does not fit, one error lists all of it, and nothing is loaded.
  heed::load_weights(*attention, "model.safetensors");
  // From a checkpoint of torch.save: the weights of one module of its state_dict.
  heed::load_weights(*attention, "checkpoint.pt",
                     heed::LoadOptions().key("model").prefix("encoder.layer.0.attention."));
  // Writes the same bits; an old file is replaced only when the new one is complete.
  heed::save_weights(*attention, "attention.safetensors");
}

void weights() {
  run(misfits, part_of_a_model, part_of_each_tensor, without_files, other_names, names_of_pytorch);
}

}  // namespace guide
