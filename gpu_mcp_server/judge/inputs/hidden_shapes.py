"""Shapes that nobody is told of: at them, untimed, a candidate must be right too."""

import hashlib
import itertools
import random
from typing import Any, Dict, List

from ..numerics.tensors import symbols, tensors
from .constraints import Constraints, Dims

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
ODD = (67, 97, 131, 193, 259, 331, 389, 509, 523, 1027)
"""No multiples of 4, 32, 64 or 256, and no neighbours of one."""
MOST = 20


def elements(task: Dict[str, Any], dims: Dims) -> int:
    """Return the elements of the largest tensor."""
    return max(t.count for t in tensors(list(task["inputs"]) + list(task["outputs"]), dims))


def draw_shapes(task: Dict[str, Any], rng: random.Random) -> List[Dims]:
    """Return ones, primes, numbers that divide by nothing, neighbours of declared sizes, and exchanged sizes."""
    names = symbols(task)
    declared: List[Dims] = sorted(task["shapes"], key=lambda dims: elements(task, dims))

    def primes() -> Dims:
        """Return a small prime for every symbol, no two alike while there are enough."""
        return dict(zip(names, itertools.cycle(rng.sample(PRIMES, min(len(PRIMES), len(names))))))

    found: List[Dims] = [dict.fromkeys(names, 1), primes()]
    for name in names:
        sizes = sorted({dims[name] for dims in declared})
        # Odd sizes stay near the declared range: a far larger shape is the business of `larger_shapes`.
        odd = [v for v in ODD if v <= max(ODD[0], sizes[-1] + 1)]
        near = [rng.choice(sizes) + 1, rng.choice(sizes) - 1]
        found += [dict(primes(), **{name: size}) for size in [1, rng.choice(odd), *near]]
    found += [{name: size + step for name, size in declared[0].items()} for step in (-1, 1)]
    for dims in (declared[0], declared[-1], declared[len(declared) // 2]):
        sizes = [dims[name] for name in names]
        # Exchanged sizes catch kernels that confuse rows with columns, which square shapes hide.
        found.append(dict(zip(names, sizes[1:] + sizes[:1])))
    return found


def hidden_shapes(task: Dict[str, Any], most_elements: int) -> List[Dims]:
    """Return shapes that follow from the secret seed, smallest first; none where the task fixes its shapes."""
    names = symbols(task)
    if task.get("fixed_shapes") or not names:
        return []
    # A label separates this draw from others of the same seed, so neither reveals the other.
    secret = hashlib.sha256(b"hidden shapes" + bytes.fromhex(task["seed"])).digest()
    chosen: List[Dims] = []
    constraints = Constraints(task.get("constraints") or [])
    for dims in draw_shapes(task, random.Random(secret)):
        fit = constraints.adjust_shape({name: max(1, dims[name]) for name in names})
        # Repair may lead back to a declared shape, which would hide nothing.
        known = any(fit == {n: other[n] for n in names} for other in [*chosen, *task["shapes"]])
        if fit and not known and elements(task, fit) <= most_elements and len(chosen) < MOST:
            chosen.append(fit)
    return sorted(chosen, key=lambda dims: elements(task, dims))
