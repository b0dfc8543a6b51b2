# SPDX-License-Identifier: BSD-3-Clause
"""heed's operators, and what only Python can register for them.

    import heed_ops

    heed_ops.load("libheed_ops.so")
    output = torch.ops.heed.attend(query, key, value, causal=True)

torch.utils.flop_counter counts the products of attention. DTensors are computed in shards of batch
and heads. `decompositions` has the operators as PyTorch's own, for torch.onnx and other exporters.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import register_flop_formula

HAS_DTENSOR = torch.distributed.is_available() and hasattr(torch.library, "register_torch_dispatch")
if HAS_DTENSOR:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

_loaded = False


def load(library: Union[str, Path, None] = None) -> None:
    """Loads libheed_ops.so, from beside this file by default. Further calls do nothing."""
    global _loaded
    if _loaded:
        return
    torch.ops.load_library(library or Path(__file__).resolve().parent / "libheed_ops.so")
    register_flop_formulas()
    if HAS_DTENSOR:
        register_dtensor_rules()
    _loaded = True


def operators() -> Iterator[torch._ops.OpOverload]:
    """All of heed's operators, also those of which the passes of a traced call consist."""
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("heed::"):
            yield getattr(torch.ops.heed, name.partition("::")[2]).default


# FLOPs: each product of [L, D] by [D, S] counts 2 L S D, hidden keys too, as PyTorch counts
# F.scaled_dot_product_attention.


def is_known(tensor: torch.Tensor) -> bool:
    """Whether the numbers of a tensor can be read."""
    return type(tensor) is torch.Tensor and tensor.device.type != "meta"


def forward_flops(query: torch.Tensor, value: torch.Tensor, pairs: int) -> int:
    """A forward pass has two products. `pairs` counts the pairs of a query and a key in one head."""
    return 2 * pairs * query.shape[1] * (query.shape[-1] + value.shape[-1])


def backward_flops(query: torch.Tensor, value: torch.Tensor, pairs: int) -> int:
    """A backward pass has five products: the scores again, and two gradients of each product."""
    return 2 * pairs * query.shape[1] * (3 * query.shape[-1] + 2 * value.shape[-1])


def padded_pairs(query: torch.Tensor, key: torch.Tensor) -> int:
    return query.shape[0] * query.shape[2] * key.shape[2]


def packed_pairs(
    query: torch.Tensor,
    key: torch.Tensor,
    query_offsets: torch.Tensor,
    key_offsets: torch.Tensor,
    longest: Tuple[Optional[int], Optional[int]],
) -> int:
    """The pairs within sequences; the most that there can be if the offsets are not known."""
    if is_known(query_offsets) and is_known(key_offsets):
        return int((query_offsets.diff() * key_offsets.diff()).sum())
    most = query.shape[0] * key.shape[0]
    if None in longest:
        return most
    return min(most, (query_offsets.shape[0] - 1) * longest[0] * longest[1])


def paged_pairs(
    query: torch.Tensor,
    pages: torch.Tensor,
    page_table: torch.Tensor,
    query_offsets: torch.Tensor,
    key_lengths: torch.Tensor,
) -> int:
    """The pairs within sequences; the most that there can be if the lengths are not known."""
    if is_known(query_offsets) and is_known(key_lengths):
        return int((query_offsets.diff() * key_lengths).sum())
    return query.shape[0] * page_table.shape[1] * pages.shape[2]


def loss_flops(x: torch.Tensor, weight: torch.Tensor, *args: Any, out_val: Any = None, **kwargs: Any
               ) -> int:
    """The forward pass of a loss has one product: the scores."""
    return 2 * x.shape[0] * weight.shape[0] * weight.shape[1]


def loss_backward_flops(output_gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor,
                        *args: Any, wanted: List[bool] = [True, True, True], out_val: Any = None,
                        **kwargs: Any) -> int:
    """The backward pass of a loss has the scores again, and a product for each gradient."""
    return (1 + sum(wanted[:2])) * loss_flops(x, weight)


def flop_formula(op: torch._ops.OpOverload) -> Optional[Callable]:
    """A function of an operator's arguments, or None if the operator has no products."""
    if op._opname.startswith("linear_cross_entropy"):
        return loss_backward_flops if op._opname.endswith("_backward") else loss_flops
    names = [argument.name for argument in op._schema.arguments]
    if "query" not in names:
        return None
    of_pass = backward_flops if names[0] == "output_gradient" else forward_flops

    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        given = {**dict.fromkeys(names), **dict(zip(names, args)), **kwargs}
        query, offsets = given["query"], given.get("query_offsets")
        if "page_table" in given:
            return of_pass(query, given["value_pages"], paged_pairs(
                query, given["key_pages"], given["page_table"], offsets, given["key_lengths"]))
        key, value = given["key"], given["value"]
        if offsets is None:
            return of_pass(query, value, padded_pairs(query, key))
        longest = (given["longest_query"], given["longest_key"])
        return of_pass(query, value, packed_pairs(query, key, offsets, given["key_offsets"], longest))

    return formula


def register_flop_formulas() -> None:
    for op in operators():
        formula = flop_formula(op)
        if formula is not None:
            register_flop_formula(op.overloadpacket, get_raw=True)(formula)


# DTensors: each process computes batches, heads or, of layers, rows of its own.

# The letters of a tensor's dimensions, for each number of dimensions that it may have. H are the heads
# of queries, and of keys and values too. A tensor without an entry is never split.
LETTERS = {
    **dict.fromkeys(("query", "output", "output_rest"), "THD BHLD"),
    **dict.fromkeys(("key", "value"), "UHD BHSD"),
    **dict.fromkeys(("key_pages", "value_pages"), "PHSD"),
    **dict.fromkeys(("key_scales", "value_scales"), "PHS"),
    **dict.fromkeys(("mask", "bias"), "LS BLS BHLS"),
    **dict.fromkeys(("lse", "largest", "inverse_sum"), "TH BHL"),
    "weights": "BHLS",
    "alibi_slopes": "H BH",
    "sinks": "H",
    "relative_bias": "HR",
    "documents": "L BL",
    **dict.fromkeys(("key_documents", "global_tokens", "relative_positions"), "S BS"),
    **dict.fromkeys(("query_lengths", "key_lengths"), "B"),
    "x": "D TD BLD BHLD",
    **dict.fromkeys(("cos", "sin"), "LD BLD"),
}
# The letters by which results do not depend on each other.
SPLIT = {"rotate": "BHL", "rms_norm": "BHLT", "rms_norm_backward": "BHLT"}
# They may carry gradients: as tensors that are no DTensors, they would get DTensors as gradients.
DIFFERENTIABLE = {
    "query", "key", "value", "bias", "sinks", "relative_bias", "alibi_slopes", "x", "weight",
}


def letters_of(name: str, tensor: torch.Tensor) -> str:
    found = (each for each in LETTERS.get(name, "").split() if len(each) == tensor.dim())
    return next(found, "-" * tensor.dim())


def split_letters(name: str, tensor: torch.Tensor) -> str:
    """The letters of an argument. A dimension of size 1 is broadcast, and never split."""
    letters = letters_of(name, tensor)
    return "".join(letter if size != 1 else "-" for letter, size in zip(letters, tensor.shape))


class Sharding:
    """How one call is split: by one letter for each dimension of the mesh, or not at all. The first
    argument that comes split decides."""

    def __init__(self, op: torch._ops.OpOverload, tensors: Dict[str, torch.Tensor]) -> None:
        self.function = op._opname
        self.tensors = tensors  # the arguments, by name
        self.meshed = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
        self.mesh = next(iter(self.meshed.values())).device_mesh
        self.letters: List[Optional[str]] = []  # one for each dimension of the mesh
        for axis in range(self.mesh.ndim):
            self.letters.append(next(filter(self.fits, self.letters_now(axis)), None))

    def letters_now(self, axis: int) -> Iterator[str]:
        """The letters by which the arguments come split."""
        for name, tensor in self.meshed.items():
            placement = tensor.placements[axis]
            if placement.is_shard():
                own = name.removesuffix("_gradient")
                yield split_letters(own, tensor)[placement.dim]

    def fits(self, letter: str) -> bool:
        """Whether the next dimension of the mesh can split all tensors by it, into equal shards."""
        first = "x" if "x" in self.tensors else "query"
        if letter not in SPLIT.get(self.function, "BH") or letter not in split_letters(
                first, self.tensors[first]):
            return False
        count = self.mesh.size(len(self.letters))
        for axis, earlier in enumerate(self.letters):
            count *= self.mesh.size(axis) if earlier == letter else 1
        sizes = {tensor.shape[split_letters(name, tensor).index(letter)]
                 for name, tensor in self.tensors.items() if letter in split_letters(name, tensor)}
        # Queries and keys may differ in heads. A mask of fewer batches is not split.
        return all(size % count == 0 for size in sizes) and (letter == "H" or len(sizes) == 1)

    def placements(self, letters: str, is_gradient: bool = False) -> list:
        """Where a tensor with these letters lies. A gradient is a sum over the shards of other letters."""
        whole = Partial() if is_gradient else Replicate()
        return [Replicate() if letter is None else
                Shard(letters.index(letter)) if letter in letters else whole
                for letter in self.letters]

    def local(self, name: str) -> torch.Tensor:
        """The process's shard of an argument."""
        tensor = self.tensors[name]
        placements = self.placements(split_letters(name.removesuffix("_gradient"), tensor))
        if name in self.meshed:
            return tensor.redistribute(self.mesh, placements).to_local()
        if name in DIFFERENTIABLE or any(each.is_shard() for each in placements):
            raise ValueError(
                f"{self.function}: {name} must be a DTensor, as other arguments are; "
                "torch.distributed.tensor.distribute_tensor makes one"
            )
        return tensor

    def whole(self, name: str, local: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """A result, of which this is the process's shard. A gradient is split as its argument."""
        if local is None:
            return None
        argument = name.removesuffix("_gradient")
        is_gradient = argument != name
        letters = (split_letters(argument, self.tensors[argument]) if is_gradient
                   else letters_of(name, local))
        placements = self.placements(letters, is_gradient)
        return DTensor.from_local(local, self.mesh, placements, run_check=False)


def call_in_shards(cls: type, op: torch._ops.OpOverload, types: tuple, args: tuple,
                   kwargs: Optional[dict]) -> Any:
    """The rule of every operator of heed for DTensors."""
    schema = op._schema
    names = [argument.name for argument in schema.arguments]
    given = {**dict(zip(names, args)), **(kwargs or {})}
    sharding = Sharding(op, {name: value for name, value in given.items()
                             if isinstance(value, torch.Tensor)})
    given.update({name: sharding.local(name) for name in sharding.tensors})
    positional = [given.pop(name) for name in names[:len(args)]]
    results = op(*positional, **given)
    if len(schema.returns) == 1:
        return sharding.whole("x" if "x" in sharding.tensors else "output", results)
    return tuple(sharding.whole(each.name, local) for each, local in zip(schema.returns, results))


def register_dtensor_rules() -> None:
    for op in operators():
        torch.library.register_torch_dispatch(op.name(), DTensor, call_in_shards)


# The operators as compositions of PyTorch's own. They say the same as AttendOptions, but a NaN or an
# infinity in a hidden key or value gives NaN.


@dataclass
class Options:
    """The options of the operator attend."""

    mask: Optional[torch.Tensor] = None
    bias: Optional[torch.Tensor] = None
    causal: bool = False
    window: Optional[int] = None
    dropout: float = 0.0
    scale: Optional[float] = None
    softcap: Optional[float] = None
    alibi_slopes: Optional[torch.Tensor] = None
    sinks: Optional[torch.Tensor] = None
    documents: Optional[torch.Tensor] = None
    key_documents: Optional[torch.Tensor] = None
    left_window: Optional[int] = None
    right_window: Optional[int] = None
    top_left: bool = False
    global_tokens: Optional[torch.Tensor] = None
    query_lengths: Optional[torch.Tensor] = None
    key_lengths: Optional[torch.Tensor] = None
    mask_batch: str = "each"
    relative_bias: Optional[torch.Tensor] = None
    relative_positions: Optional[torch.Tensor] = None


def of_batch(tensor: torch.Tensor) -> torch.Tensor:
    """[n] or [B, n] as [1 or B, n]"""
    return tensor if tensor.dim() == 2 else tensor[None]


def taken(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Elements of [1 or B, S] at places [1 or B, L], which are moved into [0, S)."""
    batch = torch.broadcast_shapes((tensor.shape[0], 1), (places.shape[0], 1))[0]
    places = places.clamp(0, tensor.shape[1] - 1)
    return tensor.expand(batch, -1).gather(1, places.expand(batch, -1))


class Scores:
    """Which scores of a call there are, and what is added to them."""

    def __init__(self, query: torch.Tensor, key: torch.Tensor, options: Options) -> None:
        self.options = options
        self.batch = query.shape[0]
        self.rows = torch.arange(query.shape[2], device=query.device)
        self.keys = torch.arange(key.shape[2], device=query.device)
        self.positions = self.rows[None]  # of queries, [1 or B, L]
        if not options.top_left:
            ends = [size if lengths is None else lengths[:, None] for size, lengths in (
                (key.shape[2], options.key_lengths), (query.shape[2], options.query_lengths))]
            self.positions = self.positions + (ends[0] - ends[1])
        self.distance = self.keys - self.positions[:, :, None]  # [1 or B, L, S]

    def with_heads(self, scores: torch.Tensor) -> torch.Tensor:
        """A mask or bias as [B or 1, H or 1, L or 1, S]."""
        if scores.dim() == 2:
            return scores[None, None]
        scores = scores[:, None] if scores.dim() == 3 else scores
        if self.options.mask_batch == "cycled":
            return scores.repeat(self.batch // scores.shape[0], 1, 1, 1)
        if self.options.mask_batch == "repeated":
            return scores.repeat_interleave(self.batch // scores.shape[0], 0)
        return scores

    def seen_by_windows(self) -> torch.Tensor:
        """bool [1 or B, L, S]"""
        options = self.options
        left, right = options.left_window, options.right_window
        if options.window is not None:
            left = right = options.window - 1
        seen = torch.ones_like(self.distance, dtype=torch.bool)
        if left is not None:
            seen = seen & (self.distance >= -left)
        if right is not None:
            seen = seen & (self.distance <= right)
        if options.global_tokens is not None:
            tokens = of_batch(options.global_tokens)
            exist = (self.positions >= 0) & (self.positions < tokens.shape[1])
            sees_all = taken(tokens, self.positions) & exist
            seen = seen | tokens[:, None, :] | sees_all[:, :, None]
        return seen

    def seen(self) -> torch.Tensor:
        """bool [B or 1, H or 1, L, S]"""
        options = self.options
        seen = self.seen_by_windows()
        if options.causal:
            seen = seen & (self.distance <= 0)
        if options.query_lengths is not None:
            seen = seen & (self.rows < options.query_lengths[:, None])[:, :, None]
        if options.key_lengths is not None:
            seen = seen & (self.keys < options.key_lengths[:, None])[:, None, :]
        if options.documents is not None:
            of_queries = of_batch(options.documents)
            of_keys = of_queries if options.key_documents is None else of_batch(options.key_documents)
            seen = seen & (of_queries[:, :, None] == of_keys[:, None, :])
        seen = seen[:, None]
        return seen if options.mask is None else seen & (self.with_heads(options.mask) != 0)

    def added(self, dtype: torch.dtype) -> Iterator[torch.Tensor]:
        """Tensors [B or 1, H or 1, L or 1, S]."""
        options = self.options
        if options.bias is not None:
            yield self.with_heads(options.bias.to(dtype))
        if options.alibi_slopes is not None:
            slopes = of_batch(options.alibi_slopes.to(dtype))[:, :, None, None]
            yield -slopes * self.distance.abs()[:, None]
        if options.relative_bias is not None:
            of_keys, of_queries = self.keys[None], self.positions
            if options.relative_positions is not None:
                of_keys = of_batch(options.relative_positions)
                of_queries = taken(of_keys, self.positions)
            farthest = options.relative_bias.shape[1] // 2
            between = (of_keys[:, None, :] - of_queries[:, :, None]).clamp(-farthest, farthest)
            yield options.relative_bias.to(dtype)[:, between + farthest].transpose(0, 1)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **given: Any
              ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output [B, H, L, Dv], weights [B, H, L, S] and lse [B, H, L]."""
    options = Options(**given)
    if options.dropout != 0.0:
        raise ValueError(f"heed_ops.decompositions: dropout ({options.dropout}) must be 0")
    dtype = query.dtype
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    query, key, value = (tensor.to(precise) for tensor in (query, key, value))
    groups = (key.shape[1], query.shape[1] // key.shape[1])
    scale = query.shape[3] ** -0.5 if options.scale is None else options.scale
    grouped = (query * scale).unflatten(1, groups)  # [B, G, H / G, L, D]
    scores = (grouped @ key[:, :, None].transpose(3, 4)).flatten(1, 2)
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    shape = Scores(query, key, options)
    for each in shape.added(precise):
        scores = scores + each
    scores = torch.where(shape.seen(), scores, -math.inf)
    largest = scores.amax(3, keepdim=True)
    if options.sinks is not None:
        sinks = options.sinks.to(precise)[:, None, None]
        largest = torch.maximum(largest, sinks)
    largest = torch.where(largest == -math.inf, 0.0, largest)
    weights = torch.exp(scores - largest)
    total = weights.sum(3, keepdim=True)
    if options.sinks is not None:
        total = total + torch.exp(sinks - largest)
    weights = weights / torch.where(total == 0.0, 1.0, total)
    output = (weights.unflatten(1, groups) @ value[:, :, None]).flatten(1, 2)
    return output.to(dtype), weights.to(dtype), (largest + torch.log(total))[..., 0]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False
           ) -> torch.Tensor:
    precise = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = (each.to(precise).unsqueeze(-3) for each in (cos, sin))  # [B or none, 1, L, R / 2]
    turned = 2 * cos.shape[-1]
    rows = x[..., :turned].to(precise)
    first, second = (rows[..., ::2], rows[..., 1::2]) if interleaved else rows.chunk(2, -1)
    pairs = (first * cos - second * sin, second * cos + first * sin)
    rows = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
    return torch.cat([rows.to(x.dtype), x[..., turned:]], -1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-5) -> torch.Tensor:
    precise = torch.float64 if x.dtype == torch.float64 else torch.float32
    rows = x.to(precise)
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    return (rows * weight.to(precise)).to(x.dtype)


def linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: Optional[torch.Tensor] = None,
    class_weight: Optional[torch.Tensor] = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: Optional[float] = None,
    reduction: str = "mean",
) -> torch.Tensor:
    precise = torch.float64 if x.dtype == torch.float64 else torch.float32
    scores = F.linear(x, weight, bias).to(precise)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if class_weight is not None:
        class_weight = class_weight.to(precise)
    counts = (targets != ignore_index).to(precise)
    losses = F.cross_entropy(scores, targets, class_weight, ignore_index=ignore_index,
                             label_smoothing=label_smoothing, reduction="none")
    z = z_loss * torch.logsumexp(scores, 1).square() * counts
    if reduction != "mean":
        return losses + z if reduction == "none" else losses.sum() + z.sum()
    rows = counts.sum()
    total = rows
    if class_weight is not None:
        total = (class_weight[torch.where(counts == 0.0, 0, targets)] * counts).sum()
    none = rows == 0.0
    return (losses.sum() / torch.where(none, 1.0, total)
            + z.sum() / torch.where(none, 1.0, rows))


def decompositions() -> Dict[torch._ops.OpOverload, Callable]:
    """The operators as compositions of PyTorch's own, for programs that run elsewhere:

        program = torch.export.export(model, inputs)
        torch.onnx.export(program.run_decompositions(heed_ops.decompositions()), f="model.onnx")

    Those of packed sequences and of pages are left out: their offsets decide the shapes inside.
    """
    heed = torch.ops.heed
    return {
        heed.attend.default: lambda *tensors, **options: attention(*tensors, **options)[0],
        heed.attend_with_weights.default: lambda *tensors, **options: attention(*tensors, **options)[:2],
        heed.attend_with_lse.default: lambda *tensors, **options: attention(*tensors, **options)[::2],
        heed.rotate.default: rotate,
        heed.rms_norm.default: rms_norm,
        heed.linear_cross_entropy.default: linear_cross_entropy,
    }
