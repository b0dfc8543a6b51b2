# SPDX-License-Identifier: BSD-3-Clause
"""Llama as OpenVINO's operators, in the form that OpenVINO GenAI reads: keys and values are states of the model."""

from pathlib import Path

import numpy as np
from openvino import Model, Output, PartialShape, Type, opset13 as ops, save_model
from openvino.op.util import Variable, VariableInfo
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer


class Llama:
    def __init__(self, folder: Path) -> None:
        self.config = AutoConfig.from_pretrained(folder)
        self.weights = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():
                    node = ops.constant(tensors.get_tensor(name).float().numpy(), name=name)
                    self.weights[name.removeprefix("model.")] = node
        self.tokens, self.positions, self.beams, self.filled = (
            ops.parameter(shape, Type.i32 if name == "beam_idx" else Type.i64, name=name)
            for name, shape in (("input_ids", [-1, -1]), ("position_ids", [-1, -1]), ("beam_idx", [-1]),
                                ("attention_mask", [-1, -1])))
        self.parameters = [self.tokens, self.filled, self.positions, self.beams]
        self.states = []

    def model(self) -> Model:
        cos, sin = self.angles()
        self.mask = self.causal_mask()
        x = ops.gather(self.weights["embed_tokens.weight"], self.tokens, 0)
        for layer in range(self.config.num_hidden_layers):
            name = f"layers.{layer}."
            x = ops.add(x, self.attention(self.norm(x, name + "input_layernorm"), name + "self_attn.", cos, sin))
            x = ops.add(x, self.feed_forward(self.norm(x, name + "post_attention_layernorm"), name + "mlp."))
        tied = self.config.tie_word_embeddings
        scores = self.linear(self.norm(x, "norm"), "embed_tokens" if tied else "lm_head")
        scores.output(0).get_tensor().set_names({"logits"})
        model = Model([ops.result(scores)], self.states, self.parameters)
        for parameter in self.parameters:
            parameter.output(0).get_tensor().set_names({parameter.friendly_name})
        return model

    def linear(self, x: Output, name: str) -> Output:
        return ops.matmul(x, self.weights[name + ".weight"], False, True)

    def norm(self, x: Output, name: str) -> Output:
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), np.array([-1]), keep_dims=True)
        root = ops.sqrt(ops.add(mean, np.float32(self.config.rms_norm_eps)))
        scaled = ops.multiply(x, ops.divide(np.float32(1), root))
        return ops.multiply(self.weights[name + ".weight"], scaled)

    def feed_forward(self, x: Output, name: str) -> Output:
        gated = ops.multiply(ops.swish(self.linear(x, name + "gate_proj")), self.linear(x, name + "up_proj"))
        return self.linear(gated, name + "down_proj")

    def angles(self) -> tuple[Output, Output]:
        """Of the positions, [B, 1, L, D]."""
        dim = self.config.head_dim
        frequencies = 10000.0 ** (-np.arange(0, dim, 2, dtype=np.float32) / dim)
        positions = ops.convert(ops.unsqueeze(self.positions, np.array(-1)), "f32")
        half = ops.multiply(positions, frequencies.reshape(1, 1, -1))
        angles = ops.unsqueeze(ops.concat([half, half], -1), np.array(1))
        return ops.cos(angles), ops.sin(angles)

    def causal_mask(self) -> Output:
        """Of the positions and the keys that are filled, [B, 1, L, S]."""
        length = ops.gather(ops.shape_of(self.filled), np.array(1), np.array(0))
        keys = ops.range(np.array(0), length, np.array(1), "i64")
        past = ops.less_equal(keys, ops.unsqueeze(self.positions, np.array([1, 3])))
        filled = ops.unsqueeze(ops.convert(self.filled, "boolean"), np.array([1, 2]))
        return ops.logical_and(past, filled)

    def rotate(self, x: Output, cos: Output, sin: Output) -> Output:
        half, end, last = self.config.head_dim // 2, np.iinfo(np.int64).max, np.array([3])
        first = ops.slice(x, np.array([0]), np.array([half]), np.array([1]), last)
        second = ops.slice(x, np.array([half]), np.array([end]), np.array([1]), last)
        turned = ops.concat([ops.multiply(second, np.float32(-1)), first], -1)
        return ops.add(ops.multiply(x, cos), ops.multiply(turned, sin))

    def attention(self, x: Output, name: str, cos: Output, sin: Output) -> Output:
        config = self.config
        heads, groups, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim

        def projected(projection: str, count: int) -> Output:
            split = ops.reshape(self.linear(x, name + projection), np.array([0, 0, count, dim]), True)
            return ops.transpose(split, np.array([0, 2, 1, 3]))

        query = self.rotate(projected("q_proj", heads), cos, sin)
        key = self.rotate(projected("k_proj", groups), cos, sin)
        key, value = self.append(key, name + "key"), self.append(projected("v_proj", groups), name + "value")
        y = ops.scaled_dot_product_attention(query, self.repeat(key), self.repeat(value), self.mask)
        merged = ops.reshape(ops.transpose(y, np.array([0, 2, 1, 3])), np.array([0, 0, heads * dim]), True)
        return self.linear(merged, name + "o_proj")

    def append(self, x: Output, name: str) -> Output:
        """x behind what the state `name` holds."""
        groups, dim = self.config.num_key_value_heads, self.config.head_dim
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = PartialShape([-1, groups, -1, dim]), Type.f32, name
        variable = Variable(info)
        batch = ops.gather(ops.shape_of(self.tokens), np.array([0]), np.array(0))
        empty = ops.broadcast(np.float32(0), ops.concat([batch, np.array([groups, 0, dim])], 0))
        past = ops.gather(ops.read_value(empty, variable), self.beams, np.array(0))
        all_tokens = ops.concat([past, x], 2)
        self.states.append(ops.assign(all_tokens, variable))
        return all_tokens

    def repeat(self, x: Output) -> Output:
        """A head of keys or values for each head of queries."""
        config = self.config
        times = config.num_attention_heads // config.num_key_value_heads
        if times == 1:
            return x
        wide = ops.broadcast(ops.unsqueeze(x, np.array(2)), np.array([1, 1, times, 1, 1]),
                             broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, np.array([0, config.num_attention_heads, -1, config.head_dim]), True)


def write(folder: Path, kind: str, output: Path) -> None:
    """int8 has a scale for each row; int4 one for each group, and int8 for the embedding and the head."""
    import nncf
    from openvino_tokenizers import convert_tokenizer

    model = Llama(folder).model()
    if kind == "int8":
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    if kind == "int4":
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT4_SYM, group_size=32, ratio=1.0)
    output.mkdir()
    save_model(model, output / "openvino_model.xml", compress_to_fp16=kind != "float32")
    tokenizer, detokenizer = convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
    save_model(tokenizer, output / "openvino_tokenizer.xml")
    save_model(detokenizer, output / "openvino_detokenizer.xml")
