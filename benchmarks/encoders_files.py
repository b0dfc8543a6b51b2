#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes the models of encoders.py: at random by transformers, then in the format of an engine.

    encoders_files.py ENGINE FOLDER FORMAT      as models_files.py
"""

from pathlib import Path

from models_files import converted_path, make

ENGINES = {  # and the formats that each is measured with
    "OpenVINO": ("float32", "bfloat16", "int8"),
    "ONNX Runtime": ("float32", "int8"),
    "transformers": ("float32", "bfloat16"),
}
TEXTS = {
    "MiniLM": {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96},
}
TOKENS, COLORS, FACTOR = 30000, 256, 7919  # those of encoders.cpp, too


def takes_images(folder: Path) -> bool:
    return folder.name.removeprefix("unfinished-").startswith("ViT")


def example_size(folder: Path) -> int:
    """The pixels of an image's side, or the tokens of a short sentence."""
    return 224 if takes_images(folder) else 32


def inputs(folder: Path, count: int, size: int):
    """Tokens [count, size] or images [count, 3, size, size]."""
    import torch

    if not takes_images(folder):
        return torch.arange(count * size).mul(FACTOR).remainder(TOKENS).view(count, size)
    numbers = torch.arange(count * 3 * size * size).mul(FACTOR).remainder(COLORS)
    return numbers.view(count, 3, size, size).float().div(COLORS // 2).sub(1)


def load_model(folder: Path, dtype: str):
    import torch
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype), add_pooling_layer=False).eval()


def make_model(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel, ViTConfig, ViTModel

    name, _, dtype = folder.name.removeprefix("unfinished-").rpartition("-")
    torch.manual_seed(0)
    model = (ViTModel(ViTConfig(), add_pooling_layer=False) if takes_images(folder)
             else BertModel(BertConfig(**TEXTS[name]), add_pooling_layer=False))
    model.to(getattr(torch, dtype)).save_pretrained(folder)


def traced(folder: Path):
    """A module that returns a tensor, and an input of it."""
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = load_model(folder, "float32")

        def forward(self, x):
            return self.model(x).last_hidden_state

    return Encoder().eval(), inputs(folder, 2, example_size(folder))


def openvino(folder: Path, kind: str, output: Path) -> None:
    """In int8, NNCF rounds the inputs of products too, by scales that it finds with some inputs."""
    import openvino as library

    module, example = traced(folder)
    model = library.convert_model(module, example_input=example)
    if kind == "int8":
        import nncf

        calibration = [inputs(folder, count, example.shape[-1]).numpy() for count in range(1, 9)]
        model = nncf.quantize(model, nncf.Dataset(calibration), model_type=nncf.ModelType.TRANSFORMER,
                              subset_size=len(calibration))
    library.save_model(model, output / "model.xml", compress_to_fp16=False)


def onnxruntime(folder: Path, kind: str, output: Path) -> None:
    import torch

    module, example = traced(folder)
    output.mkdir()
    axes = {0: "batch"} if takes_images(folder) else {0: "batch", 1: "length"}
    torch.onnx.export(module, (example,), output / "model.onnx", input_names=["x"], output_names=["y"],
                      dynamic_axes={"x": axes, "y": axes}, opset_version=17, dynamo=False)
    if kind == "int8":
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        model = onnx.load(output / "model.onnx")
        quantize_dynamic(model, output / "model.onnx", weight_type=QuantType.QInt8,
                         extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})


CONVERTERS = {"OpenVINO": openvino, "ONNX Runtime": onnxruntime}


def path_of(engine: str, folder: Path, kind: str) -> Path:
    return converted_path(CONVERTERS, engine, folder, kind)


if __name__ == "__main__":
    make(make_model, CONVERTERS)
