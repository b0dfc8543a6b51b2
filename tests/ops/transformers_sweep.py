#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Every model folder of transformers that takes an attention interface, on heed's attention.

    transformers_sweep.py --library libheed_ops.so [--shard I/N] [FOLDER...]

One small model of each folder, or one of its layers, with random weights and random numbers of heads
and groups: its outputs are those of attn_implementation="eager", or heed refuses by name what the model
hands to its attention. Exits with 77 where Python has no transformers 5.
"""

import contextlib
import importlib
import inspect
import random
import sys
import warnings
import zlib
from pathlib import Path

import with_transformers  # first: it skips where transformers is missing

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import AttentionInterface

import heed_transformers
from seeds import moved, seed_all

MODELS = Path(transformers.__file__).parent / "models"
# Of the largest value: what float32 makes of two blocks in two orders, some dozens of the last digit.
TOLERANCE = 2e-5
# What these folders hand to their attention, and heed's has not.
REFUSED = {
    **dict.fromkeys(["axk2", "deepseek_v32", "dots3_note", "glm_moe_dsa", "hy_v4", "hy_v4_vl",
                     "mistral_large4"], "indices"),
    **dict.fromkeys(["inkling2", "inkling2_loop"], "sinks"),
}
# Folders whose models and layers want what is not made here: pictures in pairs, backbones of packages
# that are not installed, sizes that depend on each other. The keywords that they hand to an attention
# are looked at in transformers_keywords.py.
UNREACHED = {
    "dbrx", "decision_transformer", "eomt_dinov3", "esmfold2", "gemma3n", "granite_speech5",
    "minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "muse_glimmer_assistant", "nemotron_asr_streaming",
    "neucodec", "sam", "sam_hq", "swin", "xcodec2",
}
BATCH, LENGTH = 2, 11
DIM, HEAD_DIM = 32, 8

SIZES = {
    "hidden_size": DIM, "d_model": DIM, "n_embd": DIM, "embed_dim": DIM, "dim": DIM, "width": DIM,
    "hidden_dim": DIM, "encoder_hidden_size": DIM, "decoder_hidden_size": DIM, "embedding_size": DIM,
    "text_hidden_size": DIM, "output_dim": DIM, "projection_dim": DIM, "out_hidden_size": DIM,
    "intermediate_size": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "ffn_dim": 48, "d_ff": 48,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "feed_forward_dim": 48,
    "head_dim": HEAD_DIM, "d_kv": HEAD_DIM, "attention_head_dim": HEAD_DIM,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "qk_head_dim": 16, "max_position_embeddings": 64, "sliding_window": 5,
    "n_routed_experts": 4, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_topk": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "image_size": 32, "patch_size": 8, "num_mel_bins": 16, "spatial_merge_size": 2,
}
LAYERS = {"num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers",
          "decoder_layers", "num_decoder_layers", "num_encoder_layers", "depth"}
HEADS = {"num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads",
         "decoder_attention_heads", "attention_heads", "num_encoder_attention_heads"}
GROUPS = {"num_key_value_heads", "n_kv_heads", "num_query_groups"}
# Where None is what published configurations replace.
NEEDED = {*GROUPS, "head_dim", "num_experts_per_tok", "n_routed_experts"}
WITHOUT_DROPOUT = ("dropout", "drop_rate", "layerdrop", "pdrop", "drop_path_rate")


def folders():
    """Those whose code calls what ALL_ATTENTION_FUNCTIONS gives."""
    return sorted({file.parent.name for file in MODELS.glob("*/modeling_*.py")
                   if "attention_interface(" in file.read_text()})


def shrink(config, sizes):
    """Small numbers of everything, in the configurations inside of it too."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            shrink(value, sizes)
        elif isinstance(value, float) and name.endswith(WITHOUT_DROPOUT):
            setattr(config, name, 0.0)
        elif isinstance(value, int) and not isinstance(value, bool):
            if name in sizes:
                setattr(config, name, sizes[name])
        elif name == "layer_types" and isinstance(value, list):
            kinds = list(dict.fromkeys(value))
            setattr(config, name, (kinds * sizes["num_hidden_layers"])[:sizes["num_hidden_layers"]])
    return config


def random_sizes(draw):
    groups, repeats = draw.choice([(1, 4), (2, 2), (4, 1)])
    sizes = dict(SIZES)
    sizes.update(dict.fromkeys(LAYERS, 2))
    sizes.update(dict.fromkeys(HEADS, groups * repeats))
    sizes.update(dict.fromkeys(GROUPS, groups))
    return sizes


def small(kind, sizes):
    """A configuration of that class, and of those inside of it, made anew so that lists fit."""
    default = kind()
    given = {}
    for name, value in vars(default).items():
        if isinstance(value, PreTrainedConfig):
            given[name] = small(type(value), sizes).to_dict()
        elif isinstance(value, float) and name.endswith(WITHOUT_DROPOUT):
            given[name] = 0.0
        elif name in sizes and (type(value) is int or (value is None and name in NEEDED)):
            given[name] = sizes[name]
    if isinstance(getattr(default, "num_heads", None), list):
        for name in ("embed_dim", "hidden_size", "image_size", "patch_size"):  # stages have their own
            given.pop(name, None)
    try:
        return kind(**given)
    except Exception:  # whatever a configuration refuses or computes
        return shrink(default, sizes)


def find(config, *names, default=None):
    """The first of these that the configuration, or one inside of it, has."""
    for name in names:
        if isinstance(getattr(config, name, None), int):
            return getattr(config, name)
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            found = find(value, *names)
            if found is not None:
                return found
    return default


def tokens(config, length=LENGTH):
    special = {value for name, value in config.to_dict().items() if name.endswith("token_id")}
    ordinary = [n for n in range(3, 60) if n not in special]
    return torch.tensor(ordinary)[torch.randint(len(ordinary), (BATCH, length))]


def picture(config):
    size = getattr(config, "image_size", None) or find(config, "image_size", default=32)
    size = [size, size] if isinstance(size, int) else list(size)[-2:]
    return torch.randn(BATCH, find(config, "num_channels", "in_channels", default=3), *size)


def padding():
    """attention_mask [B, LENGTH]: the second sequence is shorter"""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, LENGTH - 3:] = 0
    return mask


def inputs_of(model):
    config = model.config
    mels = find(config, "num_mel_bins", "feature_size", "input_dim", default=16)
    makers = {
        "input_ids": lambda: tokens(config),
        "attention_mask": padding,
        "decoder_input_ids": lambda: tokens(config, 7),
        "pixel_values": lambda: picture(config),
        "input_features": lambda: torch.randn(BATCH, 40, mels),
        "input_values": lambda: torch.randn(BATCH, 2000),
        "bbox": lambda: torch.randint(0, 10, (BATCH, LENGTH, 4)),
    }
    parameters = inspect.signature(model.forward).parameters
    given = {name: make() for name, make in makers.items() if name in parameters}
    if "input_ids" not in given:
        given.pop("attention_mask", None)
    if model.main_input_name in ("input_ids", "pixel_values", "input_features", "input_values"):
        for other in ("pixel_values", "input_features", "input_values"):
            if other in given and other != model.main_input_name and "input_ids" in given:
                given.pop(other)
    if "use_cache" in parameters:
        given["use_cache"] = False
    return given


def modules_of(folder):
    names = sorted(file.stem for file in (MODELS / folder).glob("modeling_*.py"))
    for name in names:
        yield importlib.import_module(f"transformers.models.{folder}.{name}")


def candidates(folder):
    """Classes of models in a folder, simple ones first."""
    found = [kind for module in modules_of(folder) for kind in vars(module).values()
             if inspect.isclass(kind) and issubclass(kind, PreTrainedModel)
             and kind.__module__ == module.__name__ and getattr(kind, "config_class", None)
             and not kind.__name__.endswith("PreTrainedModel")]
    return sorted(found, key=lambda kind: (kind.__name__.count("For"), len(kind.__name__)))


def layers(folder):
    """Classes of a folder whose forward calls the interface, with the module that they are in."""
    for module in modules_of(folder):
        for kind in vars(module).values():
            if (inspect.isclass(kind) and issubclass(kind, torch.nn.Module)
                    and kind.__module__ == module.__name__ and "forward" in vars(kind)
                    and "attention_interface(" in inspect.getsource(kind.forward)):
                yield kind, module


def configs_of(kind, module):
    """Classes of configurations that a layer may be made from, its own annotation first."""
    own = inspect.signature(kind.__init__).parameters.get("config")
    names = str(own.annotation if own else "")
    found = [value for value in vars(module).values() if inspect.isclass(value)
             and issubclass(value, PreTrainedConfig) and value is not PreTrainedConfig]
    return sorted(found, key=lambda value: value.__name__ not in names)


LAYER_ARGUMENTS = {
    "layer_idx": 0, "layer_id": 0, "embed_dim": DIM, "hidden_size": DIM, "d_model": DIM,
    "num_heads": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "is_decoder": False,
    "is_causal": False, "dropout": 0.0, "bias": True, "layer_type": "full_attention",
}


def make_layer(kind, config):
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    given = {p.name: config if p.name == "config" else LAYER_ARGUMENTS[p.name]
             for p in parameters
             if p.name == "config" or p.name == "layer_idx"
             or (p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))}
    return kind(**given)


def layer_inputs(layer, turned):
    """With cosines and sines of heads of `turned` numbers."""
    width = next(part.in_features for part in layer.modules()
                 if isinstance(part, torch.nn.Linear))
    packed = "cu_seqlens" in inspect.signature(layer.forward).parameters
    batch = () if packed else (BATCH,)
    angles = torch.rand(*batch, LENGTH, turned)
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH)
    mask.masked_fill_(torch.ones(LENGTH, LENGTH).triu(1).bool(), torch.finfo(torch.float32).min)
    makers = {
        **dict.fromkeys(("hidden_states", "hidden_states_a", "x", "query", "key", "value", "query_states"),
                        lambda: torch.randn(*batch, LENGTH, width)),
        "position_embeddings": lambda: (angles.cos(), angles.sin()) if turned else None,
        "attention_mask": lambda: None if packed else mask,
        "cu_seqlens": lambda: torch.tensor([0, 4, LENGTH], dtype=torch.int32),
        "position_ids": lambda: torch.arange(LENGTH)[None].expand(BATCH, -1),
    }
    given = {}
    for name, parameter in inspect.signature(layer.forward).parameters.items():
        if name in makers:
            given[name] = makers[name]()
        elif parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            given[name] = None
    return given


@contextlib.contextmanager
def uninitialized_as_nan():
    """torch.empty gives NaN: a layer without its model has parameters that nobody initializes."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def randomize(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.2)
            elif parameter.dim() == 1:
                parameter.nan_to_num_(nan=1.0).add_(0.1 * torch.randn_like(parameter))


def floating(output):
    """All floating tensors in an output, in order."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        output = list(output.values())
    return [x for item in output for x in floating(item)] if isinstance(output, (list, tuple)) else []


class Attention:
    """heed's, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        return heed_transformers.heed_attention(*arguments, **options)


ATTENTION = Attention()


class Unusable(Exception):
    """Why nothing is compared."""


def outcome(use, call, first_only=False):
    """The error of heed's against the largest value, or what it refuses. `use` sets the attention."""
    results = {}
    for name in ("eager", "heed"):
        use(name)
        ATTENTION.calls = 0
        seed_all(1)  # of models that draw
        try:
            with torch.no_grad():
                results[name] = floating(call())
        except ValueError as error:
            if name == "heed" and str(error).startswith("heed_attention: "):
                return str(error)
            raise
    if not ATTENTION.calls:
        raise Unusable("no call of the interface")
    pairs = [(one, other) for one, other in zip(results["heed"], results["eager"]) if other.numel()]
    pairs = pairs[:1] if first_only else pairs  # the others are weights
    if not pairs or any(one.shape != other.shape or not other.isfinite().all() for one, other in pairs):
        raise Unusable("no output that could be compared")
    return max(((one - other).abs().max() / other.abs().max().clamp(min=1e-30)).item()
               for one, other in pairs)


def try_model(kind, sizes):
    seed_all()
    model = kind(small(kind.config_class, sizes)).eval()
    randomize(model)
    inputs = inputs_of(model)
    return outcome(model.set_attn_implementation, lambda: model(**inputs))


def try_layer(kind, config, turned):
    seed_all()
    with uninitialized_as_nan():
        layer = make_layer(kind, config).eval()
    randomize(layer)
    inputs = layer_inputs(layer, turned)

    def use(name):
        for part in (config, getattr(layer, "config", config)):
            part._attn_implementation = name

    return outcome(use, lambda: layer(**inputs), first_only=True)


def attempts(folder):
    """Calls that may find an outcome: models, then layers; in groups, then without groups."""
    sizes = random_sizes(random.Random(moved(zlib.crc32(folder.encode()))))
    ungrouped = {**sizes, **dict.fromkeys(GROUPS, sizes["num_attention_heads"])}
    for own in (sizes, ungrouped):
        for kind in candidates(folder)[:6]:
            yield lambda: try_model(kind, own)
    for kind, module in layers(folder):
        for own in (sizes, ungrouped):
            for config in configs_of(kind, module):
                for turned in (HEAD_DIM, HEAD_DIM // 2, 2 * HEAD_DIM, 0):
                    yield lambda: try_layer(kind, small(config, own), turned)


def examine(folder):
    """The outcome of the first attempt that has one, or why the first had none."""
    reason = None
    for attempt in attempts(folder):
        try:
            return attempt()
        except Exception as error:  # whatever a class wants that is not known here
            first = (str(error).strip() or "?").splitlines()[0]
            reason = reason or Unusable(f"{type(error).__name__}: {first}")
    return reason


def judge(folder, found):
    """Whether that is what must be; prints what it is."""
    refused = REFUSED.get(folder)
    if isinstance(found, Unusable):
        print(f"{folder}: not reached: {found}")
        return folder in UNREACHED
    if isinstance(found, str):
        print(f"{folder}: {found}")
        return refused is not None and found.startswith(f"heed_attention: {refused} must be None")
    print(f"{folder}: {found:.1e}")
    return refused is None and found < TOLERANCE


def main():
    parser = with_transformers.parser_for(__doc__)
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="every Nth folder from the Ith on")
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="those to examine (all)")
    options = parser.parse_args()
    with_transformers.load(options)
    torch.set_num_threads(1)
    heed_transformers.register()
    AttentionInterface.register("heed", ATTENTION)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    first, step = map(int, options.shard.split("/"))
    wrong = [folder for folder in options.folders or folders()[first::step]
             if not judge(folder, examine(folder))]
    sys.exit(f"wrong: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
