"""From logits to tokens and how sure they are: a kernel on a GPU, torch elsewhere, one signature."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ir.errors import TrajspecError

#: Ids that one program reads, in blocks of BLOCK. How a row is cut depends on the vocabulary alone, never on the number
#: of rows: a row has the same bits in a call of its own and in a packed one. 32 rows of 126,464 ids are 512 programs.
PART, BLOCK = 8192, 4096
#: What the kernel computes from; float64 goes to torch.
TYPES = (torch.bfloat16, torch.float16, torch.float32)
#: Whether the kernels can be had; importing them, and triton, waits for the first CUDA tensor.
TRITON = find_spec("triton") is not None


class Scores(NamedTuple):
    """By row, each [R]; `margin`, `token2` and `entropy` are None where they were not asked for.

    `token` int64: the likeliest id, the lowest of equals. `log_confidence`: its log probability. `bad` bool: some logit
    of the row, of whatever id, is NaN or +inf. `empty` bool: no id is possible. `margin`: the largest probability less
    the second, `token2` int64 the id of that one (`token` itself where no other is possible, with a margin of 1).
    `entropy` in nats. The numbers are float32, float64 for float64 logits. A row that is `bad` or `empty` has NaN for
    numbers and 0 for ids, which may be looked up.
    """

    token: Tensor
    log_confidence: Tensor
    bad: Tensor
    empty: Tensor
    margin: Tensor | None
    token2: Tensor | None
    entropy: Tensor | None


def score_rows(
    logits: Tensor, mask_id: int | None, allowed: Tensor | None = None, margin: bool = False, entropy: bool = False
) -> Scores:
    """The scores of `logits` [R, V], float, over the ids that may be predicted. Nothing is read from the device.

    Out, of the largest as of the sums, are `mask_id` (None: no id), ids that are not in `allowed` (bool [V] or [R, V];
    None: all are), and those with a logit of -inf. The log confidence is -log1p(sum over v != argmax of
    exp(l_v - max)), in at least float32, so that sure tokens keep an order down to float32's smallest number, a
    lead of 87 nats. Off the exact value by at most 16 + 2d units in the last place (2^-23 of it) each, with d the mean
    distance in nats of the other ids below the likeliest, weighted by their probability: entropy as well; the
    margin by at most 16.

    CUDA tensors go through the Triton kernels if triton is there. Raises TrajspecError for other shapes or types.
    """
    _check(logits, mask_id, allowed)
    if logits.is_cuda and logits.dtype in TYPES and TRITON:
        token, conf, bad, empty, gap, token2, nats = torch.ops.trajspec.score_rows(
            logits, -1 if mask_id is None else mask_id, allowed, margin, entropy
        )
        wide, second = (gap, token2) if margin else (None, None)
        return Scores(token, conf, bad, empty, wide, second, nats if entropy else None)
    return torch_scores(logits, mask_id, allowed, margin, entropy)


def _check(logits: Tensor, mask_id: int | None, allowed: Tensor | None) -> None:
    if logits.dim() != 2 or not logits.is_floating_point() or not logits.shape[-1]:
        raise TrajspecError(f"logits are {_told(logits)}; expected floating numbers [rows, ids] with at least one id")
    rows, size = logits.shape
    if mask_id is not None and not 0 <= mask_id < size:
        raise TrajspecError(f"mask_id is {mask_id}; expected an id from 0 to {size - 1}, or None for no mask id")
    if allowed is not None and (allowed.dtype != torch.bool or tuple(allowed.shape) not in ((size,), (rows, size))):
        raise TrajspecError(f"allowed is {_told(allowed)}; expected torch.bool [{size}] or [{rows}, {size}]")
    if allowed is not None and allowed.device != logits.device:
        raise TrajspecError(f"allowed is on {allowed.device}, logits on {logits.device}; move one to the other")


def _told(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def torch_scores(
    logits: Tensor, mask_id: int | None, allowed: Tensor | None = None, margin: bool = False, entropy: bool = False
) -> Scores:
    """`score_rows` in torch operators, on any device; the arguments are those of `score_rows`."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    bad = ~(wide.amax(dim=-1) < math.inf)  # NaN is the largest of all, and below nothing
    if mask_id is not None:
        wide = wide.clone()
        wide[:, mask_id] = -math.inf
    if allowed is not None:
        wide = wide.masked_fill(~allowed, -math.inf)
    token = wide.argmax(dim=-1, keepdim=True)  # documented: the first of equals
    top = wide.gather(-1, token)
    empty = (top == -math.inf)[:, 0] & ~bad
    lost = bad | empty

    shifted = wide - top
    each = torch.exp(shifted).scatter(-1, token, 0.0)
    others = each.sum(dim=-1)
    wider = second = nats = None
    if margin:
        rest = wide.scatter(-1, token, -math.inf)
        after = rest.argmax(dim=-1, keepdim=True)
        best = rest.gather(-1, after)
        second = torch.where(best == -math.inf, token, after)[:, 0].masked_fill(lost, 0)
        wider = (-torch.expm1(best - top)[:, 0] / (1 + others)).masked_fill(lost, math.nan)
    if entropy:
        moment = torch.where(each > 0, each * shifted, 0.0).sum(dim=-1)
        nats = (torch.log1p(others) - moment / (1 + others)).masked_fill(lost, math.nan)
    conf = (-torch.log1p(others)).masked_fill(lost, math.nan)
    return Scores(token[:, 0].masked_fill(lost, 0), conf, bad, empty, wider, second, nats)


def launch(
    module: Any,
    logits: Tensor,
    mask_id: int,
    allowed: Tensor | None,
    margin: bool,
    entropy: bool,
    part: int = PART,
    block: int = BLOCK,
) -> tuple[Tensor, ...]:
    """Run the kernels of `module`: the fields of `Scores`, empty where not asked for; `mask_id` -1 is none.

    `part`, a multiple of `block`, a power of two, says how rows are cut.
    """
    rows, size = logits.shape
    parts = math.ceil(size / part)
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    if allowed is not None and allowed.stride(-1) != 1:
        allowed = allowed.contiguous()
    step = 0 if allowed is None or allowed.dim() == 1 else allowed.stride(0)
    told = outputs(logits, margin, entropy)
    if not rows:
        return told
    reals = torch.empty(4, rows, parts, dtype=torch.float32, device=logits.device)
    whole = torch.empty(3, rows, parts, dtype=torch.int32, device=logits.device)
    # Without a plane some tensor has to stand there; it is not looked at.
    plane = told[2] if allowed is None else allowed
    # Fusing is said here because Triton's default differs by version and by environment, and it changes bits.
    asked = {"MARGIN": margin, "ENTROPY": entropy, "enable_fp_fusion": True}
    module.score_parts[rows, parts](
        logits, plane, reals, whole, size, mask_id, logits.stride(0), step, rows * parts,
        PLANE=allowed is not None, PART=part, BLOCK=block, num_warps=8, **asked,
    )  # fmt: skip
    module.score_merge[(rows,)](
        reals, whole, *told, parts, rows * parts, PARTS=1 << (parts - 1).bit_length(), num_warps=1, **asked
    )
    return told


def outputs(logits: Tensor, margin: bool, entropy: bool) -> tuple[Tensor, ...]:
    """Room for the fields of `Scores`, none for what is not asked for."""

    def room(dtype: torch.dtype, asked: bool = True) -> Tensor:
        return torch.empty(logits.shape[0] if asked else 0, dtype=dtype, device=logits.device)

    return (
        room(torch.int64), room(torch.float32), room(torch.bool), room(torch.bool), room(torch.float32, margin),
        room(torch.int64, margin), room(torch.float32, entropy),
    )  # fmt: skip


# An operator of its own, so that a step compiled as one graph runs the same kernels, to the same bits, as an eager one.
@torch.library.custom_op("trajspec::score_rows", mutates_args=(), device_types="cuda")
def _score_rows(
    logits: Tensor, mask_id: int, allowed: Tensor | None, margin: bool, entropy: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from . import score_triton

    with torch.cuda.device_of(logits):
        return launch(score_triton, logits, mask_id, allowed, margin, entropy)  # type: ignore[return-value]


@_score_rows.register_fake
def _(logits: Tensor, mask_id: int, allowed: Tensor | None, margin: bool, entropy: bool) -> tuple[Tensor, ...]:
    return outputs(logits, margin, entropy)


__all__ = ["BLOCK", "PART", "TRITON", "TYPES", "Scores", "launch", "outputs", "score_rows", "torch_scores"]
