"""AMD's aiter where it is not installed: what tasks ask of it, computed by its definition in torch.

Tasks of GPU MODE call it in their references. It runs on AMD's GPUs alone; what it answers is had anywhere.

Source: https://github.com/ROCm/aiter, aiter/ops/shuffle.py, aiter/ops/triton/quant, aiter/utility/fp4_utils.py and
aiter/mla.py (at e4048607): layouts, and how the scale of a block is rounded; OCP Microscaling Formats 1.0: MXFP4.
"""

import enum
import functools
import importlib
import importlib.util
import sys
import types
from typing import Any, Dict, List, Tuple

torch: Any = importlib.import_module("torch")

PAIRS = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
EXPONENTS = getattr(torch, "float8_e8m0fnu", torch.uint8)
"""Types of torch 2.8; before them, as for aiter, bytes."""
BLOCK = 32
"""Elements of MXFP4 that share a scale."""
FOURS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
DOWN, UP = (0.25, 1.25, 2.5, 5.0), (0.75, 1.75, 3.5)
"""Middles between neighbours, from which a tie goes to the even code: down, or up."""
NOTE = "aiter is not on this host: what the reference asks of it is computed by its definition"

LACKING = "aiter is not on this host, and the judge has no definition of %s; install aiter for judge_python"


class QuantType(enum.Enum):
    """Names of ways to quantize, as tasks import them."""

    No, per_Tensor, per_Token, per_1x32, per_1x128, per_128x128 = range(6)


def quantize_blocks(values: Any) -> Tuple[Any, Any]:
    """Return a matrix as MXFP4: bytes of two codes [rows, columns / 2], and exponents [rows, columns / 32] as bytes."""
    rows = values.shape[0]
    blocks = values.float().reshape(rows, -1, BLOCK)
    largest = blocks.abs().amax(dim=-1, keepdim=True).contiguous()
    power = ((largest.view(torch.int32) + 0x200000) & -0x800000).view(torch.float32)
    exponent = (power.log2().floor() - 2).clamp(-127, 127)
    sizes = (blocks * (-exponent).exp2()).reshape(rows, -1)
    codes = sum((sizes.abs() > middle).int() for middle in DOWN) + sum((sizes.abs() >= middle).int() for middle in UP)
    codes = codes + 8 * torch.signbit(sizes).int()
    pairs = codes[:, 0::2] | codes[:, 1::2] << 4
    return pairs.to(torch.uint8), (exponent[..., 0] + 127).to(torch.uint8)


def fours_as_floats(pairs: Any) -> Any:
    """Return bytes of two codes as twice as many float32 along the last axis."""
    codes = pairs.contiguous().view(torch.uint8).long()
    both = torch.stack([codes & 15, codes >> 4], dim=-1).reshape(*codes.shape[:-1], -1)
    return torch.tensor([*FOURS, *(-each for each in FOURS)], device=pairs.device)[both]


def exponents_as_floats(scales: Any) -> Any:
    """Return exponents, 127 for 1, as float32."""
    return (scales.contiguous().view(torch.uint8).float() - 127).exp2()


def shuffle_weight(weight: Any, layout: Tuple[int, int] = (16, 16), **_: Any) -> Any:
    """Return bytes of a matrix in tiles of 16 rows and 32 bytes, halves of 16 bytes within."""
    plain, rows = weight.view(torch.uint8), layout[0]
    count, wide = plain.shape[-2:]
    tiles = plain.reshape(-1, count // rows, rows, wide // 32, 2, 16).permute(0, 1, 3, 4, 2, 5)
    return tiles.contiguous().view(plain.shape).view(weight.dtype)


def unshuffled_weight(weight: Any) -> Any:
    """Return what `shuffle_weight` was given, as bytes."""
    count, wide = weight.shape[-2:]
    tiles = weight.view(torch.uint8).reshape(-1, count // 16, wide // 32, 2, 16, 16).permute(0, 1, 4, 2, 3, 5)
    return tiles.reshape(weight.shape)


def shuffle_scale(scales: Any) -> Any:
    """Return exponents in tiles of 32 rows and 8 columns, with as many more of 1 as fill 256 rows and whole tiles."""
    plain = scales.view(torch.uint8)
    rows, wide = plain.shape
    padded = torch.full((-(-rows // 256) * 256, -(-wide // 8) * 8), 127, dtype=torch.uint8, device=plain.device)
    padded[:rows, :wide] = plain
    tiles = padded.view(padded.shape[0] // 32, 2, 16, padded.shape[1] // 8, 2, 4).permute(0, 3, 5, 2, 4, 1)
    return tiles.contiguous().view(padded.shape).view(scales.dtype)


def unshuffled_scale(scales: Any) -> Any:
    """Return what `shuffle_scale` made its tiles of, as bytes."""
    rows, wide = scales.shape
    tiles = scales.view(torch.uint8).reshape(rows // 32, wide // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2)
    return tiles.reshape(rows, wide)


def multiply_fours(left: Any, right: Any, left_scale: Any, right_scale: Any, **how: Any) -> Any:
    """Return left [m, k/2] times right [n, k/2] transposed, by float32, in `dtype`; scales are shuffled."""
    plain = unshuffled_weight(right) if how.get("bpreshuffle", True) else right
    sides: List[Any] = []
    for pairs, scales in ((left, left_scale), (plain, right_scale)):
        values = fours_as_floats(pairs)
        each = exponents_as_floats(unshuffled_scale(scales))[: values.shape[0], : values.shape[1] // BLOCK]
        sides.append(values * each.repeat_interleave(BLOCK, dim=1))
    return (sides[0] @ sides[1].T).to(how.get("dtype") or torch.bfloat16)


def quantize_dynamically(values: Any, *_: Any, **__: Any) -> Tuple[Any, Any]:
    """Return MXFP4 by torch's types, as aiter.utility.fp4_utils has it."""
    pairs, exponents = quantize_blocks(values)
    return pairs.view(PAIRS), exponents.view(EXPONENTS)


def describe_work(*_: Any, **__: Any) -> List[Tuple[Tuple[int], Any]]:
    """Return sizes and types of the six buffers that decoding plans in: none is needed here."""
    return [((1,), torch.int32)] * 6


def plan_work(*_: Any, **__: Any) -> None:
    """Plan nothing."""


def decode_latent_attention(
    query: Any, cache: Any, into: Any, query_starts: Any, starts: Any, places: Any, *_: Any, **how: Any
) -> None:
    """Write multi-head latent attention of each sequence into `into` [queries, heads, values].

    Args:
        query: [queries, heads, keys], times `q_scale`.
        cache: [pages, 1, 1, keys], times `kv_scale`; the first of its columns are the values.
        into: What is written.
        query_starts: Where each sequence's queries begin, and their end.
        starts: Likewise, of its part of `places`.
        places: Pages.
        how: `sm_scale` and both scales; a later query sees the tokens of the ones before it.
    """
    left = query.float() * (1.0 if how.get("q_scale") is None else how["q_scale"].float())
    keys = cache.float().reshape(-1, cache.shape[-1]) * (
        1.0 if how.get("kv_scale") is None else how["kv_scale"].float()
    )
    for number in range(len(starts) - 1):
        own = left[int(query_starts[number]) : int(query_starts[number + 1])]
        seen = keys[places[int(starts[number]) : int(starts[number + 1])].long()]
        scores = torch.einsum("qhd,td->hqt", own, seen) * how["sm_scale"]
        last = torch.arange(len(own), device=own.device) + len(seen) - len(own)
        later = torch.arange(len(seen), device=own.device)[None, :] > last[:, None]
        weights = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
        found = torch.einsum("hqt,td->qhd", weights, seen[:, : into.shape[-1]])
        into[int(query_starts[number]) : int(query_starts[number + 1])] = found.to(into.dtype)


def is_stand_in() -> bool:
    """Say whether the aiter that is imported here is this one."""
    return getattr(sys.modules.get("aiter"), "__doc__", None) == NOTE


def _refuse(module: str, name: str) -> Any:
    """Refuse a name of aiter that has no definition here, so that `hasattr` and `getattr` with a default go on."""
    raise AttributeError(LACKING % ("%s.%s" % (module, name)))


def install_aiter() -> None:
    """Make aiter importable by its definition, unless it is installed."""
    if "aiter" in sys.modules or importlib.util.find_spec("aiter") is not None:
        return
    shuffles: Dict[str, Any] = {"shuffle_weight": shuffle_weight, "shuffle_scale": shuffle_scale}
    metadata = {"get_mla_metadata_info_v1": describe_work, "get_mla_metadata_v1": plan_work}
    fours = {
        "dynamic_mxfp4_quant": quantize_dynamically, "mxfp4_to_f32": fours_as_floats,
        "e8m0_to_f32": exponents_as_floats, "e8m0_shuffle": shuffle_scale,
    }  # fmt: skip
    kinds = {
        "fp4x2": PAIRS, "fp8": torch.float8_e4m3fn, "fp8_e8m0": EXPONENTS,
        "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32,
    }  # fmt: skip
    contents: Dict[str, Dict[str, Any]] = {
        "aiter": {"QuantType": QuantType, "gemm_a4w4": multiply_fours, **metadata},
        "aiter.dtypes": kinds,
        "aiter.mla": {"mla_decode_fwd": decode_latent_attention},
        "aiter.ops": {},
        "aiter.ops.shuffle": shuffles,
        "aiter.ops.triton": {},
        "aiter.ops.triton.quant": {"dynamic_mxfp4_quant": quantize_blocks},
        "aiter.utility": {},
        "aiter.utility.fp4_utils": fours,
    }
    for name, content in contents.items():
        module: Any = types.ModuleType(name, NOTE)
        module.__path__ = []
        module.__file__ = LACKING % ("this name of %s" % name)  # Python ends its own error of an import with it
        module.__getattr__ = functools.partial(_refuse, name)
        for key, value in content.items():
            setattr(module, key, value)
        sys.modules[name] = module
        above, _, own = name.rpartition(".")
        if above:
            setattr(sys.modules[above], own, module)
