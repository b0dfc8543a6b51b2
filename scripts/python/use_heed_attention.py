#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Turn the attention of an exported program into heed's.

A model that calls F.scaled_dot_product_attention needs no change to gain by heed: this replaces the
calls in what torch.export made of it, before AOTInductor compiles it.

    use_heed_attention.py MODEL.pt2 FASTER.pt2 --library libheed_ops.so

Both files are programs of torch.export.save. Programs that run FASTER.pt2 must load the library too.
The same as a function, which changes the program that it is given:

    torch.ops.load_library("libheed_ops.so")
    report = use_heed_attention(program)

Every call is either computed by heed with the same result, to rounding, or left as it is; the report
names both, by the submodule that makes the call and the node in the graph. Random numbers are the
exception: dropout takes other ones. What keeps its call:

    attn_mask and is_causal at once     LibTorch computes it on some paths, and refuses it on others
    batches or heads that broadcast     heed repeats heads in groups and key/value heads that are one
    a log-sum-exp that is used          as in a program that also holds the backward pass
    more than four dimensions

Give it programs as torch.export.export makes them: run_decompositions() takes attention apart.
"""

import argparse
import ctypes
import io
import itertools
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple


def fail(message: str) -> NoReturn:
    sys.exit(f"use_heed_attention.py: {message}")


try:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node
    from torch.fx.experimental.symbolic_shapes import statically_known_true
except ImportError as error:
    fail(f"cannot import torch ({error}): install it with '{sys.executable} -m pip install torch'")

aten = torch.ops.aten
SDPA = aten.scaled_dot_product_attention.default
CPU_KERNEL = aten._scaled_dot_product_flash_attention_for_cpu.default
CUDA_KERNELS = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)


@dataclass
class Report:
    """The calls of attention in a program, by name."""

    changed: List[str] = field(default_factory=list)
    left: List[Tuple[str, str]] = field(default_factory=list)  # with the reason

    def __str__(self) -> str:
        total = len(self.changed) + len(self.left)
        lines = [f"changed {len(self.changed)} of {total} calls of attention"]
        lines += [f"  changed: {name}" for name in self.changed]
        lines += [f"  left: {name}: {reason}" for name, reason in self.left]
        return "\n".join(lines)


class Refused(Exception):
    """Why a call stays as it is."""


def value_of(argument: Any) -> Any:
    """The fake tensor, or number, that an argument of a node stands for."""
    return argument.meta["val"] if isinstance(argument, Node) else argument


def same(left: Any, right: Any) -> bool:
    """Whether two sizes are equal whatever the dynamic ones become."""
    return statically_known_true(left == right)


class Insertion:
    """New nodes before one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes: List[Node] = []

    def call(self, target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Node:
        with self.node.graph.inserting_before(self.node):
            new = self.node.graph.call_function(target, args, kwargs)
        self.nodes.append(new)
        for key in ("nn_module_stack", "stack_trace", "source_fn_stack"):
            if key in self.node.meta:
                new.meta[key] = self.node.meta[key]
        fake_args, fake_kwargs = torch.fx.node.map_arg((args, kwargs), value_of)
        with fake_mode_of(self.node):
            new.meta["val"] = target(*fake_args, **fake_kwargs)
        return new

    def size(self, tensor: Node, dim: int) -> Any:
        size = value_of(tensor).size(dim)
        return size if isinstance(size, int) else self.call(aten.sym_size.int, tensor, dim)

    def undo(self) -> None:
        for new in reversed(self.nodes):
            self.node.graph.erase_node(new)


def fake_mode_of(node: Node) -> Any:
    value = node.meta["val"]
    return (value if isinstance(value, torch.Tensor) else value[0]).fake_mode


def arguments_of(node: Node) -> Dict[str, Any]:
    """All arguments of a call by name, with defaults."""
    schema = node.target._schema.arguments
    arguments = {argument.name: argument.default_value for argument in schema}
    arguments.update(zip(arguments, node.args))
    arguments.update(node.kwargs)
    return arguments


def with_four_dimensions(insertion: Insertion, tensor: Node) -> Node:
    while value_of(tensor).dim() < 4:
        tensor = insertion.call(aten.unsqueeze.default, tensor, 0)
    return tensor


def check_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grouped: bool) -> None:
    """[B, H, L, D], [B, G, S, D], [B, G, S, Dv]: what SDPA broadcasts and heed does not."""
    for name, tensor in (("key", key), ("value", value)):
        if not same(tensor.size(0), query.size(0)):
            raise Refused(
                f"the batch of {name} ({tensor.size(0)}) is not known to be query's "
                f"({query.size(0)})"
            )
    if not same(key.size(1), value.size(1)):
        raise Refused(f"key has {key.size(1)} heads, and value {value.size(1)}")
    if not (grouped or same(key.size(1), query.size(1)) or same(key.size(1), 1)):
        raise Refused(f"key has {key.size(1)} heads, query {query.size(1)}, without enable_gqa")


def full_mask(insertion: Insertion, mask: Node, query: Node, key: Node) -> Node:
    """[B or 1, H or 1, L or 1, S]"""
    mask = with_four_dimensions(insertion, mask)
    wanted = (*value_of(query).shape[:3], value_of(key).size(2))
    for size, whole in zip(value_of(mask).shape, wanted):
        if not (same(size, whole) or same(size, 1)):
            raise Refused(
                f"attn_mask {list(value_of(mask).shape)} is not known to broadcast to "
                f"{list(wanted)}"
            )
    if same(value_of(mask).size(3), wanted[3]):
        return mask
    return insertion.call(aten.expand.default, mask, [-1, -1, -1, insertion.size(key, 2)])


def visibility(
    insertion: Insertion, mask: Optional[Node], causal: bool, query: Node, key: Node
) -> Dict[str, Any]:
    """attn_mask and is_causal as heed's arguments."""
    if mask is not None:
        if causal:
            raise Refused("it has both attn_mask and is_causal")
        name = "mask" if value_of(mask).dtype == torch.bool else "bias"
        return {name: full_mask(insertion, mask, query, key)}
    if not causal:
        return {}
    options = {"causal": True}
    if not same(value_of(query).size(2), value_of(key).size(2)):
        options["top_left"] = True  # SDPA gives the first query the position of the first key
    return options


def has_strides(tensor: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether the dimensions of a tensor lie in memory densely and in this order."""
    expected: Any = 1
    for dim in reversed(order):
        if not same(tensor.size(dim), 1) and not same(tensor.stride(dim), expected):
            return False
        expected = expected * tensor.size(dim)
    return True


def with_layout_of(insertion: Insertion, output: Node, like: torch.Tensor) -> Node:
    """Later nodes may be views that only fit the strides of the old output."""
    last = like.dim() - 1
    orders = [(*order, last) for order in itertools.permutations(range(last))]
    order = next((order for order in orders if has_strides(like, order)), None)
    if order is None:
        raise Refused(f"its output has the strides {list(like.stride())}")
    if has_strides(value_of(output), order):
        return output
    permuted = insertion.call(aten.permute.default, output, list(order))
    dense = insertion.call(aten.clone.default, permuted, memory_format=torch.contiguous_format)
    inverse = [order.index(dim) for dim in range(last + 1)]
    return insertion.call(aten.permute.default, dense, inverse)


def heed_attention(insertion: Insertion, arguments: Dict[str, Any], like: torch.Tensor) -> Node:
    """The nodes that compute a call; `like` is what it returned."""
    inputs = [arguments[name] for name in ("query", "key", "value")]
    rank = value_of(inputs[0]).dim()
    if any(value_of(tensor).dim() != rank for tensor in inputs) or not 2 <= rank <= 4:
        ranks = ", ".join(str(value_of(tensor).dim()) for tensor in inputs)
        raise Refused(f"query, key and value have {ranks} dimensions")
    mask = arguments["attn_mask"]
    if mask is not None and value_of(mask).dim() > rank:
        raise Refused(f"attn_mask has {value_of(mask).dim()} dimensions, query {rank}")
    query, key, value = (with_four_dimensions(insertion, tensor) for tensor in inputs)
    check_heads(value_of(query), value_of(key), value_of(value), arguments["enable_gqa"])
    options = visibility(insertion, mask, arguments["is_causal"], query, key)
    for name, default in (("dropout", 0.0), ("scale", None)):
        given = arguments["dropout_p" if name == "dropout" else name]
        if given != default:
            options[name] = given
    try:
        output = insertion.call(torch.ops.heed.attend.default, query, key, value, **options)
    except Exception as error:  # whatever heed refuses
        raise Refused(str(error).splitlines()[0]) from None
    for _ in range(4 - rank):
        output = insertion.call(aten.select.int, output, 0, 0)
    shape, dtype = value_of(output).shape, value_of(output).dtype
    if not all(map(same, shape, like.shape)) or dtype != like.dtype:
        raise Refused(f"heed's output would be {list(shape)}, not {list(like.shape)}")
    return with_layout_of(insertion, output, like)


def outputs_of(node: Node) -> List[Node]:
    """The nodes that stand for the output of a call: of a kernel, those that take its first result."""
    if node.target == SDPA:
        return [node]
    if any(user.args[1] != 0 for user in node.users):
        raise Refused("its log-sum-exp is used")
    return list(node.users)


def change(node: Node) -> List[Tuple[Node, Node]]:
    """Replaces a call of attention. Returns the old outputs, which are gone, and the new."""
    if node.target in CUDA_KERNELS:
        raise Refused("it is a kernel for CUDA: export the program without run_decompositions")
    insertion = Insertion(node)
    try:
        outputs = outputs_of(node)
        arguments = arguments_of(node)
        arguments.setdefault("enable_gqa", True)  # the kernel always groups heads
        result = node.meta["val"]
        like = result if isinstance(result, torch.Tensor) else result[0]
        new = heed_attention(insertion, arguments, like)
    except Refused:
        insertion.undo()
        raise
    for output in outputs:
        output.replace_all_uses_with(new)
    for old in {*outputs, node}:
        if old is not node:
            node.graph.erase_node(old)
    node.graph.erase_node(node)
    return [(output, new) for output in outputs]


def name_of(node: Node) -> str:
    """The submodule that makes the call, and the node."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0] if stack else ""
    return f"{path} ({node.name})" if path else node.name


def use_heed_attention(program: ExportedProgram) -> Report:
    """Replaces attention in `program`, in its branches too. heed's library must have been loaded."""
    if not hasattr(torch.ops.heed, "attend"):
        raise RuntimeError(
            "use_heed_attention: heed::attend is not registered: "
            'torch.ops.load_library("libheed_ops.so") comes first'
        )
    report = Report()
    for module in program.graph_module.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in list(module.graph.nodes):
            if node.target not in (SDPA, CPU_KERNEL, *CUDA_KERNELS):
                continue
            name = name_of(node)
            try:
                replaced = change(node)
            except Refused as refusal:
                report.left.append((name, str(refusal)))
                continue
            report.changed.append(name)
            if module is program.graph_module:
                for old, new in replaced:
                    program.graph_signature.replace_all_uses(old.name, new.name)
        module.recompile()
    return report


def load_library(path: Path) -> None:
    try:
        # Unlike torch.ops.load_library, this also looks where the system keeps libraries.
        ctypes.CDLL(str(path.resolve() if path.exists() else path))
    except OSError as error:
        fail(f"cannot load {path}: {error}")
    if not hasattr(torch.ops.heed, "attend"):
        fail(f"{path} registers no heed::attend; it must be heed's libheed_ops.so")


def read_program(path: Path) -> ExportedProgram:
    # What torch.export.load logs about a file that it cannot read, and about sizes of other files.
    for name in ("torch.export", "torch._export.serde.serialize"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with path.open("rb") as file:
            return torch.export.load(io.BytesIO(file.read()))
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except Exception as error:  # whatever another kind of file leads to
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        fail(f"{path} must be a program that torch.export.save wrote: {reason}")


def write_program(program: ExportedProgram, path: Path) -> None:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    try:
        path.write_bytes(buffer.getbuffer())
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")


def main() -> None:
    summary, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="IN", help="the exported program")
    parser.add_argument("out", type=Path, metavar="OUT", help="the program to write")
    parser.add_argument(
        "--library",
        type=Path,
        default=Path("libheed_ops.so"),
        metavar="FILE",
        help="heed's operators (libheed_ops.so)",
    )
    options = parser.parse_args()
    load_library(options.library)
    program = read_program(options.source)
    report = use_heed_attention(program)
    if not report.changed and not report.left:
        fail(f"{options.source} holds no call of attention: was it exported with run_decompositions?")
    write_program(program, options.out)
    print(f"{options.out}: {report}")


if __name__ == "__main__":
    main()
