"""Constraints of a problem: which shapes comply, and how one that does not is moved until it does.

A constraint has `left`, `operator` and `right`; a side is a term. One such as `oh == h // 2` defines a size: `oh` then
follows from `h` wherever shapes are made. Drawn for itself it would hardly ever be right.
"""

import operator
from itertools import islice
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

TRIES = 4
"""Passes over all constraints: they may contradict each other, so no loop runs for ever."""
NEAR = 512
"""How far around a size one that complies is looked for, where it cannot be computed."""
LARGEST = 1 << 62
"""Beyond which a term has no value: products of products would have gigabits."""
MOST_SIZES = 100_000
"""Sizes that are tried for all shapes of a problem: among several products hardly any complies."""
POWERS = 24
"""The same, by doubling and halving: a limit of what follows from a size may lie far from it."""

Dims = Dict[str, int]
Term = Any
"""A number, a symbol, or `[operator, term, term]`."""
Constraint = Dict[str, Any]

COMPARISONS: Dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
ARITHMETIC: Dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": lambda a, b: a // b, "%": operator.mod,
}  # fmt: skip
BESIDE = {"<": -1, ">": 1, "!=": 1}
"""The nearest left side that complies, seen from the right one."""


def evaluate_term(term: Term, dims: Dims) -> Optional[int]:
    """Return a term's value at a shape, `None` where it divides by zero or is beyond what a size can be."""
    if isinstance(term, str):
        return dims[term]
    if not isinstance(term, (list, tuple)):
        return int(term)
    left, right = evaluate_term(term[1], dims), evaluate_term(term[2], dims)
    if left is None or right is None or (right == 0 and term[0] in ("//", "%")):
        return None
    found = ARITHMETIC[term[0]](left, right)
    return found if abs(found) <= LARGEST else None


def list_names(term: Term) -> List[str]:
    """Return a term's symbols, from left to right."""
    if isinstance(term, (list, tuple)):
        return list_names(term[1]) + list_names(term[2])
    return [term] if isinstance(term, str) else []


def satisfies(constraint: Constraint, dims: Dims) -> bool:
    """Say whether a shape complies with a constraint."""
    left, right = evaluate_term(constraint["left"], dims), evaluate_term(constraint["right"], dims)
    return left is not None and right is not None and COMPARISONS[constraint["operator"]](left, right)


class Constraints:
    """All constraints of a problem, and the sizes that they define."""

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self.defined: Dict[str, Term] = {}
        for constraint in constraints:
            self._add_definition(constraint)
        # What needs a size needs all that this one needs, so the count orders definitions by their use of each other.
        self.order = sorted(self.defined, key=lambda name: len(self._find_needed(self.defined[name])))
        at_least_one = [{"left": name, "operator": ">=", "right": 1} for name in self.order]
        self.every = [*constraints, *at_least_one]
        self.left = MOST_SIZES

    def adjust_shape(self, dims: Dims) -> Optional[Dims]:
        """Return the shape moved a little so that it complies with all, `None` if that is not to be had."""
        dims = self._compute_sizes(dims)
        for _ in range(TRIES):
            broken = [each for each in self.every if not satisfies(each, dims)]
            if not broken:
                return dims if min(dims.values()) >= 1 else None
            before = dims
            for constraint in broken:
                if not satisfies(constraint, dims):
                    dims = self._move_size(dims, constraint) or dims
            if dims == before:
                break
        return None

    def _add_definition(self, constraint: Constraint) -> None:
        if constraint["operator"] != "==":
            return
        for side, other in (("left", "right"), ("right", "left")):
            name, term = constraint[side], constraint[other]
            # A number defines nothing: other sizes are then beyond the constraints, and trials say so.
            if not isinstance(name, str) or name in self.defined or not list_names(term):
                continue
            if name not in self._find_needed(term):
                self.defined[name] = term
                return

    def _find_needed(self, term: Term) -> List[str]:
        """Return every symbol that a term's value depends on, through definitions too."""
        found: Dict[str, None] = {}
        left = list_names(term)
        while left:
            name = left.pop(0)
            if name not in found:
                found[name] = None
                left += list_names(self.defined.get(name, 0))
        return list(found)

    def _compute_sizes(self, dims: Dims) -> Dims:
        """Return the shape with the sizes that follow from others."""
        dims = dict(dims)
        for name in self.order:
            value = evaluate_term(self.defined[name], dims)
            dims[name] = dims[name] if value is None else value
        return dims

    def _move_size(self, dims: Dims, constraint: Constraint) -> Optional[Dims]:
        """Return the shape with one size moved so that it complies with a constraint, with all of them if possible."""
        first: Optional[Dims] = None
        both = [*self._find_needed(constraint["left"]), *self._find_needed(constraint["right"])]
        for name in dict.fromkeys(both):
            if name in self.defined:
                continue
            for size in islice(_propose_sizes(constraint, name, dims), self.left):
                self.left -= 1
                moved = self._compute_sizes(dict(dims, **{name: size}))
                if min(moved.values()) >= 1 and satisfies(constraint, moved):
                    if all(satisfies(each, moved) for each in self.every):
                        return moved
                    first = first or moved
        return first


def _propose_sizes(constraint: Constraint, name: str, dims: Dims) -> Iterator[int]:
    """Yield sizes of a symbol that may comply: computed ones, those around the one it has, far ones."""
    for side, other, way in (("left", "right", 1), ("right", "left", -1)):
        term, wanted = constraint[side], evaluate_term(constraint[other], dims)
        if wanted is None:
            continue
        if term == name:
            yield wanted + way * BESIDE.get(constraint["operator"], 0)
        elif isinstance(term, (list, tuple)) and term[0] == "%" and term[1] == name:
            modulus = evaluate_term(term[2], dims)
            if modulus:
                yield dims[name] + (wanted - dims[name]) % modulus
    for far in range(1, NEAR + 1):
        yield dims[name] + far
        yield dims[name] - far
    for power in range(1, POWERS + 1):
        yield dims[name] << power
        yield dims[name] >> power
