// SPDX-License-Identifier: BSD-3-Clause
#include <heed/name_maps.h>

#include <string>
#include <utility>
#include <vector>

namespace heed::name_maps {

namespace {

/// The map of an encoder whose names stand alone or, in a model with a head, inside `prefix`.
class EncoderNames {
 public:
  explicit EncoderNames(std::string prefix) : prefix_(std::move(prefix)) {}

  EncoderNames& outer(const std::string& theirs, const std::string& ours) {
    map_.rename_any({prefix_ + theirs, theirs}, ours);
    return *this;
  }
  /// Adds a name of a part of every block.
  EncoderNames& inner(const std::string& theirs, const std::string& ours) {
    map_.rename(theirs, ours);
    return *this;
  }
  EncoderNames& split(const std::string& theirs, std::vector<std::string> ours) {
    map_.split(theirs, std::move(ours));
    return *this;
  }
  /// Adds a LayerNorm, whose weight and bias have TensorFlow's names in files of 2018.
  /// @{
  EncoderNames& outer_norm(const std::string& theirs, const std::string& ours) {
    const auto inside = prefix_ + theirs;
    map_.rename_any({inside + ".weight", inside + ".gamma", theirs + ".weight", theirs + ".gamma"},
                    ours + ".weight");
    map_.rename_any({inside + ".bias", inside + ".beta", theirs + ".bias", theirs + ".beta"},
                    ours + ".bias");
    return *this;
  }
  EncoderNames& inner_norm(const std::string& theirs, const std::string& ours) {
    map_.rename_any({theirs + ".weight", theirs + ".gamma"}, ours + ".weight");
    map_.rename_any({theirs + ".bias", theirs + ".beta"}, ours + ".bias");
    return *this;
  }
  /// @}
  EncoderNames& layers(const std::string& theirs) {
    map_.inside(prefix_ + theirs, "stack.blocks").inside(theirs, "stack.blocks");
    return *this;
  }
  /// Drops heads, which heed's encoders do not have, and returns the map.
  NameMap without(const std::vector<std::string>& heads) {
    for (const auto& head : heads) map_.drop(head);
    return map_;
  }

 private:
  std::string prefix_;
  NameMap map_;
};

EncoderNames bert_names(const std::string& prefix) {
  return EncoderNames(prefix)
      .outer("embeddings.word_embeddings", "token_embedding")
      .outer("embeddings.position_embeddings", "position_embedding")
      .outer("embeddings.token_type_embeddings", "type_embedding")
      .outer_norm("embeddings.LayerNorm", "embedding_norm")
      .inner_norm("attention.output.LayerNorm", "attention_norm")
      .inner_norm("output.LayerNorm", "feed_forward_norm")
      .inner("attention.self.query", "attention.fc_q")
      .inner("attention.self.key", "attention.fc_k")
      .inner("attention.self.value", "attention.fc_v")
      .inner("attention.output.dense", "attention.fc_o")
      .inner("intermediate.dense", "feed_forward.fc_in")
      .inner("output.dense", "feed_forward.fc_out")
      .layers("encoder.layer");
}

/// The names that the maps of ViT and of DINOv2 have in common.
EncoderNames vit_names(const std::string& prefix) {
  EncoderNames names(prefix);
  names.outer("embeddings.cls_token", "class_token")
      .outer("embeddings.position_embeddings", "position_embedding")
      .outer("embeddings.patch_embeddings.projection", "patch_embedding")
      .inner("attention.attention.query", "attention.fc_q")
      .inner("attention.attention.key", "attention.fc_k")
      .inner("attention.attention.value", "attention.fc_v")
      .inner("attention.output.dense", "attention.fc_o")
      .outer("layernorm", "stack.final_norm")
      .layers("encoder.layer");
  return names;
}

/// The map of an encoder of images with DINOv2's names.
EncoderNames dinov2_names(const std::string& prefix, bool gated) {
  auto names = vit_names(prefix);
  names.outer("embeddings.register_tokens", "registers")
      .inner("norm1", "attention_norm")
      .inner("norm2", "feed_forward_norm")
      .inner("layer_scale1.lambda1", "attention_layer_scale")
      .inner("layer_scale2.lambda1", "feed_forward_layer_scale");
  if (gated) {
    return names.split("mlp.weights_in", {"feed_forward.fc_gate", "feed_forward.fc_in"})
        .inner("mlp.weights_out", "feed_forward.fc_out");
  }
  return names.inner("mlp.fc1", "feed_forward.fc_in").inner("mlp.fc2", "feed_forward.fc_out");
}

/// Adds the names that CLIP's and SigLIP's encoders share. Those of a pair are inside `prefix`, and
/// those of the tower alone may be.
NameMap tower(NameMap map, const std::string& prefix) {
  return map
      .drop("embeddings.position_ids")  // a buffer of older files
      .rename("self_attn.q_proj", "attention.fc_q")
      .rename("self_attn.k_proj", "attention.fc_k")
      .rename("self_attn.v_proj", "attention.fc_v")
      .rename("self_attn.out_proj", "attention.fc_o")
      .rename("layer_norm1", "attention_norm")
      .rename("layer_norm2", "feed_forward_norm")
      .rename("mlp.fc1", "feed_forward.fc_in")
      .rename("mlp.fc2", "feed_forward.fc_out")
      .inside(prefix, "")
      .inside("encoder.layers", "stack.blocks");
}

/// Drops what is not of a tower. Parts of the other one have the names of its own.
NameMap without(const std::vector<std::string>& others) {
  NameMap map;
  for (const auto& other : others) map.drop(other);
  return map;
}

NameMap text_tower(const std::vector<std::string>& others) {
  return tower(without(others), "text_model")
      .rename("embeddings.token_embedding", "token_embedding")
      .rename("embeddings.position_embedding", "position_embedding")
      .rename("final_layer_norm", "stack.final_norm");
}

NameMap image_tower(NameMap own) {
  return tower(std::move(own), "vision_model")
      .unsqueeze("embeddings.position_embedding.weight", "position_embedding")
      .rename("embeddings.patch_embedding", "patch_embedding");
}

/// Adds CLIP's projection, which is outside of the tower, though `tower` puts all names into it.
NameMap with_projection(NameMap map, const std::string& tower, const std::string& theirs) {
  return map.rename(theirs, "projection").inside(theirs, tower + "." + theirs);
}

}  // namespace

NameMap bert() {
  return bert_names("bert.").without(
      {"embeddings.position_ids", "pooler", "cls", "classifier", "qa_outputs"});
}

NameMap roberta() {
  return bert_names("roberta.")
      .without({"embeddings.position_ids", "pooler", "lm_head", "classifier", "qa_outputs"});
}

NameMap electra() {
  return bert_names("electra.")
      .outer("embeddings_project", "embedding_projection")
      .without({"embeddings.position_ids", "discriminator_predictions", "generator_predictions",
                "generator_lm_head", "sequence_summary", "classifier", "qa_outputs"});
}

NameMap distilbert() {
  return EncoderNames("distilbert.")
      .outer("embeddings.word_embeddings", "token_embedding")
      .outer("embeddings.position_embeddings", "position_embedding")
      .outer("embeddings.LayerNorm", "embedding_norm")
      .inner("attention.q_lin", "attention.fc_q")
      .inner("attention.k_lin", "attention.fc_k")
      .inner("attention.v_lin", "attention.fc_v")
      .inner("attention.out_lin", "attention.fc_o")
      .inner("sa_layer_norm", "attention_norm")
      .inner("ffn.lin1", "feed_forward.fc_in")
      .inner("ffn.lin2", "feed_forward.fc_out")
      .inner("output_layer_norm", "feed_forward_norm")
      .layers("transformer.layer")
      .without({"embeddings.position_ids", "vocab_transform", "vocab_layer_norm", "vocab_projector",
                "pre_classifier", "classifier", "qa_outputs"});
}

NameMap modernbert() {
  return EncoderNames("model.")
      .outer("embeddings.tok_embeddings", "token_embedding")
      .outer("embeddings.norm", "embedding_norm")
      .outer("final_norm", "stack.final_norm")
      .split("attn.Wqkv", {"attention.fc_q", "attention.fc_k", "attention.fc_v"})
      .split("mlp.Wi", {"feed_forward.fc_gate", "feed_forward.fc_in"})
      .inner("attn.Wo", "attention.fc_o")
      .inner("mlp.Wo", "feed_forward.fc_out")
      .inner("attn_norm", "attention_norm")
      .inner("mlp_norm", "feed_forward_norm")
      .layers("layers")
      .without({"head", "decoder", "classifier"});
}

NameMap vit() {
  return vit_names("vit.")
      .inner("intermediate.dense", "feed_forward.fc_in")
      .inner("output.dense", "feed_forward.fc_out")
      .inner("layernorm_before", "attention_norm")
      .inner("layernorm_after", "feed_forward_norm")
      .without({"embeddings.mask_token", "pooler", "classifier", "decoder"});
}

NameMap dinov2(bool gated) {
  return dinov2_names("dinov2.", gated).without({"embeddings.mask_token", "classifier"});
}

NameMap dinov2_with_registers(bool gated) {
  return dinov2_names("dinov2_with_registers.", gated)
      .without({"embeddings.mask_token", "classifier"});
}

NameMap clip_text() {
  return with_projection(text_tower({"vision_model", "visual_projection", "logit_scale"}),
                         "text_model", "text_projection");
}

NameMap clip_image() {
  const auto others = without({"text_model", "text_projection", "logit_scale", "classifier"});
  return with_projection(image_tower(others), "vision_model", "visual_projection")
      .unsqueeze("embeddings.class_embedding", "class_token", 2)
      .rename("pre_layrnorm", "embedding_norm")
      .rename("post_layernorm", "pooled_norm");
}

NameMap siglip_text() {
  return text_tower({"vision_model", "logit_scale", "logit_bias"}).rename("head", "projection");
}

NameMap siglip_image() {
  // Parts of the pooling have the names of those of a block.
  auto own =
      without({"text_model", "logit_scale", "logit_bias", "classifier"})
          .rename("head.probe", "attention_pooling.probe")
          .split("head.attention.in_proj_weight", {"attention_pooling.attention.fc_q.weight",
                                                   "attention_pooling.attention.fc_k.weight",
                                                   "attention_pooling.attention.fc_v.weight"})
          .split("head.attention.in_proj_bias",
                 {"attention_pooling.attention.fc_q.bias", "attention_pooling.attention.fc_k.bias",
                  "attention_pooling.attention.fc_v.bias"})
          .rename("head.attention.out_proj", "attention_pooling.attention.fc_o")
          .rename("head.layernorm", "attention_pooling.norm")
          .rename("head.mlp.fc1", "attention_pooling.feed_forward.fc_in")
          .rename("head.mlp.fc2", "attention_pooling.feed_forward.fc_out");
  return image_tower(std::move(own)).rename("post_layernorm", "stack.final_norm");
}

}  // namespace heed::name_maps
