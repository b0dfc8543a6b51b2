#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write weights in every format as Python's users save them, or read back what C++ saved.

    weight_files.py write FOLDER
    weight_files.py check FOLDER     the files that weight_files_test.cpp wrote, bit for bit

"tensors" are one of every dtype and kind: [[0, 1, 2], [3, 4, 5]], as the dtype has it. "model" is
Sequential(BatchNorm1d(3), Linear(3, 2)); of its names, sorted, number n holds n, n + 1, n + 2, ...
"""

import argparse
import io
import json
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Dict, List

import torch
from safetensors.torch import load_file, save_file, save_model

DTYPES = """bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64
complex64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz""".split()


def tensors() -> dict:
    numbers = torch.arange(6.0).view(2, 3)
    result = {name: numbers.to(getattr(torch, name)) for name in DTYPES}
    result["scalar"] = torch.tensor(3.5)
    result["empty"] = torch.zeros(0, 3)
    result["transposed"] = numbers.t()
    result["part"] = torch.arange(10)[3:9:2]
    return result


class Attributes(torch.nn.Module):
    """A container of tensors, as PyTorch's maintainers recommend it to hand them to C++."""

    table: List[torch.Tensor]
    named: Dict[str, torch.Tensor]

    def __init__(self):
        super().__init__()
        self.plain = torch.arange(6.0).view(2, 3)
        self.table = [torch.ones(2), torch.zeros(1)]
        self.named = {"a": torch.ones(1)}
        self.pair = (torch.ones(3), 2)

    def forward(self, x):
        return x + self.plain


def model() -> torch.nn.Module:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)).eval()
    with torch.no_grad():
        for number, (_, tensor) in enumerate(sorted(module.state_dict().items())):
            tensor.copy_((number + torch.arange(tensor.numel())).view_as(tensor))
    return module


def tied_model() -> torch.nn.Module:
    module = torch.nn.ModuleDict({name: torch.nn.Linear(3, 2, bias=False)
                                  for name in ("first", "second")})
    module["second"].weight = module["first"].weight
    with torch.no_grad():
        module["first"].weight.copy_(torch.arange(6.0).view(2, 3))
    return module


def write_shards(folder: Path, state: dict, stem: str, end: str, save) -> None:
    """As save_pretrained writes a model in two files."""
    shards = {f"{stem}-0000{number}-of-00002.{end}": {} for number in (1, 2)}
    weight_map = {}
    for number, (name, tensor) in enumerate(state.items()):
        shard = list(shards)[number % 2]
        shards[shard][name] = tensor
        weight_map[name] = shard
    for shard, held in shards.items():
        save(held, folder / shard)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / f"{stem}.{end}.index.json").write_text(json.dumps(index, indent=2))


def write_programs(folder: Path, every: dict, module: torch.nn.Module) -> None:
    """Exported programs, with their weights as every version of torch stores them."""
    program = torch.export.export(module, (torch.ones(2, 3),))
    torch.export.save(program, folder / "model.pt2")
    state = io.BytesIO()
    torch.save(program.state_dict, state)
    with zipfile.ZipFile(folder / "model_2_6.pt2", "w") as file:
        file.writestr("serialized_exported_program.json", "{}")
        file.writestr("serialized_state_dict.pt", state.getvalue())
        file.writestr("serialized_constants.pt", b"")
    with zipfile.ZipFile(folder / "model_2_8.pt2", "w") as file:
        file.writestr("model/archive_format", "pt2")
        file.writestr("model/models/model.json", "{}")
        file.writestr("model/data/weights/model.pt", state.getvalue())
    try:
        from torch.export.pt2_archive._package import package_pt2
        from torch.export.pt2_archive._package_weights import TensorProperties, Weights
    except ImportError:  # since 2.9
        pass
    else:
        weights = {name: (t, TensorProperties(t)) for name, t in program.state_dict.items()}
        package_pt2(folder / "compiled.pt2", aoti_files=[Weights(weights)])
    program = torch.export.export(torch.nn.Identity(), (torch.ones(2, 3),))
    program.state_dict.update(every)
    torch.export.save(program, folder / "tensors.pt2")


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    every = tensors()
    for protocol in (2, 3, 4, 5):
        torch.save(every, folder / f"tensors_{protocol}.pt", pickle_protocol=protocol)
    tied = {**every, "tied": every["transposed"].t()}
    parameters = {name: torch.nn.Parameter(t, t.is_floating_point()) for name, t in tied.items()
                  if "float8" not in name}
    torch.save(parameters, folder / "parameters.pt")
    for name, state in {"tensors": every, "parameters": parameters}.items():
        torch.save(state, folder / f"legacy_{name}.pt", _use_new_zipfile_serialization=False)
    save_file({name: tensor.contiguous() for name, tensor in every.items()},
              folder / "tensors.safetensors")

    module = model()
    state = module.state_dict()
    torch.save(state, folder / "state_dict.pt")
    optimizer = torch.optim.Adam(module.parameters())
    torch.save({"epoch": 3, "net": {"ema": state}, "optimizer": optimizer.state_dict(),
                "args": argparse.Namespace(lr=0.1)}, folder / "checkpoint.pt")
    torch.save({**state, "step": 3, "best": 0.5, "note": None, "sizes": [1, 2], "sgd": {"lr": 0.1},
                "1._extra_state": {"amax": torch.ones(3)}, "args": argparse.Namespace(lr=0.1)},
               folder / "beside.pt")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    write_shards(folder, state, "model", "safetensors", save_file)
    write_shards(folder, state, "pytorch_model", "bin", torch.save)
    save_model(tied_model(), folder / "save_model.safetensors")
    warnings.simplefilter("ignore")  # torch.jit is deprecated, and its archives remain
    scripted = torch.jit.script(module)
    scripted.save(folder / "scripted.pt")
    torch.jit.trace(module, torch.ones(2, 3)).save(folder / "traced.pt")
    torch.jit.freeze(scripted).save(folder / "frozen.pt")
    torch.jit.optimize_for_inference(scripted).save(folder / "optimized.pt")
    torch.jit.script(Attributes()).save(folder / "attributes.pt")
    torch.save([torch.ones(2)], folder / "list.pt")
    odd = {"sparse": torch.eye(2).to_sparse(), "meta": torch.ones(2, device="meta"),
           "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
           "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}
    torch.save({**state, **odd}, folder / "odd.pt")
    torch.save(module, folder / "module.pt")
    torch.save(state, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    write_programs(folder, tied, module)


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    def raw(tensor: torch.Tensor) -> bytes:
        return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()

    return (actual.dtype == expected.dtype and actual.shape == expected.shape
            and raw(actual) == raw(expected))


def check(folder: Path) -> None:
    warnings.simplefilter("ignore")
    script = torch.jit.load(folder / "saved.pt")
    assert not list(script.parameters())
    found = {"saved.safetensors": load_file(folder / "saved.safetensors"),
             "saved.pt": dict(script.named_buffers())}
    expected = tensors()
    for file, actual in found.items():
        if actual.keys() != expected.keys():
            sys.exit(f"{file}: {sorted(actual)} are not {sorted(expected)}")
        for name, tensor in expected.items():
            if not same_bits(actual[name], tensor):
                sys.exit(f"{file}: {name}: {actual[name]} is not {tensor}")
    loaded = torch.jit.load(folder / "saved_model.pt")
    state = model().state_dict()
    for name, tensor in {**dict(loaded.named_parameters()), **dict(loaded.named_buffers())}.items():
        if not same_bits(tensor.detach(), state.pop(name)):
            sys.exit(f"saved_model.pt: {name} differs")
    if state:
        sys.exit(f"saved_model.pt lacks {sorted(state)}")
    print("the same, bit for bit")


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](Path(sys.argv[2]))
