"""Functions of NVIDIA's libdevice for Triton's interpreter, which has none: its stubs return None.

Source: triton 3.9 (language/extra/libdevice.py and cuda/libdevice.py, `extern_elementwise` of language/core.py).
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false

import functools
import importlib
import re
from typing import Any, Callable, Dict

SAME = """
    acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1 floor fmod hypot
    isnan isinf isfinite ldexp lgamma log log10 log1p log2 pow rsqrt signbit sin sinh sqrt tan tanh trunc
"""
"""Functions that torch has by the same name."""
SPECIAL = {"cyl_bessel_i0": "i0", "cyl_bessel_i1": "i1", "erfcx": "erfcx", "normcdf": "ndtr", "normcdfinv": "ndtri"}
OTHERS = {"finite": "isfinite", "fabs": "abs", "rint": "round", "nearbyint": "round", "powi": "pow", "fdivide": "div"}
OTHERS.update({kind + name: name for kind in "fd" for name in ("mul", "div", "sub", "add", "sqrt", "rsqrt")})
NAME = re.compile(r"__nv_(?:fast_)?(\w+?)(?:_rn)?")
"""Symbol of a function; one that rounds other than to nearest keeps its ending, and is unknown here."""


def add_libdevice(interpreter: Any) -> None:
    """Have kernels that import libdevice find its functions, computed by torch in double precision."""
    if not hasattr(interpreter, "interpreter_semantic"):
        return  # Triton before 3.4
    known = _functions(importlib.import_module("torch"))

    def compute(_: Any, __: str, ___: str, symbol: str, given: Any, kind: Any, ____: bool) -> Any:
        base = NAME.fullmatch(symbol)
        name = base.group(1) if base else symbol
        function = known.get(name) or known.get(name[:-1] if name[-1] in "fd" else name)
        if function is None:
            raise NotImplementedError("extern_elementwise not supported in interpreter mode: " + symbol)
        found = function(*given)
        return interpreter.TensorHandle(found.astype(interpreter._get_np_dtype(kind)), kind.scalar)

    interpreter.InterpreterBuilder.create_extern_elementwise = compute
    own: Any = importlib.import_module("triton.language.extra.cuda.libdevice")
    common: Any = importlib.import_module("triton.language.extra.libdevice")
    for name in [each for each in vars(common) if callable(getattr(own, each, None))]:
        bound = functools.partial(getattr(own, name), _semantic=interpreter.interpreter_semantic)
        setattr(common, name, bound)
        setattr(own, name, bound)


def _functions(torch: Any) -> Dict[str, Callable[..., Any]]:
    """Return functions of handles by name; a handle has a NumPy array."""
    found: Dict[str, Any] = {name: getattr(torch, name) for name in SAME.split()}
    found.update({name: getattr(torch, other) for name, other in OTHERS.items()})
    found.update({name: getattr(torch.special, other) for name, other in SPECIAL.items()})
    found.update(
        cbrt=lambda x: x.sign() * x.abs().pow(1 / 3),
        exp10=lambda x: torch.pow(10.0, x),
        fma=lambda x, y, z: x * y + z,
        frcp=torch.reciprocal,
        drcp=torch.reciprocal,
        round=lambda x: x.sign() * (x.abs() + 0.5).floor(),
        saturate=lambda x: x.nan_to_num(0.0).clamp(0, 1),
    )

    def of_handles(function: Any) -> Callable[..., Any]:
        return lambda *given: function(*[torch.from_numpy(one.data).double() for one in given]).numpy()

    return {name: of_handles(function) for name, function in found.items()}
