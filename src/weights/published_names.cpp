#include <heed/name_maps.h>

#include <string>
#include <utility>
#include <vector>

namespace heed::name_maps {

namespace {

/// The names that all spellings of GPT-2 share; they differ in which matrices are transposed.
NameMap gpt() {
  return NameMap()
      .tied("lm_head", {"transformer.wte", "wte"})
      .rename_any({"transformer.wte", "wte"}, "token_embedding")
      .rename_any({"transformer.wpe", "wpe"}, "position_embedding")
      .drop("attn.bias")  // causal masks of older files
      .rename("ln_1", "attention_norm")
      .rename("ln_2", "feed_forward_norm")
      .rename_any({"transformer.ln_f", "ln_f"}, "stack.final_norm")
      .inside("lm_head", "head")
      .inside("transformer.h", "stack.blocks")
      .inside("h", "stack.blocks");
}

/// The names of the two outermost parts of a model with Llama's names.
struct LlamaParts {
  std::string model, head;
};

/// Adds the names that all models with Llama's names share, of which a file has those of one of
/// `spellings`. The models differ in projections and in norms.
NameMap llama_frame(NameMap map = NameMap(),
                    const std::vector<LlamaParts>& spellings = {{"model", "lm_head"}}) {
  std::vector<std::string> embeddings, norms;
  for (const auto& [model, head] : spellings) {
    embeddings.push_back(model + ".embed_tokens");
    norms.push_back(model + ".norm");
    map.tied(head, {embeddings.back()});
    map.inside(head, "head").inside(model + ".layers", "stack.blocks");
  }
  return map.rename_any(std::move(embeddings), "token_embedding")
      .rename_any(std::move(norms), "stack.final_norm")
      .drop("rotary_emb.inv_freq")  // buffers of older files
      .rename("self_attn.o_proj", "attention.fc_o")
      .inside("self_attn", "attention");  // for q_norm and k_norm
}

NameMap llama_attention(NameMap frame) {
  return frame.rename("self_attn.q_proj", "attention.fc_q")
      .rename("self_attn.k_proj", "attention.fc_k")
      .rename("self_attn.v_proj", "attention.fc_v");
}

NameMap llama_mlp(NameMap names) {
  return names.rename("mlp.gate_proj", "feed_forward.fc_gate")
      .rename("mlp.up_proj", "feed_forward.fc_in")
      .rename("mlp.down_proj", "feed_forward.fc_out");
}

NameMap llama_projections(NameMap frame = llama_frame()) {
  return llama_mlp(llama_attention(std::move(frame)));
}

/// Adds the names of DeepSeek's projections, but that of the output.
NameMap deepseek_projections(NameMap names) {
  return names.inside("q_proj", "fc_q")
      .inside("q_a_proj", "fc_q_down")
      .inside("q_a_layernorm", "q_norm")
      .inside("q_b_proj", "fc_q_up")
      .rename("kv_a_proj_with_mqa", "fc_kv_down")
      .rename("kv_a_layernorm", "kv_norm")
      .rename("kv_b_proj", "fc_kv_up");
}

/// Adds the names of a feed-forward layer whose gate is packed.
NameMap llama_packed_gate(NameMap frame) {
  return frame.split("mlp.gate_up_proj", {"feed_forward.fc_gate", "feed_forward.fc_in"})
      .rename("mlp.down_proj", "feed_forward.fc_out");
}

/// Adds Gemma's norms on both sides of each layer.
NameMap gemma_norms(NameMap projections) {
  return projections.rename("input_layernorm", "attention_norm")
      .rename("post_attention_layernorm", "attention_output_norm")
      .rename("pre_feedforward_layernorm", "feed_forward_norm")
      .rename("post_feedforward_layernorm", "feed_forward_output_norm");
}

NameMap llama_norms(NameMap names) {
  return names.rename("input_layernorm", "attention_norm")
      .rename("post_attention_layernorm", "feed_forward_norm");
}

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

/// The map of an encoder of images with DINOv2's names.
EncoderNames dinov2_names(const std::string& prefix, bool gated) {
  EncoderNames names(prefix);
  names.outer("embeddings.cls_token", "class_token")
      .outer("embeddings.register_tokens", "registers")
      .outer("embeddings.position_embeddings", "position_embedding")
      .outer("embeddings.patch_embeddings.projection", "patch_embedding")
      .inner("attention.attention.query", "attention.fc_q")
      .inner("attention.attention.key", "attention.fc_k")
      .inner("attention.attention.value", "attention.fc_v")
      .inner("attention.output.dense", "attention.fc_o")
      .inner("norm1", "attention_norm")
      .inner("norm2", "feed_forward_norm")
      .inner("layer_scale1.lambda1", "attention_layer_scale")
      .inner("layer_scale2.lambda1", "feed_forward_layer_scale")
      .outer("layernorm", "stack.final_norm")
      .layers("encoder.layer");
  if (gated) {
    return names.split("mlp.weights_in", {"feed_forward.fc_gate", "feed_forward.fc_in"})
        .inner("mlp.weights_out", "feed_forward.fc_out");
  }
  return names.inner("mlp.fc1", "feed_forward.fc_in").inner("mlp.fc2", "feed_forward.fc_out");
}

/// Adds the names that CLIP's and SigLIP's encoders share. Those of a pair are inside `prefix`, and
/// those of the tower alone may be.
NameMap tower(NameMap map, const std::string& prefix) {
  return map.drop("embeddings.position_ids")  // a buffer of older files
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

NameMap llama() { return llama_norms(llama_projections()); }

NameMap mixtral() {
  return llama_norms(llama_projections())
      .rename("block_sparse_moe.gate", "feed_forward.router")
      .inside("block_sparse_moe.experts", "feed_forward.experts")
      .inside("w1", "fc_gate")
      .inside("w3", "fc_in")
      .inside("w2", "fc_out");
}

NameMap qwen3_moe() {
  return llama_norms(llama_projections())
      .rename("mlp.gate", "feed_forward.router")
      .rename("mlp.shared_expert_gate", "feed_forward.fc_shared_gate")
      .inside("mlp.experts", "feed_forward.experts")
      .inside("mlp.shared_expert", "feed_forward.shared")
      .inside("gate_proj", "fc_gate")
      .inside("up_proj", "fc_in")
      .inside("down_proj", "fc_out");
}

NameMap deepseek() {
  return deepseek_projections(llama_norms(llama_mlp(llama_frame())))
      .rename("mlp.gate.e_score_correction_bias", "feed_forward.choice_bias")
      .rename("mlp.gate", "feed_forward.router")
      .inside("mlp.experts", "feed_forward.experts")
      .inside("mlp.shared_experts", "feed_forward.shared")
      .inside("gate_proj", "fc_gate")
      .inside("up_proj", "fc_in")
      .inside("down_proj", "fc_out");
}

NameMap phi3() {
  return llama_norms(
      llama_packed_gate(llama_frame())
          .split("self_attn.qkv_proj", {"attention.fc_q", "attention.fc_k", "attention.fc_v"}));
}

NameMap gemma2() { return gemma_norms(llama_projections()); }

NameMap gemma3() {
  // Parts of the vision tower have the names of those of the text model.
  const auto text = NameMap().drop("vision_tower").drop("multi_modal_projector");
  return gemma_norms(llama_projections(
      llama_frame(text, {{"language_model.model", "language_model.lm_head"},
                         {"model.language_model", "lm_head"}})));  // since transformers 4.52
}

NameMap olmo2() {
  return llama_projections()
      .rename("post_attention_layernorm", "attention_norm")
      .rename("post_feedforward_layernorm", "feed_forward_norm");
}

NameMap starcoder2() {
  return llama_norms(llama_attention(llama_frame())
                         .rename("mlp.c_fc", "feed_forward.fc_in")
                         .rename("mlp.c_proj", "feed_forward.fc_out"));
}

NameMap glm4() {
  return llama_packed_gate(llama_attention(llama_frame()))
      .rename("input_layernorm", "attention_norm")
      .rename("post_self_attn_layernorm", "attention_output_norm")
      .rename("post_attention_layernorm", "feed_forward_norm")
      .rename("post_mlp_layernorm", "feed_forward_output_norm");
}

NameMap gpt2() {
  return gpt()
      .drop("attn.masked_bias")
      .transpose_split("attn.c_attn", {"attention.fc_q", "attention.fc_k", "attention.fc_v"})
      .transpose("attn.c_proj", "attention.fc_o")
      .transpose("mlp.c_fc", "feed_forward.fc_in")
      .transpose("mlp.c_proj", "feed_forward.fc_out");
}

NameMap nanogpt() {
  return gpt()
      .split("attn.c_attn", {"attention.fc_q", "attention.fc_k", "attention.fc_v"})
      .rename("attn.c_proj", "attention.fc_o")
      .rename("mlp.c_fc", "feed_forward.fc_in")
      .rename("mlp.c_proj", "feed_forward.fc_out");
}

NameMap gpt_neox(int64_t heads) {
  return NameMap()
      .tied("embed_out", {"gpt_neox.embed_in"})
      .tied("lm_head", {"gpt_neox.embed_in"})  // since transformers 5
      .rename("gpt_neox.embed_in", "token_embedding")
      .drop("attention.bias")  // causal masks and buffers of older files
      .drop("attention.masked_bias")
      .drop("rotary_emb.inv_freq")
      .rename("input_layernorm", "attention_norm")
      .split_heads("attention.query_key_value",
                   {"attention.fc_q", "attention.fc_k", "attention.fc_v"}, heads)
      .rename("attention.dense", "attention.fc_o")
      .rename("post_attention_layernorm", "feed_forward_norm")
      .rename("mlp.dense_h_to_4h", "feed_forward.fc_in")
      .rename("mlp.dense_4h_to_h", "feed_forward.fc_out")
      .rename("gpt_neox.final_layer_norm", "stack.final_norm")
      .inside("embed_out", "head")
      .inside("lm_head", "head")
      .inside("gpt_neox.layers", "stack.blocks");
}

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
  return EncoderNames("vit.")
      .outer("embeddings.cls_token", "class_token")
      .outer("embeddings.position_embeddings", "position_embedding")
      .outer("embeddings.patch_embeddings.projection", "patch_embedding")
      .inner("attention.attention.query", "attention.fc_q")
      .inner("attention.attention.key", "attention.fc_k")
      .inner("attention.attention.value", "attention.fc_v")
      .inner("attention.output.dense", "attention.fc_o")
      .inner("intermediate.dense", "feed_forward.fc_in")
      .inner("output.dense", "feed_forward.fc_out")
      .inner("layernorm_before", "attention_norm")
      .inner("layernorm_after", "feed_forward_norm")
      .outer("layernorm", "stack.final_norm")
      .layers("encoder.layer")
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
  auto own = without({"text_model", "logit_scale", "logit_bias", "classifier"})
                 .rename("head.probe", "attention_pooling.probe")
                 .split("head.attention.in_proj_weight", {"attention_pooling.attention.fc_q.weight",
                                                          "attention_pooling.attention.fc_k.weight",
                                                          "attention_pooling.attention.fc_v.weight"})
                 .split("head.attention.in_proj_bias", {"attention_pooling.attention.fc_q.bias",
                                                        "attention_pooling.attention.fc_k.bias",
                                                        "attention_pooling.attention.fc_v.bias"})
                 .rename("head.attention.out_proj", "attention_pooling.attention.fc_o")
                 .rename("head.layernorm", "attention_pooling.norm")
                 .rename("head.mlp.fc1", "attention_pooling.feed_forward.fc_in")
                 .rename("head.mlp.fc2", "attention_pooling.feed_forward.fc_out");
  return image_tower(std::move(own)).rename("post_layernorm", "stack.final_norm");
}

NameMap deepseek_attention() { return deepseek_projections(NameMap()).rename("o_proj", "fc_o"); }

}  // namespace heed::name_maps
