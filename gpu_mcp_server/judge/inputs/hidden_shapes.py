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


class Drawing:
    """Draws shapes around those that a task declares."""

    def __init__(self, task: Dict[str, Any], rng: random.Random) -> None:
        self.rng, self.names = rng, symbols(task)
        self.declared: List[Dims] = sorted(task["shapes"], key=lambda dims: elements(task, dims))

    def primes(self) -> Dims:
        """Return a small prime for every symbol, no two alike while there are enough."""
        chosen = self.rng.sample(PRIMES, min(len(PRIMES), len(self.names)))
        return dict(zip(self.names, itertools.cycle(chosen)))

    def all(self) -> List[Dims]:
        """Return ones, primes, numbers that divide by nothing, neighbours of declared sizes, and exchanged sizes."""
        found: List[Dims] = [dict.fromkeys(self.names, 1), self.primes()]
        for name in self.names:
            sizes = sorted({dims[name] for dims in self.declared})
            # Odd sizes stay near the declared range: a far larger shape is the business of `larger_shapes`.
            odd = [v for v in ODD if v <= max(ODD[0], sizes[-1] + 1)]
            near = [self.rng.choice(sizes) + 1, self.rng.choice(sizes) - 1]
            found += [dict(self.primes(), **{name: size}) for size in [1, self.rng.choice(odd), *near]]
        smallest = self.declared[0]
        found.append({name: size - 1 for name, size in smallest.items()})
        found.append({name: size + 1 for name, size in smallest.items()})
        for dims in (smallest, self.declared[-1], self.declared[len(self.declared) // 2]):
            sizes = [dims[name] for name in self.names]
            # Exchanged sizes catch kernels that confuse rows with columns, which square shapes hide.
            found.append(dict(zip(self.names, sizes[1:] + sizes[:1])))
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
    for dims in Drawing(task, random.Random(secret)).all():
        fit = constraints.adjust_shape({name: max(1, dims[name]) for name in names})
        # Repair may lead back to a declared shape, which would hide nothing.
        known = any(fit == {n: other[n] for n in names} for other in [*chosen, *task["shapes"]])
        if fit and not known and elements(task, fit) <= most_elements and len(chosen) < MOST:
            chosen.append(fit)
    return sorted(chosen, key=lambda dims: elements(task, dims))
