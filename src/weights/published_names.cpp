// SPDX-License-Identifier: BSD-3-Clause
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

NameMap gpt_oss() {
  const auto layout = StackLayout().transposed(true);
  const auto in_turns = StackLayout(layout).interleaved(true);
  const std::string experts = "feed_forward.experts";
  return llama_norms(llama_attention(llama_frame()))
      .rename("mlp.router", "feed_forward.router")
      .unstack("mlp.experts.gate_up_proj", experts, {"fc_gate.weight", "fc_in.weight"}, in_turns)
      .unstack("mlp.experts.gate_up_proj_bias", experts, {"fc_gate.bias", "fc_in.bias"}, in_turns)
      .unstack("mlp.experts.down_proj", experts, {"fc_out.weight"}, layout)
      .unstack("mlp.experts.down_proj_bias", experts, {"fc_out.bias"}, layout);
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

NameMap deepseek_attention() { return deepseek_projections(NameMap()).rename("o_proj", "fc_o"); }

}  // namespace heed::name_maps
