"""bfloat16, and types of eight bits and four: what their codes stand for, and the nearest code to a number.

Torch's names: `float8_e4m3fn` has no infinities and one NaN a sign, `float8_e5m2` has both, `float4_e2m1fn_x2` holds
two codes of four bits in a byte, the first in the low half, and has neither. NumPy has none of them.

Source: OCP 8-bit Floating Point Specification 1.0, table 1; OCP Microscaling Formats 1.0, table 1; what is beyond the
largest number becomes the largest (e4m3fn) or infinite (e5m2), as torch 2.13 has it; older ones
make NaN of the first.
"""

import functools
from typing import NamedTuple

import numpy as np

from .tensors import Array

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
FLOAT4 = "float4_e2m1fn_x2"
SHORT = ("bfloat16", *FLOAT8)
"""Types that NumPy does not have: to its functions they are bits."""


class Format(NamedTuple):
    """Of a code: one sign, `exponent` bits, `mantissa` bits."""

    exponent: int
    mantissa: int
    bias: int
    infinities: bool


FORMATS = {
    "float8_e4m3fn": Format(4, 3, 7, False),
    "float8_e5m2": Format(5, 2, 15, True),
    FLOAT4: Format(2, 1, 1, False),
}


@functools.lru_cache(maxsize=None)
def table(dtype: str) -> Array:
    """Return the number of every code, as float32; of a byte of fours the numbers of its low halves."""
    form = FORMATS[dtype]
    codes = np.arange(256 if dtype != FLOAT4 else 16)
    sign = np.where(codes >> (form.exponent + form.mantissa), -1.0, 1.0)
    # A table of all codes follows the specification's formula once, and decoding is one lookup.
    power = (codes >> form.mantissa) & ((1 << form.exponent) - 1)
    part = (codes & ((1 << form.mantissa) - 1)) / (1 << form.mantissa)
    values = np.where(power > 0, (1 + part) * 2.0 ** (power - form.bias), part * 2.0 ** (1 - form.bias)) * sign
    top = power == (1 << form.exponent) - 1
    if form.infinities:
        values = np.where(top, np.where(part == 0, sign * np.inf, np.nan), values)
    elif dtype != FLOAT4:
        values = np.where(top & (part == part.max()), np.nan, values)
    return values.astype(np.float32)


def float4_values(codes: Array) -> Array:
    """Return bytes as twice as many numbers along the last axis."""
    both = np.stack([codes & 15, codes >> 4], axis=-1)
    return table(FLOAT4)[both].reshape(*codes.shape[:-1], -1)


def float8_bits(values: Array, dtype: str) -> Array:
    """Round to the nearest code, ties to the even one; the largest of e5m2 is odd, so the tie above it is infinite."""
    known = table(dtype)[:128]
    finite = known[np.isfinite(known)].astype(np.float64)
    # Positive codes ascend with their values; what is beyond the last middle is infinite, where there are infinities.
    middles = (finite[1:] + finite[:-1]) / 2
    if FORMATS[dtype].infinities:
        middles = np.append(middles, finite[-1] + (finite[-1] - finite[-2]) / 2)
    size = np.abs(np.asarray(values, dtype=np.float64))
    code = np.searchsorted(middles, size)
    code += (code & 1) & (np.append(middles, np.nan)[code] == size)
    code = np.where(np.isnan(size), 0x7F, code)
    return (code | (np.signbit(values).astype(np.int64) << 7)).astype(np.uint8)


def bfloat16_values(bits: Array) -> Array:
    """Return bfloat16 bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bfloat16_bits(values: Array) -> Array:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    # Adding 0x7FFF plus the lowest kept bit carries exactly when rounding to even goes up.
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    short = rounded.astype(np.uint16)
    lost = np.isnan(values)
    # The carry could turn a NaN's mantissa into infinity, so NaN gets its code explicitly.
    if lost.any():
        short[lost] = 0x7FC0
    return short


def short_bits(values: Array, dtype: str) -> Array:
    """Return numbers as the bits of a type that NumPy does not have."""
    return bfloat16_bits(values) if dtype == "bfloat16" else float8_bits(values, dtype)
