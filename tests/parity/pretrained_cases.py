# SPDX-License-Identifier: BSD-3-Clause
"""The models that pretrained.py writes: small ones of every family that load_pretrained reads.

The cases of a family differ in every field of config.json that changes what the model computes.
"""

import transformers as hf

DECODER = {"vocab_size": 199, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
           "num_attention_heads": 4, "max_position_embeddings": 128, "initializer_range": 0.2}
GROUPED = {**DECODER, "num_key_value_heads": 2, "pad_token_id": None}
SMALL_SHAPE = {**DECODER, "vocab_size": 151, "hidden_size": 48, "intermediate_size": 80,
               "num_hidden_layers": 4, "num_attention_heads": 6, "max_position_embeddings": 100}
SMALL = {**SMALL_SHAPE, "num_key_value_heads": 6, "pad_token_id": None}


def rope(theta: float, kind: str = "default", **parameters) -> dict:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}


YARN = rope(10000.0, "yarn", factor=4.0, original_max_position_embeddings=16)
FACTORS = {"short_factor": [1.0, 1.1, 1.25, 1.5], "long_factor": [1.0, 2.5, 6.0, 11.0]}
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def llama() -> dict:
    return {
        "plain": hf.LlamaConfig(**GROUPED, rms_norm_eps=1e-2, **rope(500000.0)),
        "biases": hf.LlamaConfig(**SMALL, head_dim=24, attention_bias=True, mlp_bias=True,
                                 hidden_act="gelu", tie_word_embeddings=True, rms_norm_eps=0.05,
                                 **rope(10000.0, "linear", factor=2.5)),
        "llama3": hf.LlamaConfig(**{**GROUPED, "num_key_value_heads": 1}, hidden_act="gelu_new",
                                 attention_bias=True, **rope(
                                     500000.0, "llama3", factor=8.0, low_freq_factor=1.0,
                                     high_freq_factor=4.0, original_max_position_embeddings=32)),
        "dynamic": hf.LlamaConfig(**{**GROUPED, "max_position_embeddings": 24}, hidden_act="relu",
                                  **rope(10000.0, "dynamic", factor=3.0)),
        "yarn": hf.LlamaConfig(**GROUPED, hidden_act="gelu_pytorch_tanh", mlp_bias=True,
                               **rope(20000.0, "yarn", factor=6.0, attention_factor=1.1,
                                      beta_fast=8.0, beta_slow=0.5,
                                      original_max_position_embeddings=200)),
    }


def mistral() -> dict:
    return {
        "window": hf.MistralConfig(**GROUPED, head_dim=24, sliding_window=7, rms_norm_eps=1e-2,
                                   **rope(1000000.0)),
        "whole": hf.MistralConfig(**SMALL, sliding_window=None, hidden_act="gelu",
                                  tie_word_embeddings=True, rms_norm_eps=0.05, **YARN),
    }


def qwen2() -> dict:
    return {
        "plain": hf.Qwen2Config(**GROUPED, use_sliding_window=False, sliding_window=5,
                                rms_norm_eps=1e-2, **rope(1000000.0)),
        "window": hf.Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=6,
                                 max_window_layers=2, tie_word_embeddings=True, rms_norm_eps=0.05,
                                 **YARN),
        "layers": hf.Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=9,
                                 layer_types=[LOCAL, GLOBAL, LOCAL], hidden_act="gelu",
                                 **rope(10000.0, "linear", factor=2.0)),
    }


def qwen3() -> dict:
    return {
        "plain": hf.Qwen3Config(**GROUPED, head_dim=24, tie_word_embeddings=True,
                                rms_norm_eps=1e-2, **rope(1000000.0)),
        "layers": hf.Qwen3Config(**SMALL, head_dim=16, attention_bias=True, hidden_act="relu",
                                 rms_norm_eps=0.05, use_sliding_window=True, sliding_window=6,
                                 layer_types=[LOCAL, GLOBAL, GLOBAL, LOCAL], **YARN),
        "window": hf.Qwen3Config(**GROUPED, head_dim=16, use_sliding_window=True, sliding_window=8,
                                 max_window_layers=1, hidden_act="gelu"),
    }


def phi3() -> dict:
    return {
        "window": hf.Phi3Config(**GROUPED, sliding_window=9, rms_norm_eps=1e-2,
                                partial_rotary_factor=0.5, **rope(20000.0)),
        # Sequences are longer than 16, but for the short ones.
        "long": hf.Phi3Config(**SMALL, original_max_position_embeddings=16, hidden_act="gelu",
                              rms_norm_eps=0.05, **rope(10000.0, "longrope", **FACTORS)),
        "short": hf.Phi3Config(**{**GROUPED, "max_position_embeddings": 256},
                               original_max_position_embeddings=100, tie_word_embeddings=True,
                               partial_rotary_factor=0.5, **rope(20000.0, "longrope", **FACTORS)),
    }


def stablelm() -> dict:
    return {
        "sequential": hf.StableLmConfig(**GROUPED, use_qkv_bias=True, layer_norm_eps=1e-2,
                                        partial_rotary_factor=0.25, **rope(10000.0)),
        "parallel": hf.StableLmConfig(**SMALL, use_parallel_residual=True, hidden_act="gelu",
                                      tie_word_embeddings=True, layer_norm_eps=0.05,
                                      partial_rotary_factor=0.5,
                                      **rope(50000.0, "linear", factor=2.0)),
    }


def gpt2() -> dict:
    shape = {"vocab_size": 199, "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 128,
             "initializer_range": 0.2}
    return {
        "plain": hf.GPT2Config(**shape, layer_norm_epsilon=1e-2),
        "scaled": hf.GPT2Config(vocab_size=151, n_embd=48, n_layer=4, n_head=6, n_positions=100,
                                n_inner=80, activation_function="relu", layer_norm_epsilon=0.05,
                                scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False),
        "unscaled": hf.GPT2Config(**{**shape, "initializer_range": 0.1}, n_inner=96,
                                  activation_function="gelu", scale_attn_weights=False),
    }


def gpt_neox() -> dict:
    return {
        "parallel": hf.GPTNeoXConfig(**DECODER, layer_norm_eps=1e-2, rotary_pct=0.25),
        "sequential": hf.GPTNeoXConfig(
            **SMALL_SHAPE, use_parallel_residual=False, attention_bias=False, hidden_act="gelu_new",
            layer_norm_eps=0.05, tie_word_embeddings=True, rotary_pct=1.0, rotary_emb_base=20000,
            rope_scaling={"rope_type": "linear", "factor": 2.0}),
    }


def gemma() -> dict:
    return {
        "plain": hf.GemmaConfig(**{**GROUPED, "num_key_value_heads": 1, "pad_token_id": 0},
                                head_dim=24, rms_norm_eps=1e-2, **rope(10000.0)),
        "biases": hf.GemmaConfig(**SMALL, head_dim=16, attention_bias=True, hidden_act="silu",
                                 rms_norm_eps=0.05, tie_word_embeddings=False,
                                 **rope(50000.0, "linear", factor=2.0)),
    }


def gemma2() -> dict:
    return {
        "plain": hf.Gemma2Config(**GROUPED, head_dim=24, query_pre_attn_scalar=40,
                                 sliding_window=7, attn_logit_softcapping=3.0,
                                 final_logit_softcapping=1.5, rms_norm_eps=1e-2, **rope(10000.0)),
        "uncapped": hf.Gemma2Config(**SMALL, head_dim=16, query_pre_attn_scalar=12,
                                    sliding_window=9, attn_logit_softcapping=None,
                                    final_logit_softcapping=None, attention_bias=True,
                                    hidden_activation="silu", tie_word_embeddings=False,
                                    rms_norm_eps=0.05, layer_types=[GLOBAL, LOCAL, LOCAL, GLOBAL],
                                    **rope(50000.0, "linear", factor=2.0)),
    }


def gemma3_text() -> dict:
    return {
        "plain": hf.Gemma3TextConfig(**GROUPED, head_dim=24, query_pre_attn_scalar=40,
                                     sliding_window=6, sliding_window_pattern=3,
                                     rms_norm_eps=1e-2),
        "capped": hf.Gemma3TextConfig(
            **SMALL, head_dim=16, query_pre_attn_scalar=12, sliding_window=9, attention_bias=True,
            final_logit_softcapping=2.0, hidden_activation="gelu", tie_word_embeddings=False,
            rms_norm_eps=0.05, layer_types=[GLOBAL, LOCAL, LOCAL, GLOBAL], rope_parameters={
                GLOBAL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 200000.0},
                LOCAL: {"rope_type": "default", "rope_theta": 5000.0}}),
    }


def gemma3() -> dict:
    """Text models in folders that also have a vision tower."""
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    return {
        "plain": hf.Gemma3Config(
            vision_config=vision, mm_tokens_per_image=4,
            text_config={**GROUPED, "head_dim": 24, "query_pre_attn_scalar": 40,
                         "sliding_window": 6, "sliding_window_pattern": 3, "rms_norm_eps": 1e-2}),
        "untied": hf.Gemma3Config(
            vision_config=vision, mm_tokens_per_image=4, tie_word_embeddings=False,
            text_config={**SMALL, "head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": 9,
                         "attention_bias": True, "hidden_activation": "gelu",
                         "rms_norm_eps": 0.05, "layer_types": [GLOBAL, LOCAL, LOCAL, GLOBAL],
                         "rope_parameters": {
                             GLOBAL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 200000.0},
                             LOCAL: {"rope_type": "default", "rope_theta": 5000.0}}}),
    }


def olmo2() -> dict:
    return {
        "plain": hf.Olmo2Config(**GROUPED, rms_norm_eps=1e-2, **rope(500000.0)),
        "biases": hf.Olmo2Config(**SMALL, attention_bias=True, hidden_act="gelu",
                                 tie_word_embeddings=True, rms_norm_eps=0.05, **YARN),
    }


def olmo3() -> dict:
    return {
        "plain": hf.Olmo3Config(**{**GROUPED, "num_hidden_layers": 4}, sliding_window=7,
                                rms_norm_eps=1e-2),
        "layers": hf.Olmo3Config(
            **SMALL, attention_bias=True, hidden_act="gelu", tie_word_embeddings=True,
            sliding_window=9, rms_norm_eps=0.05, layer_types=[GLOBAL, LOCAL, LOCAL, GLOBAL],
            rope_parameters={
                GLOBAL: YARN["rope_parameters"],
                LOCAL: {"rope_type": "default", "rope_theta": 5000.0}}),
    }


def starcoder2() -> dict:
    return {
        "window": hf.Starcoder2Config(**GROUPED, sliding_window=7, norm_epsilon=1e-2,
                                      **rope(100000.0)),
        "unbiased": hf.Starcoder2Config(**SMALL, use_bias=False, hidden_act="relu",
                                        tie_word_embeddings=False, norm_epsilon=0.05, **YARN),
    }


def cohere2() -> dict:
    return {
        "plain": hf.Cohere2Config(**{**GROUPED, "num_hidden_layers": 4}, sliding_window=7,
                                  layer_norm_eps=1e-2, **rope(50000.0)),
        "layers": hf.Cohere2Config(**SMALL, attention_bias=True, hidden_act="gelu",
                                   tie_word_embeddings=False, logit_scale=0.3, sliding_window=9,
                                   layer_norm_eps=0.05, layer_types=[GLOBAL, LOCAL, LOCAL, GLOBAL],
                                   **rope(10000.0, "linear", factor=2.0)),
    }


def granite() -> dict:
    return {
        "plain": hf.GraniteConfig(**GROUPED, embedding_multiplier=12.0, logits_scaling=8.0,
                                  residual_multiplier=0.22, attention_multiplier=0.125,
                                  tie_word_embeddings=True, rms_norm_eps=1e-2, **rope(10000.0)),
        "biases": hf.GraniteConfig(**SMALL, embedding_multiplier=2.5, logits_scaling=0.6,
                                   residual_multiplier=1.3, attention_multiplier=0.2,
                                   attention_bias=True, mlp_bias=True, hidden_act="gelu",
                                   rms_norm_eps=0.05, **YARN),
    }


def glm4() -> dict:
    return {
        "plain": hf.Glm4Config(**GROUPED, head_dim=24, rms_norm_eps=1e-2, **rope(10000.0)),
        "unbiased": hf.Glm4Config(**SMALL, head_dim=16, attention_bias=False, hidden_act="gelu",
                                  tie_word_embeddings=True, rms_norm_eps=0.05,
                                  **rope(50000.0, "linear", factor=2.0,
                                         partial_rotary_factor=0.25)),
    }


def smollm3() -> dict:
    return {
        "plain": hf.SmolLM3Config(**GROUPED, no_rope_layer_interval=2, rms_norm_eps=1e-2,
                                  **rope(2000000.0)),
        "biases": hf.SmolLM3Config(**SMALL, no_rope_layers=[0, 1, 1, 0], attention_bias=True,
                                   mlp_bias=True, hidden_act="gelu", tie_word_embeddings=False,
                                   rms_norm_eps=0.05, use_sliding_window=True, sliding_window=6,
                                   **YARN),
    }


def mixtral() -> dict:
    return {
        "window": hf.MixtralConfig(**GROUPED, num_local_experts=6, num_experts_per_tok=2,
                                   sliding_window=7, rms_norm_eps=1e-2, **rope(1000000.0)),
        "whole": hf.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=4, head_dim=16,
                                  hidden_act="gelu", tie_word_embeddings=True, rms_norm_eps=0.05,
                                  **YARN),
    }


def olmoe() -> dict:
    return {
        "plain": hf.OlmoeConfig(**GROUPED, num_experts=6, num_experts_per_tok=3, rms_norm_eps=1e-2,
                                eos_token_id=2, **rope(20000.0)),
        "normalized": hf.OlmoeConfig(**SMALL, num_experts=5, num_experts_per_tok=2,
                                     norm_topk_prob=True, attention_bias=True, hidden_act="gelu",
                                     tie_word_embeddings=True, rms_norm_eps=0.05, eos_token_id=2,
                                     **YARN),
    }


def qwen2_moe() -> dict:
    return {
        "plain": hf.Qwen2MoeConfig(**GROUPED, num_experts=6, num_experts_per_tok=3,
                                   moe_intermediate_size=40, shared_expert_intermediate_size=56,
                                   rms_norm_eps=1e-2, **rope(1000000.0)),
        "layers": hf.Qwen2MoeConfig(**SMALL, num_experts=5, num_experts_per_tok=1,
                                    moe_intermediate_size=24, shared_expert_intermediate_size=32,
                                    norm_topk_prob=True, qkv_bias=False, mlp_only_layers=[1],
                                    use_sliding_window=True, sliding_window=6, max_window_layers=3,
                                    hidden_act="gelu", tie_word_embeddings=True, rms_norm_eps=0.05,
                                    **YARN),
    }


def qwen3_moe() -> dict:
    return {
        "plain": hf.Qwen3MoeConfig(**GROUPED, head_dim=24, num_experts=6, num_experts_per_tok=3,
                                   moe_intermediate_size=40, rms_norm_eps=1e-2, **rope(1000000.0)),
        "layers": hf.Qwen3MoeConfig(**SMALL, head_dim=16, num_experts=5, num_experts_per_tok=2,
                                    moe_intermediate_size=24, norm_topk_prob=True,
                                    decoder_sparse_step=2, mlp_only_layers=[3],
                                    use_sliding_window=True, sliding_window=6, attention_bias=True,
                                    hidden_act="relu", tie_word_embeddings=True, rms_norm_eps=0.05,
                                    **YARN),
    }


def gpt_oss() -> dict:
    return {
        "plain": hf.GptOssConfig(**GROUPED, head_dim=16, num_local_experts=6, num_experts_per_tok=3,
                                 sliding_window=7, swiglu_limit=1.5, rms_norm_eps=1e-2,
                                 **rope(150000.0, "yarn", factor=4.0, truncate=False,
                                        original_max_position_embeddings=200)),
        "layers": hf.GptOssConfig(**SMALL, head_dim=12, num_local_experts=4, num_experts_per_tok=1,
                                  sliding_window=10, swiglu_limit=0.6, swiglu_alpha=0.9,
                                  attention_bias=False, tie_word_embeddings=True, rms_norm_eps=0.05,
                                  layer_types=[GLOBAL, LOCAL, LOCAL, GLOBAL], **YARN),
        # Of larger numbers, transformers itself rounds scores by 7e-6.
        "default": hf.GptOssConfig(**{**GROUPED, "max_position_embeddings": 8192,
                                      "initializer_range": 0.1},
                                   num_local_experts=3, num_experts_per_tok=2, sliding_window=5),
    }


LATENT = {"kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
SMALL_LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 12,
                "v_head_dim": 14}


def deepseek_v2() -> dict:
    return {
        "plain": hf.DeepseekV2Config(
            **{**GROUPED, "num_key_value_heads": 4}, **LATENT, q_lora_rank=None,
            first_k_dense_replace=1, n_routed_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=40, n_shared_experts=2, routed_scaling_factor=1.7,
            rms_norm_eps=1e-2, **rope(20000.0)),
        "groups": hf.DeepseekV2Config(
            **SMALL, **SMALL_LATENT, q_lora_rank=24, first_k_dense_replace=2, n_routed_experts=9,
            num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=1,
            topk_method="group_limited_greedy", n_group=3, topk_group=2, attention_bias=True,
            mlp_bias=True, hidden_act="gelu", tie_word_embeddings=True, rms_norm_eps=0.05,
            **rope(10000.0, "yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7,
                   mscale_all_dim=1.5)),
    }


def deepseek_v3() -> dict:
    return {
        "plain": hf.DeepseekV3Config(
            **{**GROUPED, "num_key_value_heads": 4}, **LATENT, q_lora_rank=28,
            first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=40, n_shared_experts=1, n_group=2, topk_group=1,
            rms_norm_eps=1e-2, **rope(20000.0)),
        "unnormalized": hf.DeepseekV3Config(
            **SMALL, **SMALL_LATENT, q_lora_rank=None, first_k_dense_replace=2,
            n_routed_experts=9, num_experts_per_tok=2, moe_intermediate_size=24,
            n_shared_experts=2, n_group=3, topk_group=2, norm_topk_prob=False,
            routed_scaling_factor=1.3, rope_interleave=False, attention_bias=True,
            hidden_act="gelu", tie_word_embeddings=True, rms_norm_eps=0.05,
            **rope(10000.0, "yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0,
                   mscale_all_dim=1.0)),
    }


def bert() -> dict:
    return {
        "plain": hf.BertConfig(**DECODER, layer_norm_eps=1e-2),
        "masked_lm": hf.BertConfig(**SMALL_SHAPE, hidden_act="relu", layer_norm_eps=0.05,
                                   type_vocab_size=3),
    }


def roberta() -> dict:
    return {
        "plain": hf.RobertaConfig(**DECODER, layer_norm_eps=1e-2, type_vocab_size=1),
        "masked_lm": hf.RobertaConfig(**SMALL_SHAPE, hidden_act="gelu_new", layer_norm_eps=0.05,
                                      pad_token_id=3, type_vocab_size=2),
    }


def xlm_roberta() -> dict:
    return {
        "plain": hf.XLMRobertaConfig(**DECODER, layer_norm_eps=1e-2, type_vocab_size=1),
        "masked_lm": hf.XLMRobertaConfig(**SMALL_SHAPE, hidden_act="gelu_new", layer_norm_eps=0.05,
                                         pad_token_id=3, type_vocab_size=2),
    }


def camembert() -> dict:
    return {
        "plain": hf.CamembertConfig(**DECODER, layer_norm_eps=1e-2, type_vocab_size=1),
        "masked_lm": hf.CamembertConfig(**SMALL_SHAPE, hidden_act="relu", layer_norm_eps=0.05,
                                        pad_token_id=3, type_vocab_size=2),
    }


def electra() -> dict:
    return {
        "plain": hf.ElectraConfig(**DECODER, embedding_size=40, layer_norm_eps=1e-2),
        "masked_lm": hf.ElectraConfig(**SMALL_SHAPE, embedding_size=48, hidden_act="relu",
                                      layer_norm_eps=0.05, type_vocab_size=3),
    }


def distilbert() -> dict:
    shape = {"vocab_size": 199, "dim": 64, "hidden_dim": 96, "n_heads": 4, "n_layers": 3,
             "max_position_embeddings": 128, "initializer_range": 0.2}
    return {
        "plain": hf.DistilBertConfig(**shape),
        "masked_lm": hf.DistilBertConfig(vocab_size=151, dim=48, hidden_dim=80, n_heads=6,
                                         n_layers=4, max_position_embeddings=100,
                                         initializer_range=0.2, activation="relu",
                                         sinusoidal_pos_embds=True),
    }


def modernbert() -> dict:
    ids = {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1,
           "eos_token_id": 2}
    return {
        "plain": hf.ModernBertConfig(**{**DECODER, "num_hidden_layers": 4}, **ids,
                                     local_attention=8, norm_eps=1e-2),
        "masked_lm": hf.ModernBertConfig(
            **SMALL_SHAPE, **ids, local_attention=12, norm_eps=0.05, norm_bias=True,
            attention_bias=True, mlp_bias=True, hidden_activation="silu",
            layer_types=[LOCAL, GLOBAL, LOCAL, LOCAL],
            rope_parameters={GLOBAL: {"rope_type": "default", "rope_theta": 40000.0},
                             LOCAL: {"rope_type": "default", "rope_theta": 5000.0}}),
        "relu": hf.ModernBertConfig(**DECODER, **ids, local_attention=6, hidden_activation="relu"),
    }


def vit() -> dict:
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
             "num_attention_heads": 4, "initializer_range": 0.2}
    return {
        "plain": hf.ViTConfig(**shape, image_size=16, patch_size=4, layer_norm_eps=1e-2),
        "classifier": hf.ViTConfig(hidden_size=48, intermediate_size=80, num_hidden_layers=4,
                                   num_attention_heads=6, initializer_range=0.2, image_size=18,
                                   patch_size=6, num_channels=1, qkv_bias=False,
                                   hidden_act="relu", layer_norm_eps=0.05),
    }


DINOV2 = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "mlp_ratio": 2,
          "initializer_range": 0.2, "image_size": 16, "patch_size": 4, "layer_norm_eps": 1e-2}
# Three rows and three columns of pixels fill no patch.
SMALL_DINOV2 = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "mlp_ratio": 3,
                "initializer_range": 0.2, "image_size": 21, "patch_size": 6, "num_channels": 1,
                "qkv_bias": False, "layer_norm_eps": 0.05, "layerscale_value": 0.3}


def dinov2() -> dict:
    return {
        "plain": hf.Dinov2Config(**DINOV2),
        "classifier": hf.Dinov2Config(**SMALL_DINOV2, hidden_act="relu"),
        "gated": hf.Dinov2Config(**{**DINOV2, "num_hidden_layers": 2}, use_swiglu_ffn=True,
                                 use_mask_token=False),
    }


def dinov2_with_registers() -> dict:
    return {
        "plain": hf.Dinov2WithRegistersConfig(**DINOV2, num_register_tokens=3),
        "gated": hf.Dinov2WithRegistersConfig(**SMALL_DINOV2, use_swiglu_ffn=True,
                                              num_register_tokens=2),
        "relu": hf.Dinov2WithRegistersConfig(**SMALL_DINOV2, hidden_act="relu"),
    }


DECODERS = [llama, mistral, qwen2, qwen3, phi3, stablelm, gpt2, gpt_neox, gemma, gemma2,
            gemma3_text, gemma3, olmo2, olmo3, starcoder2, cohere2, granite, glm4, smollm3,
            mixtral, olmoe, qwen2_moe, qwen3_moe, gpt_oss, deepseek_v2, deepseek_v3]
IMAGE_ENCODERS = [vit, dinov2, dinov2_with_registers]
TEXT_ENCODERS = [bert, roberta, xlm_roberta, camembert, electra, distilbert, modernbert]
ROBERTAS = {"roberta", "xlm-roberta", "camembert"}  # which count positions from their padding on
# Encoders that are saved with a head, as most published ones are: their tensors have a prefix.
WITH_HEAD = {
    "bert-masked_lm": hf.AutoModelForMaskedLM, "roberta-masked_lm": hf.AutoModelForMaskedLM,
    "xlm-roberta-masked_lm": hf.AutoModelForMaskedLM,
    "camembert-masked_lm": hf.AutoModelForMaskedLM, "electra-masked_lm": hf.AutoModelForMaskedLM,
    "distilbert-masked_lm": hf.AutoModelForMaskedLM,
    "modernbert-masked_lm": hf.AutoModelForMaskedLM,
    "vit-classifier": hf.AutoModelForImageClassification,
    "dinov2-classifier": hf.AutoModelForImageClassification,
}


def cases() -> dict:
    """Name -> (kind, config). Names are those of a family, perhaps with hyphens, and a variant."""
    return {f"{config.model_type}-{variant}": (kind, config)
            for kind, families in (("decoder", DECODERS), ("text_encoder", TEXT_ENCODERS),
                                   ("image_encoder", IMAGE_ENCODERS))
            for family in families for variant, config in family().items()}


def auto_class(name: str, kind: str) -> type:
    if name in WITH_HEAD:
        return WITH_HEAD[name]
    return hf.AutoModelForCausalLM if kind == "decoder" else hf.AutoModel


# What models of any family have, and what changes no number.
SIZES = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
         "num_attention_heads", "max_position_embeddings", "n_embd", "n_layer", "n_head",
         "n_positions", "dim", "hidden_dim", "n_heads", "n_layers", "pooler_output_size",
         "num_local_experts", "num_experts", "num_experts_per_tok", "mlp_ratio",
         "num_register_tokens"}
IMAGES = {"vision_config", "mm_tokens_per_image"}
BACKBONES = {"out_features", "out_indices", "stage_names"}
INERT = {*IMAGES, *BACKBONES, "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id",
         "cls_token_id", "sep_token_id", "transformers_version", "architectures", "dtype",
         "model_type",
         "_sliding_window_pattern"}


def exercised(config: hf.PreTrainedConfig) -> list:
    """The fields of config.json that are not as in the family's default."""
    text = config.get_text_config()
    rotary = getattr(text, "rope_parameters", None) or {}
    parts = [part for part in rotary.values() if isinstance(part, dict)] or [rotary]
    fields = set()
    for own in [config] if text is config else [config, text]:
        default = type(own)().to_dict()
        fields |= {field for field, value in own.to_dict().items()
                   if value != default.get(field) and field not in SIZES | INERT | {"text_config"}}
    for part in parts:
        fields |= {f"rope_type {value}" if field == "rope_type" else field
                   for field, value in part.items()}
    return sorted(fields - {"rope_parameters"})
