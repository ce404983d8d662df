"""Errors of an answer and of the reference, both against double precision: is it less exact than its type allows?"""

from typing import Any, Dict

import numpy as np

from ..numerics.compare import numbers
from ..numerics.tensors import Array
from .fp64_reference import EPSILON

COARSE = 50.0
"""Times the noise floor from which biased errors look like lower precision."""
VERY_COARSE = 1000.0
"""As above, without bias: bfloat16, float16 and TF32 are 2^13 to 2^16 times as coarse as float32."""
MOST = 90.0
"""Per cent of elements whose relative errors are looked at too: a few large elements hide what is off in all others.
With cancellation they are large as well, and so are the reference's own."""
FEW_HIDE_MOST = "looks like lower precision: relative errors are %.3g times the noise floor, at the %gth percentile"
BIASED = 0.1
"""Mean signed error over its spread."""
BFLOAT16_LIKE = 2.0**-9.8
"""Relative root mean square error between what eight bits of mantissa give, rounded, and eleven that are cut off: 0.16
and 0.08 %, as Triton's tl.dot in TF32 cuts them off on an H200."""

NOTHING_LIKE = 2.0**-5
"""The same, from which an answer is wrong and not coarse: bfloat16 in a sum of terms of both signs has some 2^-7."""
SCATTERED = 8.0
"""Times the root mean square error that no element is off where all are rounded: a few gross errors are something else.
"""
SPARED = 1 / 64
"""Times the usual relative error: of rounded elements one in fifty is nearer than that, by chance."""
MANY_SPARED = 0.1
"""Of the elements, from which a part is wrong and the rest exact, as where a mask is missing; no type does that."""
NO_TYPE_LIKE = 2.0**-14
"""The same, below which no type is as coarse: float16 and TF32 have eleven bits."""

MISTAKE = 2.0**-8.5
"""As `BFLOAT16_LIKE`, from which a difference between two answers is taken for a mistake: bfloat16 gives some 2^-9, and
a bias or an activation that was left out gives some per cent."""
SPREAD = 0.5
"""Of the root mean square, that one in ten differences exceeds where rounding makes them; few gross ones are mistakes.
"""
ALL_ALIKE = 0.95
"""Of a difference, what a factor or a constant explains of a mistake and not of rounding, even of one that cuts off."""
LOOKED_AT = 1 << 16
"""Elements that tell how two answers differ."""
LIKE_TF32 = "looks like TF32 or float16"
TORCH_TF32 = "; torch's convolutions use TF32 unless torch.backends.cudnn.allow_tf32 = False, and autocast a half type"
"""Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, on TensorFloat-32, and amp.html, on autocast."""
TRITON_TF32 = '; tl.dot multiplies float32 in TF32 unless input_precision is "ieee" or "tf32x3"'
"""Source: https://triton-lang.org/main/python-api/generated/triton.language.dot.html, of NVIDIA's GPUs."""


def tf32_default(task: Dict[str, Any], reason: str) -> str:
    """Say where a candidate on a GPU may have TF32 without having asked for it; empty if a reason is no such one."""
    if LIKE_TF32 not in reason or task["device"] != "cuda":
        return ""
    triton = TRITON_TF32 if "triton" in task.get("packages", ()) else ""
    return triton + (TORCH_TF32 if task.get("candidate") == "model" else "")


def coarse_difference(expected: Array, got: Array, dtype: str, name: str) -> str:
    """Say which lower precision a wrong answer's differences from the reference look like; empty if none.

    Which of the two is coarse does not show. Both are flat, as they are stored.
    """
    if dtype not in ("float32", "float64"):
        return ""
    step = -(-expected.size // LOOKED_AT)
    want, have = (numbers(part[::step], dtype).astype(np.float64) for part in (expected, got))
    fine = np.isfinite(want) & np.isfinite(have)
    want, off = want[fine], (have - want)[fine]
    size, rms = (float(np.sqrt(np.mean(part * part))) if off.size else 0.0 for part in (want, off))
    relative = rms / max(size, 1e-300)
    if not NO_TYPE_LIKE <= relative < MISTAKE or float(np.percentile(np.abs(off), MOST)) < SPREAD * rms:
        return ""
    if max(abs(float(np.mean(off * want))) / size, abs(float(np.mean(off)))) > ALL_ALIKE * rms:
        return ""
    if _spared(want, np.abs(off), relative) > MANY_SPARED:
        return ""
    like = "looks like bfloat16" if relative > BFLOAT16_LIKE else LIKE_TF32
    return "; off by %.2g %% of %s as a whole: %s" % (100 * relative, name, like)


def _spared(values: Array, errors: Array, relative: float) -> float:
    """Return the share of elements that are exact where others are off by `relative` of the root mean square.

    Values that bfloat16 has, as zeros are behind an activation, any rounding spares: they do not count.
    """
    with np.errstate(over="ignore"):
        telling = values.astype(np.float32).view(np.uint32) & 0xFFFF != 0
    values, errors = values[telling], errors[telling]
    return float(np.mean(errors <= SPARED * relative * np.abs(values))) if values.size else 0.0


def distribution(oracle: Array, expected: Array, got: Array, dtype: str) -> Dict[str, Any]:
    """Return mean, 99th percentile and largest error, absolute, relative, and as multiples of the noise floor.

    The floor is the reference's own root mean square error, at least an eighth of the type's epsilon at the values'
    size. Signed errors count outwards as positive: what is cut off is negative for both signs. `floors_of_most`: a high
    percentile of the relative error, over the reference's own or an eighth of epsilon.
    """
    # Infinities and NaN are judged elsewhere; here one of them would swamp every mean.
    fine = np.isfinite(oracle) & np.isfinite(expected) & np.isfinite(got)
    truth, answer, known = oracle[fine], got[fine].astype(np.float64), expected[fine].astype(np.float64)
    if not truth.size:
        return {}
    error = np.abs(answer - truth)
    size = float(np.sqrt(np.mean(truth * truth)))
    least = max(EPSILON[dtype] / 8 * size, 1e-300)
    floor = max(float(np.sqrt(np.mean((known - truth) ** 2))), least)
    # Elements that cancel to nearly zero get a least size, or their relative errors would be unbounded.
    sizes = np.maximum(np.abs(truth), max(size * 1e-6, 1e-300))
    relative, own = error / sizes, float(np.percentile(np.abs(known - truth) / sizes, MOST))
    signed = (answer - truth) * np.sign(truth)
    spread = float(signed.std())
    found: Dict[str, Any] = {"noise_floor": floor, "rms": float(np.sqrt(np.mean(error * error))), "rms_of_values": size}
    found["bias"] = float(signed.mean()) / spread if spread else 0.0
    found["spared"] = _spared(truth, np.minimum(error, np.abs(answer - known)), found["rms"] / max(size, 1e-300))
    of_most, p99_relative = (float(each) for each in np.percentile(relative, (MOST, 99)))
    found["floors_of_most"] = of_most / max(own, EPSILON[dtype] / 8)
    for name, values, p99 in (("abs", error, float(np.percentile(error, 99))), ("rel", relative, p99_relative)):
        found["mean_" + name], found["p99_" + name] = float(values.mean()), p99
        found["max_" + name] = float(values.max())
    found.update({"%s_floors" % kind: found["%s_abs" % kind] / floor for kind in ("mean", "p99", "max")})
    return {name: float("%.4g" % value) for name, value in found.items()}


def lower_precision(errors: Dict[str, Any]) -> str:
    """Say in a few words which lower precision errors look like; empty if none."""
    if not suspicion(errors) or errors["max_abs"] > SCATTERED * errors["rms"] or errors["spared"] > MANY_SPARED:
        return ""
    relative = errors["rms"] / max(errors["rms_of_values"], 1e-300)
    if relative > BFLOAT16_LIKE:
        return "looks like bfloat16" if relative < NOTHING_LIKE else ""
    return LIKE_TF32 if relative > NO_TYPE_LIKE else "looks like lower precision"


def suspicion(errors: Dict[str, Any]) -> str:
    """Say so if errors look like those of a lower precision; empty if not."""
    times = errors.get("rms", 0.0) / errors["noise_floor"] if errors else 0.0
    biased = abs(errors.get("bias", 0.0)) > BIASED
    if times <= COARSE or not (biased or times > VERY_COARSE):
        of_most = errors.get("floors_of_most", 0.0)
        return FEW_HIDE_MOST % (of_most, MOST) if of_most > VERY_COARSE else ""
    relative = errors["rms"] / max(errors["rms_of_values"], 1e-300)
    like = "as bfloat16 would" if relative > BFLOAT16_LIKE else "as float16 or TF32 would"
    # A sequential float32 sum of n terms loses up to (n - 1) u, which resembles no shorter type.
    like = like if relative > NO_TYPE_LIKE else "or a long sum whose terms are added one after the other"
    like = "in a part of its elements, the rest is exact" if errors["spared"] > MANY_SPARED else like
    text = "looks like lower precision (%s): errors are %.3g times the noise floor%s"
    return text % (like, times, ", biased" if biased else "")
