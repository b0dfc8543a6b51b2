// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/decoder.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "models/pretrained/config.h"
#include "models/pretrained/fields.h"
#include "models/pretrained/rope.h"

namespace heed::detail {

/// The value of a size that a file leaves out. If there is none, the size follows from others, as
/// it does when it is null.
struct DerivedSize {
  std::optional<int64_t> value;
  bool may_be_null = false;
};

/// A family's values of fields that a file leaves out.
struct LlamaDefaults {
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
  DerivedSize num_key_value_heads;  // by default num_attention_heads
  DerivedSize head_dim;             // by default hidden_size / num_attention_heads
  int64_t max_position_embeddings;
  bool tie_word_embeddings;
  double norm_eps;
  const char* norm_eps_name = "rms_norm_eps";
  const char* activation_name = "hidden_act";
  const char* activation = "silu";
};

/// The fields that all decoders with Llama's names share, and the options made of them: blocks
/// with rms_norm, a gated feed-forward layer and no biases.
class LlamaFields {
 public:
  LlamaFields(const Config& config, const LlamaDefaults& defaults);

  void check_heads_divide_width() const;
  void read_attention_bias();
  void read_mlp_bias();
  /// Reads one rotary embedding for all blocks.
  void read_rotary(const RopeFields& fields = {});

  /// For each layer, whether it is local by `is_local` or, if the file has them, by layer_types.
  template <typename IsLocal>
  std::vector<bool> local_layers(const IsLocal& is_local) const;

  EncoderOptions equal_blocks() const { return {block, num_layers}; }
  /// One block for each layer, which change(layer, block) adapts.
  template <typename Change>
  EncoderOptions blocks(const Change& change) const;
  /// Blocks for all layers, with a window for the local ones.
  EncoderOptions blocks_with_windows(const std::vector<bool>& local,
                                     std::optional<int64_t> window) const;

  DecoderOptions decoder(EncoderOptions stack) const;

  const Config& config;
  int64_t vocab_size, width, heads, head_dim, num_layers, max_length;
  bool tied_head;
  TransformerBlockOptions block;

 private:
  TransformerBlockOptions read_block(const LlamaDefaults& defaults) const;
};

template <typename IsLocal>
std::vector<bool> LlamaFields::local_layers(const IsLocal& is_local) const {
  std::vector<bool> local(static_cast<size_t>(num_layers));
  for (int64_t layer = 0; layer < num_layers; ++layer) local[layer] = is_local(layer);
  return read_local_layers(config, local);
}

template <typename Change>
EncoderOptions LlamaFields::blocks(const Change& change) const {
  std::vector<TransformerBlockOptions> changed(static_cast<size_t>(num_layers), block);
  for (size_t layer = 0; layer < changed.size(); ++layer) change(layer, changed[layer]);
  return EncoderOptions(std::move(changed));
}

/// Throws if there are local layers but no window.
void check_window(const Config& config, const std::vector<bool>& local,
                  std::optional<int64_t> window);

/// Throws if there are local layers although use_sliding_window is false.
void check_window_is_used(const Config& config, const std::vector<bool>& local, bool is_used);

}  // namespace heed::detail
