// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/export.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>

namespace heed {

/// The numbers in which packed weights are kept. An activation keeps its dtype.
enum class PackFormat {
  as_is,     ///< those of the weight
  float32,   ///< 32 bits
  bfloat16,  ///< 16 bits, 8 of them of precision
  float16,   ///< 16 bits, 11 of them of precision
  int8,      ///< 8 bits, with a scale for each output
  int4,      ///< 4 bits, with a scale for each group of inputs of an output: 4.5 bits with
             ///< groups of 32, and 5 with zero_point, by which each group has an offset too
};

/// Options of pack_weights.
struct HEED_API PackOptions {
  /// A format is the options that have it.
  PackOptions(PackFormat format = PackFormat::as_is);  // NOLINT(google-explicit-constructor)

  /// The format of layers, and of a head that is tied to its embedding.
  TORCH_ARG(PackFormat, format);
  /// The format of token embeddings. By default they are packed only where a head is tied to them,
  /// in `format`.
  TORCH_ARG(std::optional<PackFormat>, embedding_format) = std::nullopt;
  /// int4: the inputs that share a scale: 32, 64 or 128. It divides the inputs of each layer.
  HEED_NUMBER_ARG(int64_t, group_size) = 32;
  /// int4: whether a group's numbers reach from its least weight to its greatest. Otherwise they
  /// reach from -8 to 7 times its scale.
  TORCH_ARG(bool, zero_point) = false;
  /// int8 and int4: whether inputs of more than 8 rows, such as prompts or many sequences, are
  /// rounded to bytes too, each row to multiples of its largest number / 127. Products of bytes
  /// take half the time of products of bfloat16. Only where the processor has them: x86 with
  /// AVX-512, VNNI and bfloat16 but no AMX, which multiplies bfloat16 faster still.
  TORCH_ARG(bool, quantize_activations) = false;
};

/// Prepares a module for inference on the CPU: its Linears get weights in the layout, and in the
/// format, in which products read them. With 8 or 4 bits a number, fewer bytes are read for each
/// token, which takes most of the time that one sequence of a large model waits for it.
/// docs/kernels.md has figures.
///
/// @code
/// heed::MultiHeadAttention attention(64, 4);
/// attention->eval();
/// heed::pack_weights(*attention, heed::PackFormat::int8);
/// auto y = attention->forward(torch::randn({2, 10, 64}));
/// @endcode
///
/// It cannot be undone. Weights lose their own memory, so that no copy can become stale: packed
/// weights cannot be trained, and a packed module cannot be converted by `to`, loaded into except
/// from packed weights, or parallelized, and LibTorch's functions that read its weights throw
/// c10::Error. All its parameters stop requiring gradients. Gradients pass through the products to
/// their inputs, so that an adapter of adapters.h can be trained beside packed weights.
/// `save_weights` writes packed weights, which `load_weights` and `load_pretrained` read without
/// packing them again.
///
/// Packed are all torch::nn::Linears below `module`, but LatentAttention's fc_kv_up and a mixture's
/// router, and embeddings as the options say. Modules of your own must call `heed::linear(fc, x)`.
///
/// int8 rounds a weight to multiples of its output's largest one / 127, int4 to multiples of its
/// group's largest one / 8; docs/numerics.md has bounds.
///
/// Throws c10::ValueError, and changes nothing, when a layer is not a torch::nn::Linear but a
/// subclass, or is packed already, or when a weight is not of float32, bfloat16 or float16, not on
/// the CPU, not finite or too large for the format, or has inputs that the group does not divide.
HEED_API void pack_weights(torch::nn::Module& module, const PackOptions& options = {});

}  // namespace heed
