# SPDX-License-Identifier: BSD-3-Clause
"""Attention of other engines, for python_rows.py: ONNX Runtime, OpenVINO and vLLM's kernels for the CPU.

An engine is a function of query [B, H, L, D], key and value [B, G, S, D] and causal. It returns a call to
time, and a function that returns the call's result, [B, H, L, D]. It raises ImportError where pip did not
install the engine, and Refused where it does not take these tensors. Keys and values that are int8 stand
for multiples of INT8_SCALE.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch

Prepared = tuple[Callable[[], object], Callable[[], torch.Tensor]]

INT8_SCALE = 1 / 32  # random normal numbers, up to 3.97


class Refused(Exception):
    pass


def widened(heads: torch.Tensor) -> torch.Tensor:
    return heads.float() * INT8_SCALE if heads.dtype == torch.int8 else heads


def merged(heads: torch.Tensor) -> torch.Tensor:
    """[B, H, L, D] as [B, L, H * D]."""
    return heads.transpose(1, 2).flatten(2).contiguous()


def onnxruntime(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                causal: bool) -> Prepared:
    """Its operator MultiHeadAttention; GroupQueryAttention, which is always causal, where that is faster or
    keys have fewer heads: it appends the last keys to a cache that holds the others, perhaps as int8."""
    import numpy
    from onnx import TensorProto, helper
    from onnxruntime import InferenceSession, OrtValue, SessionOptions

    batch, heads, length, _ = query.shape
    groups, key_length = key.shape[1:3]
    if query.dtype != torch.float32:
        raise Refused("only float32")
    if not causal and length > 1 and groups != heads:
        raise Refused("grouped heads are causal there")
    inputs = {"query": merged(query)}
    outputs = {"output": inputs["query"]}  # of their shapes and dtypes
    if causal or length == 1:
        operator, options = "GroupQueryAttention", {"kv_num_heads": groups}
        inputs |= {"key": merged(widened(key[:, :, -length:])),
                   "value": merged(widened(value[:, :, -length:])),
                   "past_key": key, "past_value": value,
                   "last": torch.full((batch,), key_length - 1, dtype=torch.int32),
                   "total": torch.tensor([key_length], dtype=torch.int32)}
        outputs |= {"present_key": key, "present_value": value}
        if key.dtype == torch.int8:
            options |= {"kv_cache_bit_width": 8,
                        "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
            inputs |= {"k_scale": torch.tensor([INT8_SCALE]), "v_scale": torch.tensor([INT8_SCALE])}
    else:
        operator, options = "MultiHeadAttention", {}
        inputs |= {"key": merged(key), "value": merged(value)}

    def described(tensors: dict[str, torch.Tensor]) -> list:
        return [helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(tensor.numpy().dtype), tensor.shape)
            for name, tensor in tensors.items()]

    names = list(inputs)
    if "k_scale" in inputs:
        names[-2:-2] = [""] * 5  # rotary embedding and others, which are absent
    node = helper.make_node(operator, names, list(outputs), domain="com.microsoft", num_heads=heads,
                            **options)
    graph = helper.make_graph([node], "attention", described(inputs), described(outputs))
    model = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
    settings = SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    # Within its turns, its threads spin between calls; else they would do so in those of heed.
    settings.add_session_config_entry("session.intra_op.spin_duration_us", "1000")
    session = InferenceSession(model.SerializeToString(), settings,
                               providers=["CPUExecutionProvider"])
    values = {name: OrtValue.ortvalue_from_numpy(tensor.numpy()) for name, tensor in inputs.items()}
    values["output"] = OrtValue.ortvalue_from_numpy(numpy.empty_like(inputs["query"].numpy()))
    binding = session.io_binding()
    for name in inputs:
        binding.bind_ortvalue_input(name, values[name])
    for name in outputs:  # the cache in its place
        binding.bind_ortvalue_output(name, values[name.replace("present", "past")])

    def result() -> torch.Tensor:
        return torch.from_numpy(values["output"].numpy()).unflatten(2, (heads, -1)).transpose(1, 2)

    return lambda: session.run_with_iobinding(binding), result


def openvino(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool) -> Prepared:
    """Its operator ScaledDotProductAttention, whose keys and values are repeated for grouped heads."""
    import numpy
    from openvino import Core, Model, Tensor, Type, opset13

    if query.dtype not in (torch.float32, torch.bfloat16):
        raise Refused("only float32 and bfloat16")
    if key.dtype != query.dtype:
        raise Refused("no int8 keys")
    batch, heads, length, dim = query.shape
    groups, key_length = key.shape[1:3]
    if length == 1 and groups != heads:
        raise Refused("most of the time would be that of repeating keys")
    half = query.dtype == torch.bfloat16
    dtype = Type.bf16 if half else Type.f32
    parameters = [opset13.parameter(list(tensor.shape), dtype) for tensor in (query, key, value)]

    def repeat(node):
        if groups == heads:
            return node
        wide = opset13.broadcast(opset13.unsqueeze(node, opset13.constant(2)),
                                 opset13.constant([batch, groups, heads // groups, key_length, dim]),
                                 "BIDIRECTIONAL")
        return opset13.reshape(wide, opset13.constant([batch, heads, key_length, dim]), False)

    attention = opset13.scaled_dot_product_attention(
        parameters[0], repeat(parameters[1]), repeat(parameters[2]), causal=causal and length > 1)
    request = Core().compile_model(Model([attention], parameters), "CPU", {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
    }).create_infer_request()
    for i, tensor in enumerate((query, key, value)):
        array = tensor.view(torch.int16).numpy().view(numpy.uint16) if half else tensor.numpy()
        request.set_input_tensor(i, Tensor(array, list(tensor.shape), dtype))

    def result() -> torch.Tensor:
        data = request.get_output_tensor(0).data
        return torch.from_numpy(data.view(numpy.int16)).view(torch.bfloat16) if half \
            else torch.from_numpy(data)

    def call(held=(query, key, value)) -> None:  # of which the request has views
        request.infer()

    return call, result


def vllm(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool) -> Prepared:
    """Its kernel over a cache that already holds the keys and values as the kernel reads them."""
    package = importlib.util.find_spec("vllm")
    if not package:
        raise ImportError("No module named 'vllm'")
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        torch.ops.load_library(Path(package.submodule_search_locations[0]) / "_C.abi3.so")
    kernels = torch.ops._C
    batch, heads, length, dim = query.shape
    groups, key_length = key.shape[1:3]
    if dim % 32 != 0:
        raise Refused("only heads of a multiple of 32")
    if key.dtype != query.dtype:
        raise Refused("no int8 keys")
    block = 128
    blocks = -(-key_length // block)  # of a sequence

    def tokens(heads_first: torch.Tensor) -> torch.Tensor:
        return heads_first.transpose(1, 2).flatten(0, 1).contiguous()

    amx = query.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    instructions = "amx" if amx else "vec"
    caches = torch.zeros(batch * blocks, groups, 2 * block, dim, dtype=query.dtype).chunk(2, dim=2)
    slots = torch.arange(batch).unsqueeze(1) * blocks * block + torch.arange(key_length)
    kernels.cpu_attn_reshape_and_cache(tokens(key), tokens(value), *caches, slots.flatten(),
                                       instructions)
    starts = torch.arange(batch + 1, dtype=torch.int32) * length
    lengths = torch.full((batch,), key_length, dtype=torch.int32)
    table = torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks)
    plan = kernels.get_scheduler_metadata(batch, heads, groups, dim, lengths, query.dtype, starts,
                                          causal, -1, instructions, True, None)
    queries = tokens(query)
    output = torch.empty_like(queries)

    def call() -> None:
        kernels.cpu_attention_with_kv_cache(queries, *caches, output, starts, lengths, dim ** -0.5,
                                            causal, None, -1, table, 0.0, plan, None, None)

    return call, lambda: output.unflatten(0, (batch, length)).transpose(1, 2)


# With the ratio that heed aims at.
ENGINES = {"ONNX Runtime": (onnxruntime, 1.2), "OpenVINO": (openvino, 1.2), "vLLM": (vllm, 1.1)}
