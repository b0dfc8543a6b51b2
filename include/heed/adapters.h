// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/export.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace heed {

/// Options of `add_adapter`.
struct HEED_API LoraOptions {
  /// `rank` is the least of the dimensions that an adapter adds to a Linear.
  explicit LoraOptions(int64_t rank = 8);
  HEED_NO_BOOL(LoraOptions);

  /// r: the adapter of a Linear [N, K] has r (N + K) numbers.
  HEED_NUMBER_ARG(int64_t, rank);
  /// The adapter, A and then B, is multiplied by alpha / r.
  HEED_NUMBER_ARG(double, alpha) = 8.0;
  /// The dropout of the adapter's input, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
  /// The Linears that get an adapter, by the last parts of their names: "fc_q", "attention.fc_o",
  /// "blocks.2.feed_forward.fc_in". By default all of attentions and feed-forward layers.
  TORCH_ARG(std::vector<std::string>, target_modules) = {};
  /// Modules that are trained as a whole, by the last parts of their names: "classifier".
  TORCH_ARG(std::vector<std::string>, modules_to_save) = {};
  /// Whether alpha / sqrt(r) takes the place of alpha / r. Kalajdzievski 2023 (arXiv:2312.03732).
  TORCH_ARG(bool, rank_stabilized) = false;
  /// Whether the length of each row of the adapted weight is a parameter of its own. Liu et al.
  /// 2024 (arXiv:2402.09353).
  TORCH_ARG(bool, dora) = false;
};

/// Options of `load_adapter` and `save_adapter`.
struct HEED_API AdapterOptions {
  /// The folder, or the config.json, that the model was made from, by which the names in the
  /// adapter's files are those of transformers. By default they are the module's own names.
  TORCH_ARG(std::optional<std::string>, source) = std::nullopt;
};

/// Gives Linears of a module adapters of low rank, to be trained in place of the weights: x W^T + b
/// becomes x W^T + b + alpha / r x A^T B^T. Hu et al. 2021 (arXiv:2106.09685). A [r, K] is drawn as
/// PEFT draws it, B [N, r] is 0, so that the module computes what it did.
///
/// @code
/// heed::FeedForward layer(heed::FeedForwardOptions(/*emb_dim=*/64));
/// heed::add_adapter(*layer, heed::LoraOptions(/*rank=*/4).alpha(8.0));
/// heed::FusedAdamW optimizer(heed::adapter_parameters(*layer), torch::optim::AdamWOptions(1e-3));
/// @endcode
///
/// All other parameters stop requiring gradients, but those of `modules_to_save`. The weights may
/// be packed by `pack_weights` before, not after. A and B are of float32 where the weight is of
/// fewer bits. Until `merge_adapter`, a module with adapters cannot be cloned, parallelized or
/// saved by `save_pretrained`; `to`, torch::save, `save_weights` and `load_weights` treat the
/// adapters' parameters, `lora_a`, `lora_b` and `lora_magnitude` of a Linear, as they do others.
///
/// Throws c10::ValueError, and changes nothing, when an option is out of range, when a name is that
/// of no Linear or module, or when the module has adapters already, packed Linears in
/// `modules_to_save`, Linears of a subclass, or experts that parallelize_experts has split.
HEED_API void add_adapter(torch::nn::Module& module, const LoraOptions& options = LoraOptions());

/// Reads an adapter that PEFT or `save_adapter` has written into a module without one, whose
/// parameters are then those that `add_adapter` describes: `folder` has adapter_config.json and
/// adapter_model.safetensors or adapter_model.bin, of the type LORA.
///
/// @code
/// auto model = heed::load_pretrained("Llama-3.2-1B");
/// auto source = heed::AdapterOptions().source("Llama-3.2-1B");
/// heed::load_adapter(*model, "adapter", source);
/// heed::merge_adapter(*model);  // as fast as without an adapter
/// @endcode
///
/// Ranks and alphas of single layers, rsLoRA, DoRA, trained biases, modules_to_save and adapters of
/// projections that transformers packs are supported; docs/pretrained.md lists what is not. Layers
/// that share a packed projection of the file share one A.
///
/// Throws c10::ValueError that names the file, and the field or tensor, and changes nothing, when a
/// file is missing or damaged, when a field is not supported, when names or shapes do not fit the
/// module, or when its experts are split.
HEED_API void load_adapter(torch::nn::Module& module, const std::string& folder,
                           const AdapterOptions& options = {});

/// Writes the adapter of a module to `folder`, which is made if it is missing, as
/// adapter_config.json and adapter_model.safetensors, which PEFT reads if `source` is given: the
/// adapters of Linears, and all other parameters that require gradients. Throws c10::ValueError
/// when the module has no adapter or `source` describes another model, and when a file cannot be
/// written.
HEED_API void save_adapter(const torch::nn::Module& module, const std::string& folder,
                           const AdapterOptions& options = {});

/// Adds what the adapters of a module add to its weights, and takes the adapters away; all
/// parameters require gradients again. Throws c10::ValueError, and changes nothing, when there is
/// no adapter, and when an adapted weight is packed.
HEED_API void merge_adapter(torch::nn::Module& module);

/// The parameters of a module that are trained beside its frozen ones, each once: those that
/// require gradients. Layers may share one, which parameters() lists several times.
HEED_API std::vector<at::Tensor> adapter_parameters(const torch::nn::Module& module);

}  // namespace heed
