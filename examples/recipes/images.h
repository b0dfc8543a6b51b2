// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/heed.h>
#include <torch/torch.h>

#include <string>

namespace recipes {

/// A layer of Swin: a transformer block on each window of an image. All that a block does besides
/// attention, it does for each token alone, so it may see the windows as a batch of sequences.
class SwinLayerImpl : public torch::nn::Module {
 public:
  SwinLayerImpl(int64_t emb_dim, int64_t heads, int64_t window, int64_t shift)
      : window(window), shift(shift) {
    heed::GroupQueryAttentionOptions attention(emb_dim, heads, heads);
    block = register_module("block", heed::TransformerBlock(attention));
    auto table = heed::RelativePositionBiasOptions(heads).image_window({window, window});
    bias = register_module("bias", heed::RelativePositionBias(table));
  }

  /// x [B, height, width, E]
  at::Tensor forward(const at::Tensor& x) {
    auto height = x.size(1), width = x.size(2);
    auto [table, places] = bias->relative();
    auto inputs = heed::TransformerInputs().relative_bias(table).relative_positions(places);
    // Every image has the masks of its n windows.
    if (shift > 0) inputs.mask(mask(height, width)).mask_batch(heed::MaskBatch::cycled);
    auto y = block(to_windows(x.roll({-shift, -shift}, {1, 2})), inputs);  // [B n, w w, E]
    y = y.unflatten(1, {window, window}).unflatten(0, {-1, height / window, width / window});
    return y.transpose(2, 3).flatten(3, 4).flatten(1, 2).roll({shift, shift}, {1, 2});
  }

  /// [B, height, width, C] -> [B n, w w, C]: n windows of w x w tokens.
  at::Tensor to_windows(const at::Tensor& x) const {
    auto y = x.unflatten(2, {-1, window}).unflatten(1, {-1, window});
    return y.transpose(2, 3).flatten(0, 2).flatten(1, 2);
  }

  /// [n, 1, w w, w w]: rows and columns that the shift brought from the other side are hidden.
  at::Tensor mask(int64_t height, int64_t width) const {
    auto is_moved = [&](int64_t size) {
      return (torch::arange(size, bias->weight.device()) >= size - shift).to(torch::kLong);
    };
    auto region = is_moved(height).unsqueeze(1) * 2 + is_moved(width);
    return heed::document_mask(to_windows(region.view({1, height, width, 1})).squeeze(2));
  }

  int64_t window, shift;
  heed::TransformerBlock block{nullptr};
  heed::RelativePositionBias bias{nullptr};
};
TORCH_MODULE(SwinLayer);

/// Both spellings of transformers: before version 5, and since.
inline heed::NameMap swin_names() {
  return heed::NameMap()
      .rename_any({"attention.self.query", "attention.q_proj"}, "block.attention.fc_q")
      .rename_any({"attention.self.key", "attention.k_proj"}, "block.attention.fc_k")
      .rename_any({"attention.self.value", "attention.v_proj"}, "block.attention.fc_v")
      .rename_any({"attention.output.dense", "attention.o_proj"}, "block.attention.fc_o")
      .rename_any({"attention.self.relative_position_bias_table",
                   "attention.relative_position_bias.relative_position_bias_table"},
                  "bias.weight")
      .drop("relative_position_index")
      .rename("layernorm_before", "block.attention_norm")
      .rename("layernorm_after", "block.feed_forward_norm")
      .rename_any({"intermediate.dense", "mlp.fc1"}, "block.feed_forward.fc_in")
      .rename_any({"output.dense", "mlp.fc2"}, "block.feed_forward.fc_out");
}

/// A Vision Transformer with its head, from a folder in Hugging Face's format.
class VitClassifierImpl : public torch::nn::Module {
 public:
  VitClassifierImpl(const std::string& folder, int64_t labels, torch::Dtype dtype) {
    auto options = heed::PretrainedOptions().dtype(dtype);
    encoder = heed::load_pretrained<heed::ImageEncoder>(folder, options);  // leaves the head out
    torch::nn::LinearOptions to_labels(encoder->options.stack().block().emb_dim(), labels);
    classifier = torch::nn::Linear(to_labels);
    classifier->to(dtype);
    heed::load_weights(*classifier, folder + "/model.safetensors",
                       heed::LoadOptions().prefix("classifier."));
    register_module("encoder", encoder);
    register_module("classifier", classifier);
  }

  /// images [B, C, I, I]; returns scores [B, labels], from the class token.
  at::Tensor forward(const at::Tensor& images) { return classifier(encoder(images).select(1, 0)); }

  heed::ImageEncoder encoder{nullptr};
  torch::nn::Linear classifier{nullptr};
};
TORCH_MODULE(VitClassifier);

/// A block of a U-Net: an image attends to itself and to a text.
class SpatialAttentionImpl : public torch::nn::Module {
 public:
  SpatialAttentionImpl(int64_t channels, int64_t heads, int64_t text_dim) {
    auto options = heed::MultiHeadAttentionOptions(channels, heads).dropout(0).input_bias(false);
    to_image = register_module("to_image", heed::MultiHeadAttention(options));
    options.key_emb_dim(text_dim).value_emb_dim(text_dim);
    to_text = register_module("to_text", heed::MultiHeadAttention(options));
    image_norm = register_module("image_norm", heed::Norm(channels));
    text_norm = register_module("text_norm", heed::Norm(channels));
  }

  /// image [B, channels, height, width], text [B, S, text_dim]
  at::Tensor forward(const at::Tensor& image, const at::Tensor& text) {
    auto x = image.flatten(2).transpose(1, 2);  // [B, height * width, channels]
    x = x + to_image(image_norm(x));
    x = x + to_text(text_norm(x), text, text);
    return x.transpose(1, 2).view_as(image);
  }

  heed::MultiHeadAttention to_image{nullptr}, to_text{nullptr};
  heed::Norm image_norm{nullptr}, text_norm{nullptr};
};
TORCH_MODULE(SpatialAttention);

inline heed::NameMap spatial_names() {
  return heed::NameMap()
      .rename("to_q", "fc_q")
      .rename("to_k", "fc_k")
      .rename("to_v", "fc_v")
      .rename("to_out.0", "fc_out")
      .rename("norm1", "image_norm")
      .rename("norm2", "text_norm")
      .inside("attn1", "to_image")
      .inside("attn2", "to_text");
}

}  // namespace recipes
