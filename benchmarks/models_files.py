#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes the models of models.py: at random by transformers, then in the format of an engine.

    models_files.py ENGINE FOLDER FORMAT

FOLDER is such as build/bench/models/135M-bfloat16, whose files have that dtype. ENGINE reads it, or a sibling
that `path_of` names. What is there already stays.
"""

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ENGINES = {  # and the formats that each is measured with
    "OpenVINO GenAI": ("float32", "bfloat16", "int8", "int4"),
    "llama.cpp": ("float32", "bfloat16", "int8", "int4"),
    "ONNX Runtime GenAI": ("float32", "int8", "int4"),
    "CTranslate2": ("float32", "int8"),
    "vLLM": ("float32", "bfloat16"),
    "transformers": ("float32", "bfloat16"),
}
MODELS = {
    "tiny": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 96, "vocab_size": 256, "tie_word_embeddings": True},
    "135M": {"num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3,
             "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True},
    "1100M": {"num_hidden_layers": 22, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4,
              "intermediate_size": 5632, "vocab_size": 32000, "tie_word_embeddings": False},
}
CONTEXT = 8192

Converter = Callable[[Path, str, Path], None]  # reads a model's folder, and writes a file or folder in a format


def word(token: int) -> str:
    """The token's spelling, which engines with a vocabulary ask for."""
    return f"t{token}"


def complete(path: Path, make: Callable[[Path], None]) -> None:
    """Lets `make` write the file or folder, unless it is there: completely or not at all."""
    if not path.exists():
        unfinished = path.with_name(f"unfinished-{path.name}")
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        unfinished.unlink(missing_ok=True)
        make(unfinished)
        unfinished.rename(path)


def converted_path(converters: dict[str, Converter], engine: str, folder: Path, kind: str) -> Path:
    if engine not in converters:
        return folder
    return folder.with_name(f"{folder.name}.{converters[engine].__name__}-{kind}")


def make(make_model: Callable[[Path], None], converters: dict[str, Converter]) -> None:
    """The program: makes what its arguments name."""
    engine, folder, kind = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    folder.parent.mkdir(parents=True, exist_ok=True)
    complete(folder, make_model)
    output = converted_path(converters, engine, folder, kind)
    if output != folder:
        complete(output, lambda unfinished: converters[engine](folder, kind, unfinished))


def make_model(folder: Path) -> None:
    """A llama with random weights, and a tokenizer of as many words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    name, dtype = folder.name.removeprefix("unfinished-").split("-")
    torch.manual_seed(0)
    config = LlamaConfig(**MODELS[name], max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, bos_token_id=0,
                         eos_token_id=1)
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    words = {word(token): token for token in range(config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=word(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=word(0), eos_token=word(1),
                            unk_token=word(0)).save_pretrained(folder)


def openvino(folder: Path, kind: str, output: Path) -> None:
    from models_openvino import write

    write(folder, kind, output)


def write_gguf(folder: Path, output: Path) -> None:
    """In float32. Halves of a head's rows lie interleaved, as llama.cpp turns them."""
    import gguf
    from safetensors import safe_open
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    writer = gguf.GGUFWriter(output, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():
                tensor = tensors.get_tensor(name).float()
                if name.endswith(("q_proj.weight", "k_proj.weight")):
                    tensor = tensor.unflatten(0, (-1, 2, config.head_dim // 2)).transpose(1, 2).flatten(0, 2)
                writer.add_tensor(names.get_name(name, (".weight",)), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp(folder: Path, kind: str, output: Path) -> None:
    """Other formats than float32 by llama.cpp's own quantizer: Q8_0 and Q4_0."""
    import llama_cpp as library

    if kind == "float32":
        write_gguf(folder, output)
        return
    source = output.with_name(f"{output.name}-source")
    write_gguf(folder, source)
    params = library.llama_model_quantize_default_params()
    params.ftype = {"bfloat16": library.LLAMA_FTYPE_MOSTLY_BF16, "int8": library.LLAMA_FTYPE_MOSTLY_Q8_0,
                    "int4": library.LLAMA_FTYPE_MOSTLY_Q4_0}[kind]
    failed = library.llama_model_quantize(str(source).encode(), str(output).encode(), ctypes.byref(params))
    source.unlink()
    if failed:
        sys.exit(f"llama.cpp could not quantize {source.name} to {kind}")


def onnxruntime(folder: Path, kind: str, output: Path) -> None:
    precision = {"float32": "fp32"}.get(kind, kind)
    subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", folder, "-o", output, "-p",
                    precision, "-e", "cpu", "-c", output.with_name("unfinished-cache")], check=True)


def ctranslate2(folder: Path, kind: str, output: Path) -> None:
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(folder)).convert(str(output), quantization=kind)


CONVERTERS = {"OpenVINO GenAI": openvino, "llama.cpp": llama_cpp, "ONNX Runtime GenAI": onnxruntime,
              "CTranslate2": ctranslate2}


def path_of(engine: str, folder: Path, kind: str) -> Path:
    return converted_path(CONVERTERS, engine, folder, kind)


if __name__ == "__main__":
    make(make_model, CONVERTERS)
