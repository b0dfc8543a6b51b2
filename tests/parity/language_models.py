#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write small language models of transformers, randomly initialized, and what they compute.

    language_models.py write FOLDER
    language_models.py check FOLDER    the model "llama" after language_models_test.cpp trained it

For each model FOLDER/NAME/model.safetensors and FOLDER/NAME.pt: tokens [2, 20], scores [2, 20, V] and
the 64 tokens that it prefers after the first sequence. FOLDER/attention.pt holds what transformers
makes of attention with a softcap, with sinks and with ALiBi; FOLDER/latent*.pt what it makes of
DeepSeek's attention.
"""

import argparse
import re
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deepseek_v2 import DeepseekV2Config, modeling_deepseek_v2
from transformers.models.deepseek_v3 import DeepseekV3Config, modeling_deepseek_v3
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

from clear_answers import generate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from seeds import moved  # noqa: E402

VOCAB = 199
SHAPE = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 128,
         "initializer_range": 0.2, "tie_word_embeddings": False}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def models() -> dict:
    return {
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)),
        "llama3": transformers.LlamaForCausalLM(transformers.LlamaConfig(
            **{**SHAPE, "tie_word_embeddings": True}, rope_parameters=LLAMA3)),
        "mistral": transformers.MistralForCausalLM(transformers.MistralConfig(
            **SHAPE, head_dim=24, sliding_window=7)),
        "qwen3": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE, head_dim=24)),
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=VOCAB, n_embd=64, n_head=4, n_layer=3, n_positions=128,
            initializer_range=0.2)),
    }


def randomize(model: torch.nn.Module) -> None:
    """Norms and biases too, which transformers sets to 1 and 0."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))


def write_model(name: str, model: torch.nn.Module, folder: Path) -> None:
    model.eval()
    randomize(model)
    model.save_pretrained(folder / name)
    prompt, generated = generate(model, lambda: torch.randint(VOCAB, (1, 20)), 64)
    tokens = torch.cat([prompt, torch.randint(VOCAB, (1, 20))])
    with torch.no_grad():
        scores = model(tokens).logits
    torch.save({"tokens": tokens, "scores": scores, "generated": generated},
               folder / f"{name}.pt")


def write_attention(folder: Path) -> None:
    batch, heads, groups, length, dim = 2, 4, 2, 9, 8
    query = torch.randn(batch, heads, length, dim)
    key, value = torch.randn(2, batch, groups, length, dim)
    sinks = torch.randn(heads)
    hidden = torch.full((length, length), float("-inf")).triu(1).expand(batch, 1, -1, -1)
    module = torch.nn.Module()
    module.num_key_value_groups = heads // groups
    module.sinks = sinks
    module.eval()

    def attend(eager, **options) -> torch.Tensor:
        output, _ = eager(module, query, key, value, hidden, scaling=dim ** -0.5, dropout=0.0,
                          **options)
        return output.transpose(1, 2)

    alibi = build_alibi_tensor(torch.ones(batch, length), heads, torch.float32)
    torch.save({
        "query": query, "key": key, "value": value, "sinks": sinks,
        "softcap": attend(modeling_gemma2.eager_attention_forward, softcap=1.5),
        "with_sinks": attend(modeling_gpt_oss.eager_attention_forward),
        "alibi": alibi.view(batch, heads, 1, length),
    }, folder / "attention.pt")


def write_latent_attention(folder: Path) -> None:
    """DeepSeek's attention, its queries from a latent vector and not; with YaRN, whose scales are
    equal as in the published models, and not."""
    def yarn(**scales: float) -> dict:
        return {"rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0,
            "original_max_position_embeddings": 16, **scales}}

    v2 = DeepseekV2Config, modeling_deepseek_v2, "DeepseekV2"
    v3 = DeepseekV3Config, modeling_deepseek_v3, "DeepseekV3"
    for name, ((config_of, modeling, prefix), query_rank, scaling) in {
            "latent": (v3, 24, {}), "latent_keys": (v3, None, {}),
            "latent_yarn": (v3, 24, yarn(mscale=1.0, mscale_all_dim=1.0)),
            "latent_scales": (v3, 24, yarn(mscale=0.7, mscale_all_dim=0.4)),
            "latent_one_scale": (v3, 24, yarn(mscale_all_dim=0.4)),
            "latent_yarn_v2": (v2, 24, yarn(mscale=0.707, mscale_all_dim=0.707))}.items():
        config = config_of(
            hidden_size=64, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=query_rank,
            kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
            max_position_embeddings=64, **scaling)
        config._attn_implementation = "eager"
        module = getattr(modeling, f"{prefix}Attention")(config, 0).eval()
        randomize(module)
        x = torch.randn(2, 11, 64)
        angles = getattr(modeling, f"{prefix}RotaryEmbedding")(config)(
            x, torch.arange(11).unsqueeze(0))
        hidden = torch.full((11, 11), float("-inf")).triu(1).expand(2, 1, -1, -1)
        with torch.no_grad():
            output = module(x, position_embeddings=angles, attention_mask=hidden)[0]
        save_file(module.state_dict(), folder / f"{name}.safetensors")
        torch.save({"x": x, "output": output}, folder / f"{name}.pt")


def llama_name(name: str) -> str:
    """What LlamaForCausalLM calls heed's tensor."""
    for ours, theirs in {
            "token_embedding": "model.embed_tokens", "stack.final_norm": "model.norm",
            "stack.blocks": "model.layers", "head": "lm_head",
            "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm",
            "attention": "self_attn", "fc_q": "q_proj", "fc_k": "k_proj", "fc_v": "v_proj",
            "fc_o": "o_proj", "feed_forward": "mlp", "fc_gate": "gate_proj", "fc_in": "up_proj",
            "fc_out": "down_proj"}.items():
        name = re.sub(rf"(^|\.){re.escape(ours)}(?=\.)", rf"\1{theirs}", name)
    return name


def check(folder: Path) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).eval()
    trained = load_file(folder / "trained.safetensors")
    model.load_state_dict({llama_name(name): tensor for name, tensor in trained.items()})
    expected = load_file(folder / "trained_scores.safetensors")
    with torch.no_grad():
        scores = model(expected["tokens"]).logits
    largest = expected["scores"].abs().max()
    difference = ((scores - expected["scores"]).abs().max() / largest).item()
    if not difference <= 1e-5:  # float32 through three blocks, in another order
        sys.exit(f"the trained model's scores differ from Python's by {difference}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["write", "check"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder
    transformers.logging.set_verbosity_error()
    if arguments.task == "check":
        check(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(moved(0))
    for name, model in models().items():
        write_model(name, model, folder)
    write_attention(folder)
    write_latent_attention(folder)


if __name__ == "__main__":
    main()
