"""Changes of config.json: which pretrained_mutations.py makes of which case."""

from pretrained_cases import GLOBAL, LOCAL

DELETED = object()
EXTRA = {"frobnicate": 3, "quantization_config": {"quant_method": "gptq", "bits": 4}}
# Fields of files that older versions of transformers wrote, and that change no number.
OLD_INERT = {"_name_or_path": "somewhere/model", "torch_dtype": "float16", "return_dict": True,
             "output_attentions": False, "output_hidden_states": False, "use_cache": False,
             "id2label": {"0": "NO", "1": "YES"}, "label2id": {"NO": 0, "YES": 1},
             "chunk_size_feed_forward": 0, "is_encoder_decoder": False, "dtype": "bfloat16",
             "initializer_range": 0.7, "transformers_version": "4.40.0", "problem_type": None}
TOKEN_IDS = {"bos_token_id": 9, "eos_token_id": [7, 8]}
DROPOUT = {"attention_dropout": 0.4}

NEW_ROPE = "rope_parameters"


def old_rope(**fields) -> dict:
    return {NEW_ROPE: DELETED, **fields}


def activations(field: str, *others: str) -> list:
    return [{field: name} for name in others]


EIGHT_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}  # of the same matrices
GATED = ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "swish"]
PLAIN = ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"]
ROUTER_LOSS = [{"router_aux_loss_coef": 0.5}, {"output_router_logits": True}]

# Of these Python says what happens.
EVALUATED = {
    "llama-plain": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3}, {"rms_norm_eps": DELETED},
        {f"{NEW_ROPE}.rope_theta": 100.0}, {f"{NEW_ROPE}.rope_theta": 500000},
        {NEW_ROPE: {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0}},
        {"head_dim": None}, {"head_dim": DELETED},
        old_rope(), old_rope(rope_theta=500000.0), old_rope(rope_theta=500000, rope_scaling=None),
        old_rope(rope_theta=100.0, rope_scaling=None),
        {NEW_ROPE: {"rope_type": "longrope", "rope_theta": 500000.0, "factor": 4.0,
                    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 2.0],
                    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
                    "original_max_position_embeddings": 20}},
        {"max_position_embeddings": 4096}, {"architectures": DELETED},
        {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8},
        {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": None},
    ],
    "llama-biases": [
        {f"{NEW_ROPE}.factor": 5.0}, {NEW_ROPE: {"rope_type": "default", "rope_theta": 10000.0}},
        old_rope(rope_scaling={"type": "linear", "factor": 2.5}),
        old_rope(rope_scaling={"type": "linear", "factor": 2.5}, rope_theta=777.0),
        {"max_position_embeddings": 4096},
    ],
    "llama-llama3": [
        {f"{NEW_ROPE}.factor": 2.0}, {f"{NEW_ROPE}.low_freq_factor": 0.3},
        {f"{NEW_ROPE}.high_freq_factor": 20.0}, {f"{NEW_ROPE}.rope_theta": 300.0},
        {f"{NEW_ROPE}.original_max_position_embeddings": 9},
        {f"{NEW_ROPE}.original_max_position_embeddings": DELETED},
        old_rope(rope_theta=500000.0, rope_scaling={
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}),
        {"max_position_embeddings": 4096},
    ],
    "llama-dynamic": [
        {f"{NEW_ROPE}.factor": 6.0}, {"max_position_embeddings": 8},
        {"max_position_embeddings": 4096}, {f"{NEW_ROPE}.rope_theta": 300.0},
        old_rope(rope_theta=10000.0, rope_scaling={"type": "dynamic", "factor": 3.0}),
    ],
    "llama-yarn": [
        {f"{NEW_ROPE}.factor": 2.0}, {f"{NEW_ROPE}.attention_factor": 0.6},
        {f"{NEW_ROPE}.attention_factor": DELETED}, {f"{NEW_ROPE}.beta_fast": 2.0},
        {f"{NEW_ROPE}.beta_fast": DELETED}, {f"{NEW_ROPE}.beta_slow": 2.0},
        {f"{NEW_ROPE}.beta_slow": DELETED}, {f"{NEW_ROPE}.original_max_position_embeddings": 20},
        {f"{NEW_ROPE}.original_max_position_embeddings": DELETED},
        {f"{NEW_ROPE}.truncate": True},
        {f"{NEW_ROPE}.mscale": 0.7, f"{NEW_ROPE}.mscale_all_dim": 2.0},
        {f"{NEW_ROPE}.mscale": 0.7, f"{NEW_ROPE}.mscale_all_dim": 2.0,
         f"{NEW_ROPE}.attention_factor": DELETED},
        {f"{NEW_ROPE}.mscale": 0.7, f"{NEW_ROPE}.attention_factor": DELETED},
        {"max_position_embeddings": 4096},
        old_rope(rope_theta=20000.0, rope_scaling={
            "type": "yarn", "factor": 6.0, "attention_factor": 1.1, "beta_fast": 8.0,
            "beta_slow": 0.5, "original_max_position_embeddings": 200}),
    ],
    "mistral-window": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3}, {"sliding_window": 12},
        {"sliding_window": None}, {"sliding_window": DELETED}, {"sliding_window": 4096},
        {f"{NEW_ROPE}.rope_theta": 100.0}, old_rope(rope_theta=1000000.0),
        {"max_position_embeddings": 4096},
    ],
    "mistral-whole": [{"sliding_window": 5}, {f"{NEW_ROPE}.factor": 2.0}],
    "qwen2-plain": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3},
        {f"{NEW_ROPE}.rope_theta": 100.0}, old_rope(rope_theta=1000000.0),
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": DELETED,
         "max_window_layers": 1},
        {"sliding_window": 6}, {"max_window_layers": 1}, {"layer_types": DELETED},
        EIGHT_HEADS,
    ],
    "qwen2-window": [
        {"sliding_window": 11}, {"max_window_layers": 0},
        {"max_window_layers": 3, "layer_types": DELETED},
        {"max_window_layers": 4, "layer_types": DELETED},
        {"use_sliding_window": False, "layer_types": DELETED},
        {"layer_types": [LOCAL, GLOBAL, LOCAL, GLOBAL]}, {"layer_types": [GLOBAL] * 4},
    ],
    "qwen3-plain": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3},
        {f"{NEW_ROPE}.rope_theta": 100.0}, old_rope(rope_theta=1000000),
    ],
    "qwen3-layers": [
        {"sliding_window": 11}, {"layer_types": [LOCAL, LOCAL, GLOBAL, GLOBAL]},
        {"layer_types": DELETED}, {"use_sliding_window": False, "layer_types": DELETED},
        {f"{NEW_ROPE}.factor": 2.0},
    ],
    "phi3-window": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3}, {"sliding_window": 12},
        {"sliding_window": None}, {f"{NEW_ROPE}.rope_theta": 100.0},
        {f"{NEW_ROPE}.partial_rotary_factor": 0.25, "partial_rotary_factor": 0.25},
        old_rope(rope_theta=20000.0), old_rope(rope_theta=20000.0, rope_scaling=None),
        {NEW_ROPE: {"rope_theta": 20000.0, "rope_type": "default"}},
        {"max_position_embeddings": 4096}, {"original_max_position_embeddings": 16},
        {"resid_pdrop": 0.3}, {"embd_pdrop": 0.3}, EIGHT_HEADS,
    ],
    "phi3-long": [
        {f"{NEW_ROPE}.long_factor": [1.0, 1.0, 2.0, 3.0]},
        {f"{NEW_ROPE}.short_factor": [1.0, 1.0, 2.0, 3.0]},
        {"original_max_position_embeddings": 30}, {"original_max_position_embeddings": 29},
        {f"{NEW_ROPE}.original_max_position_embeddings": 40}, {"max_position_embeddings": 16},
        {"max_position_embeddings": 4096}, {f"{NEW_ROPE}.attention_factor": 0.8},
        {f"{NEW_ROPE}.factor": 100.0}, {f"{NEW_ROPE}.rope_theta": 100.0},
        old_rope(rope_theta=10000.0, rope_scaling={
            "type": "longrope", "long_factor": [1.0, 2.5, 6.0, 13.0],
            "short_factor": [1.0, 1.1, 1.25, 1.5]}),
    ],
    "phi3-short": [
        {f"{NEW_ROPE}.short_factor": [1.0, 1.0, 2.0, 3.0]},
        {f"{NEW_ROPE}.long_factor": [1.0, 1.0, 2.0, 3.0]},
        {"max_position_embeddings": 100}, {"original_max_position_embeddings": 16},
    ],
    "stablelm-sequential": [
        *activations("hidden_act", *GATED), {"layer_norm_eps": 0.3},
        {f"{NEW_ROPE}.rope_theta": 100.0}, {f"{NEW_ROPE}.partial_rotary_factor": 0.5},
        old_rope(rope_theta=10000.0, partial_rotary_factor=0.25), old_rope(),
        old_rope(rope_theta=500.0, partial_rotary_factor=0.5, rope_scaling=None),
        {"hidden_dropout": 0.3}, EIGHT_HEADS,
    ],
    "stablelm-parallel": [{f"{NEW_ROPE}.factor": 5.0}],
    "gpt2-plain": [
        *activations("activation_function", *PLAIN), {"layer_norm_epsilon": 0.3}, {"n_head": 8},
        {"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True},
        {"reorder_and_upcast_attn": True}, {"n_inner": 256}, {"resid_pdrop": 0.3},
        {"embd_pdrop": 0.3}, {"attn_pdrop": 0.3}, {"summary_type": "mean"},
        {"summary_use_proj": False}, {"summary_first_dropout": 0.3}, {"n_ctx": 128},
        {"summary_activation": "tanh"}, {"summary_proj_to_labels": False},
        {"task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
        {"architectures": ["GPT2Model"]}, {"gradient_checkpointing": False},
    ],
    "gpt2-unscaled": [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": True}],
    "gpt_neox-parallel": [
        *activations("hidden_act", *PLAIN), {"layer_norm_eps": 0.3},
        {"use_parallel_residual": False}, {f"{NEW_ROPE}.rope_theta": 100.0},
        {f"{NEW_ROPE}.partial_rotary_factor": 0.5}, {"num_attention_heads": 8},
        old_rope(rotary_pct=0.25, rotary_emb_base=10000), old_rope(),
        old_rope(rotary_pct=0.5, rotary_emb_base=500), {"hidden_dropout": 0.3},
        {"classifier_dropout": 0.3}, {"max_position_embeddings": 4096},
    ],
    "gpt_neox-sequential": [
        {"use_parallel_residual": True}, {f"{NEW_ROPE}.factor": 5.0},
        old_rope(rotary_pct=1.0, rotary_emb_base=20000,
                 rope_scaling={"type": "linear", "factor": 2.0}),
        old_rope(rotary_pct=0.5, rotary_emb_base=20000,
                 rope_scaling={"type": "linear", "factor": 7.0}),
    ],
    "gemma-plain": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3},
        {f"{NEW_ROPE}.rope_theta": 100.0}, old_rope(rope_theta=10000.0), {"pad_token_id": 7},
        {"hidden_activation": None},
    ],
    "gemma-biases": [{f"{NEW_ROPE}.factor": 5.0}, *activations("hidden_act", "gelu")],
    "gemma2-plain": [
        *activations("hidden_activation", *GATED), {"rms_norm_eps": 0.3},
        {f"{NEW_ROPE}.rope_theta": 100.0}, {"query_pre_attn_scalar": 4},
        {"attn_logit_softcapping": 1.0},
        {"attn_logit_softcapping": None}, {"attn_logit_softcapping": DELETED},
        {"final_logit_softcapping": 0.5}, {"final_logit_softcapping": None},
        {"final_logit_softcapping": DELETED}, {"sliding_window": 12}, {"sliding_window": 4096},
        {"layer_types": [GLOBAL, LOCAL, GLOBAL]}, {"layer_types": [GLOBAL] * 3},
        {"layer_types": DELETED}, old_rope(rope_theta=10000.0), {"cache_implementation": "hybrid"},
        {"hidden_act": "gelu_pytorch_tanh"},
    ],
    "gemma2-uncapped": [{"attn_logit_softcapping": 2.0}, {"final_logit_softcapping": 2.0},
                        {f"{NEW_ROPE}.factor": 5.0}],
    "gemma3_text-plain": [
        *activations("hidden_activation", *GATED), {"rms_norm_eps": 0.3},
        {f"{NEW_ROPE}.{GLOBAL}.rope_theta": 100.0}, {f"{NEW_ROPE}.{LOCAL}.rope_theta": 100.0},
        {f"{NEW_ROPE}.{GLOBAL}": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}},
        {f"{NEW_ROPE}.{GLOBAL}": {"rope_type": "yarn", "factor": 8.0, "rope_theta": 1e6,
                                  "original_max_position_embeddings": 16}},
        {f"{NEW_ROPE}.{LOCAL}": DELETED}, {f"{NEW_ROPE}.{GLOBAL}": DELETED},
        {"query_pre_attn_scalar": 4}, {"final_logit_softcapping": 0.5}, {"sliding_window": 12},
        {"sliding_window": 4096}, {"layer_types": [GLOBAL, LOCAL, GLOBAL]},
        {"layer_types": [LOCAL] * 3},
        {"layer_types": DELETED}, {"layer_types": DELETED, "sliding_window_pattern": 2},
        {"layer_types": DELETED, "sliding_window_pattern": 2, "_sliding_window_pattern": DELETED},
        {"layer_types": DELETED, "sliding_window_pattern": DELETED,
         "_sliding_window_pattern": DELETED},
        old_rope(rope_theta=1000000.0, rope_local_base_freq=10000.0),
        old_rope(rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling=None),
        old_rope(rope_theta=100.0, rope_local_base_freq=50.0,
                 rope_scaling={"rope_type": "linear", "factor": 8.0}),
        old_rope(), {"cache_implementation": "hybrid"},
    ],
    "gemma3_text-capped": [{f"{NEW_ROPE}.{GLOBAL}.factor": 2.0},
                           {"final_logit_softcapping": None}],
    "olmo2-plain": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3},
        {f"{NEW_ROPE}.rope_theta": 100.0},
        old_rope(rope_theta=500000.0, rope_scaling=None), EIGHT_HEADS,
    ],
    "olmo2-biases": [{f"{NEW_ROPE}.factor": 2.0}],
    "smollm3-plain": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3},
        {f"{NEW_ROPE}.rope_theta": 100.0}, {"no_rope_layers": [1, 1, 0]},
        {"no_rope_layers": [1, 1, 1]}, {"no_rope_layer_interval": 3},
        {"no_rope_layer_interval": 3, "no_rope_layers": DELETED}, {"no_rope_layers": DELETED},
        {"no_rope_layers": DELETED, "no_rope_layer_interval": DELETED},
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": DELETED},
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": [LOCAL, GLOBAL, LOCAL]},
        {"sliding_window": 6}, {"layer_types": DELETED}, old_rope(rope_theta=2000000.0),
        old_rope(), EIGHT_HEADS,
    ],
    "smollm3-biases": [
        {"sliding_window": 11}, {"layer_types": [GLOBAL] * 4},
        {"use_sliding_window": False, "layer_types": [GLOBAL] * 4},
        {"use_sliding_window": False, "layer_types": DELETED, "sliding_window": None},
        {f"{NEW_ROPE}.factor": 2.0},
    ],
    "mixtral-window": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3}, {"sliding_window": 12},
        {"sliding_window": None}, {f"{NEW_ROPE}.rope_theta": 100.0}, old_rope(),
        {"num_experts_per_tok": 3}, *ROUTER_LOSS, EIGHT_HEADS,
    ],
    "olmoe-plain": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3}, {"norm_topk_prob": True},
        {"num_experts_per_tok": 1}, {f"{NEW_ROPE}.rope_theta": 100.0}, *ROUTER_LOSS,
    ],
    "olmoe-normalized": [{"norm_topk_prob": False}, {f"{NEW_ROPE}.factor": 2.0}],
    "qwen2_moe-plain": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3}, {"norm_topk_prob": True},
        {"num_experts_per_tok": 6}, {f"{NEW_ROPE}.rope_theta": 100.0}, *ROUTER_LOSS,
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": DELETED},
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": DELETED,
         "max_window_layers": 2}, {"max_window_layers": 1}, {"layer_types": DELETED}, EIGHT_HEADS,
    ],
    "qwen2_moe-layers": [
        {"sliding_window": 11}, {"layer_types": [LOCAL, LOCAL, GLOBAL, GLOBAL]},
        {"layer_types": DELETED, "max_window_layers": 1},
        {"use_sliding_window": False, "layer_types": DELETED},
    ],
    "qwen3_moe-plain": [
        *activations("hidden_act", *GATED), {"rms_norm_eps": 0.3}, {"norm_topk_prob": True},
        {"num_experts_per_tok": 2}, {f"{NEW_ROPE}.rope_theta": 100.0}, *ROUTER_LOSS,
        {"use_sliding_window": True, "sliding_window": 6}, {"sliding_window": 6},
        {"num_local_experts": DELETED, "num_experts": 6}, {"max_window_layers": 1},
        {"mlp_only_layers": None},
    ],
    "qwen3_moe-layers": [{"sliding_window": 11}, {"use_sliding_window": False}],
    "bert-plain": [
        *activations("hidden_act", *PLAIN), {"layer_norm_eps": 0.3}, {"num_attention_heads": 8},
        {"hidden_dropout_prob": 0.3}, {"attention_probs_dropout_prob": 0.3},
        {"classifier_dropout": 0.3}, {"pad_token_id": 3},
        {"position_embedding_type": "absolute"}, {"gradient_checkpointing": False},
    ],
    "bert-masked_lm": [{"hidden_act": "gelu"}, {"num_attention_heads": 8}],
    "roberta-plain": [
        *activations("hidden_act", *PLAIN), {"layer_norm_eps": 0.3}, {"num_attention_heads": 8},
        {"pad_token_id": 4}, {"pad_token_id": 0}, {"hidden_dropout_prob": 0.3},
        {"attention_probs_dropout_prob": 0.3}, {"classifier_dropout": 0.3},
        {"position_embedding_type": "absolute"},
    ],
    "distilbert-plain": [
        *activations("activation", *PLAIN), {"n_heads": 8}, {"dropout": 0.3},
        {"attention_dropout": 0.3}, {"qa_dropout": 0.3}, {"seq_classif_dropout": 0.3},
        {"sinusoidal_pos_embds": True}, {"pad_token_id": 3}, {"tie_weights_": True},
    ],
    "modernbert-plain": [
        *activations("hidden_activation", *GATED), {"norm_eps": 0.3}, {"num_attention_heads": 8},
        {"local_attention": 16}, {"local_attention": 5}, {"local_attention": 0},
        {"local_attention": 400},
        {f"{NEW_ROPE}.{GLOBAL}.rope_theta": 100.0}, {f"{NEW_ROPE}.{LOCAL}.rope_theta": 100.0},
        {"layer_types": [LOCAL, GLOBAL, LOCAL, LOCAL]}, {"layer_types": DELETED},
        {"layer_types": DELETED, "global_attn_every_n_layers": 2},
        {"layer_types": DELETED, "global_attn_every_n_layers": 3},
        old_rope(global_rope_theta=160000.0, local_rope_theta=10000.0),
        old_rope(global_rope_theta=100.0, local_rope_theta=500.0), old_rope(),
        {"embedding_dropout": 0.3}, {"mlp_dropout": 0.3}, {"attention_dropout": 0.3},
        {"classifier_pooling": "mean"}, {"classifier_bias": True}, {"classifier_dropout": 0.3},
        {"classifier_activation": "relu"}, {"decoder_bias": False}, {"sparse_prediction": True},
        {"sparse_pred_ignore_index": -7}, {"deterministic_flash_attn": True},
        {"initializer_cutoff_factor": 1.0}, {"max_position_embeddings": 4096},
        {"reference_compile": True}, {"position_embedding_type": "absolute"},
    ],
    "vit-plain": [
        *activations("hidden_act", *PLAIN), {"layer_norm_eps": 0.3}, {"num_attention_heads": 8},
        {"hidden_dropout_prob": 0.3}, {"attention_probs_dropout_prob": 0.3},
        {"encoder_stride": 8}, {"pooler_act": "relu"},
    ],
}

WRONG_TYPES = [{"hidden_size": "64"}, {"num_hidden_layers": 2.5}, {"num_attention_heads": [4]},
               {"vocab_size": True}, {"rms_norm_eps": "0.01"}, {"tie_word_embeddings": "no"},
               {"hidden_act": 7}, {"hidden_act": None}, {NEW_ROPE: "default"}, {NEW_ROPE: [1]},
               {f"{NEW_ROPE}.rope_theta": "10000"}, {f"{NEW_ROPE}.rope_type": 3},
               {"head_dim": "16"}, {"num_key_value_heads": {}}, {"attention_bias": 1}]
OUT_OF_RANGE = [{"hidden_size": 0}, {"hidden_size": -64}, {"num_hidden_layers": 0},
                {"num_hidden_layers": -1}, {"num_attention_heads": 0}, {"vocab_size": 0},
                {"num_attention_heads": 5}, {"num_key_value_heads": 3}, {"rms_norm_eps": -1.0},
                {"intermediate_size": 0}, {f"{NEW_ROPE}.rope_theta": 0.0}, {"head_dim": 15}]
# Published under the names of models that load_pretrained reads, but other models.
OTHER_MODELS = [{"model_type": name} for name in (
    "dbrx", "granitemoe", "phimoe", "gpt_oss", "deepseek_v3", "llama4",
    "gemma3", "t5", "no such model", "", 5, None, DELETED)]
CONTRADICTIONS = {  # the weights have other shapes, or others are needed
    "llama-plain": [{"num_key_value_heads": 4}, {"num_key_value_heads": 1}, {"head_dim": 8},
                    {"attention_bias": True}, {"mlp_bias": True}],
    "llama-biases": [{"attention_bias": False}, {"mlp_bias": False}],
    "mistral-window": [{"num_key_value_heads": 4}, {"head_dim": None}],
    "qwen2-plain": [{"num_key_value_heads": 4}], "phi3-window": [{"num_key_value_heads": 4}],
    "qwen3-plain": [{"num_key_value_heads": 4}, {"head_dim": 8}, {"attention_bias": True}],
    "qwen3-layers": [{"attention_bias": False}],
    "stablelm-sequential": [{"num_key_value_heads": 4}, {"use_qkv_bias": False},
                            {"use_parallel_residual": True}],
    "stablelm-parallel": [{"use_qkv_bias": True}, {"use_parallel_residual": False}],
    "gpt2-plain": [{"n_inner": 96}, {"n_positions": 127}],
    "gpt_neox-parallel": [{"attention_bias": False}],
    "gemma-plain": [{"num_key_value_heads": 2}, {"head_dim": 8}, {"attention_bias": True}],
    "gemma2-plain": [{"num_key_value_heads": 4}, {"head_dim": 8}, {"attention_bias": True}],
    "gemma3_text-plain": [{"num_key_value_heads": 4}, {"head_dim": 8}, {"attention_bias": True}],
    "olmo2-plain": [{"num_key_value_heads": 4}, {"attention_bias": True}],
    "smollm3-plain": [{"num_key_value_heads": 4}, {"attention_bias": True}, {"mlp_bias": True}],
    "mixtral-window": [{"num_key_value_heads": 4}, {"num_local_experts": 5}],
    "olmoe-plain": [{"num_key_value_heads": 4}, {"attention_bias": True}, {"num_experts": 7}],
    "qwen2_moe-plain": [{"num_key_value_heads": 4}, {"qkv_bias": False}, {"num_experts": 5},
                        {"shared_expert_intermediate_size": 40}, {"mlp_only_layers": [2]},
                        {"decoder_sparse_step": 2}],
    "qwen3_moe-plain": [{"num_key_value_heads": 4}, {"attention_bias": True},
                        {"num_local_experts": 7}, {"mlp_only_layers": [0, 1]},
                        {"decoder_sparse_step": 3}],
    "qwen3_moe-layers": [{"attention_bias": False}, {"mlp_only_layers": []}],
    "bert-plain": [{"max_position_embeddings": 127}, {"type_vocab_size": 3}],
    "roberta-plain": [{"max_position_embeddings": 127}, {"type_vocab_size": 2}],
    "distilbert-plain": [{"max_position_embeddings": 127}],
    "modernbert-plain": [{"attention_bias": True}, {"mlp_bias": True}, {"norm_bias": True}],
    "modernbert-masked_lm": [{"norm_bias": False}, {"attention_bias": False},
                             {"mlp_bias": False}],
    "vit-plain": [{"image_size": 20}, {"patch_size": 8}, {"num_channels": 1},
                  {"qkv_bias": False}],
    "vit-classifier": [{"qkv_bias": True}],
}
UNSUPPORTED = {  # that Python computes, or meant something in its older versions
    "llama-plain": [*WRONG_TYPES, *OUT_OF_RANGE, *OTHER_MODELS,
                    *activations("hidden_act", "quick_gelu", "tanh", "SiLU"),
                    {f"{NEW_ROPE}.rope_type": "ntk"}, {f"{NEW_ROPE}.frobnicate": 1},
                    {f"{NEW_ROPE}.partial_rotary_factor": 0.5},
                    {"is_decoder": False}, {"add_cross_attention": True},
                    {NEW_ROPE: {"rope_type": "linear", "rope_theta": 500000.0}},
                    old_rope(rope_scaling={"type": "ntk", "factor": 2.0})],
    "llama-biases": [{f"{NEW_ROPE}.rope_type": "default", f"{NEW_ROPE}.factor": 2.5}],
    "llama-yarn": [{f"{NEW_ROPE}.truncate": False}],
    "qwen2-layers": [{"layer_types": [LOCAL, GLOBAL]}, {"layer_types": "full_attention"},
                     {"layer_types": [LOCAL, GLOBAL, "chunked_attention"]},
                     {"layer_types": [LOCAL, GLOBAL, 1]}, {"sliding_window": 0},
                     {"sliding_window": 2.5}, {"sliding_window": "9"}],
    # Of two that contradict each other, transformers takes one.
    "phi3-window": [{f"{NEW_ROPE}.partial_rotary_factor": 0.25}, {"partial_rotary_factor": 0.25}],
    "phi3-long": [{f"{NEW_ROPE}.long_factor": [1.0, 2.0]}, {f"{NEW_ROPE}.short_factor": None},
                  {f"{NEW_ROPE}.long_factor": [1.0, 2.0, 3.0, "4"]},
                  {f"{NEW_ROPE}.long_factor": [1.0, 2.0, 3.0, 0.0]},
                  {f"{NEW_ROPE}.short_factor": DELETED}],
    "stablelm-sequential": [{"qk_layernorm": True}],
    "gpt2-plain": [{"add_cross_attention": True}, {"n_positions": -1}],
    "gpt_neox-parallel": [{f"{NEW_ROPE}.partial_rotary_factor": 2.0}],
    "gemma-plain": [{"use_bidirectional_attention": True}],
    "gemma2-plain": [{"use_bidirectional_attention": True}, {"query_pre_attn_scalar": 0},
                     {"attn_logit_softcapping": -1.0}, {"final_logit_softcapping": "5"}],
    # Transformers has the second field, but does not apply it.
    "gemma3_text-plain": [{"use_bidirectional_attention": True}, {"attn_logit_softcapping": 1.0}],
    "smollm3-plain": [{"no_rope_layers": [1, 0]}, {"no_rope_layers": [1, 2, 0]}],
    "mixtral-window": [{"router_jitter_noise": 0.1}, {"num_experts_per_tok": 7},
                       {"num_local_experts": 0}],
    "olmoe-plain": [{"clip_qkv": 0.5}, {"norm_topk_prob": 1}],
    "qwen2_moe-plain": [{"decoder_sparse_step": 0}, {"mlp_only_layers": [3]}],
    "qwen3_moe-plain": [{"mlp_only_layers": [-1]}, {"mlp_only_layers": 1},
                        {"num_experts": 5}],
    "bert-plain": [{"is_decoder": True}, {"add_cross_attention": True},
                   {"position_embedding_type": "relative_key"}],
    "roberta-plain": [{"is_decoder": True}, {"position_embedding_type": "relative_key_query"}],
    "modernbert-plain": [{"local_attention": -8}, {"layer_types": [LOCAL, GLOBAL, LOCAL]}],
    "vit-plain": [{"patch_size": 0}, {"image_size": 17}, {"num_channels": -3}],
}

# The first case of each family, of which every field is deleted, and changed if it is harmless.
PRIMARY = list({name.split("-")[0]: name for name in reversed(EVALUATED)}.values())
