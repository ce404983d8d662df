"""A problem with cases as one: what differs from case to case becomes a symbol, a size for each shape."""

import math
import re
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple, cast

from ..numerics.tensors import ITEM_BYTES

Described = Dict[str, Any]

LATE_S = 60.0
"""From then on no larger case is looked at, where the wish names a size that cases may have."""
MANY_LARGE = 4
"""Cases in a row that are too large, behind which none is looked at either: they come in the order of their sizes."""
RESERVED = ("in", "out", "launch", "stream", "int", "float", "double", "for", "do", "if", "long", "short", "char")
"""What names no parameter of a launcher."""


class EmptyTensor(ValueError):
    """A tensor has no element: nothing of it can be judged."""


def joined_cases(module: Any, task: Dict[str, Any], describe: Callable[[int], Described]) -> Described:
    """Describe a problem's cases by their numbers, the small ones first, and join them.

    With `max_bytes` of the task, cases that take more are left out.

    Raises:
        ValueError: If none is small enough.
    """
    most, begin, in_a_row = task.get("max_bytes"), time.monotonic(), 0
    cases: List[Dict[str, Any]] = module.cases
    found: Dict[int, Described] = {}
    empty: Dict[int, str] = {}
    facts: Dict[str, Any] = {}
    sizes: List[int] = []
    for number in sorted(range(1, len(cases) + 1), key=lambda n: _size(cases[n - 1])):
        if most and (in_a_row == MANY_LARGE or ((sizes or found) and time.monotonic() - begin > LATE_S)):
            continue
        try:
            if not found:
                module.select(number)
                facts = module.examine()
                module.facts.update(facts.get("facts") or {})
            one = describe(number)
        except EmptyTensor as error:  # also without the wish: a suite has some beside its other cases
            empty[number] = str(error)
            continue
        except (MemoryError, RuntimeError):
            if not most or not found:
                raise
            continue
        if most and _bytes(one) > most:
            sizes.append(_bytes(one))
            in_a_row += 1
            continue
        found[number], in_a_row = one, 0
    if not found and empty:
        raise ValueError(next(iter(empty.values())))
    if not found:
        text = "each of the %d cases takes more than the %d bytes of the wish max_bytes; the smallest seen takes %d"
        raise ValueError(text % (len(cases), most or 0, min(sizes, default=0)))
    alike = _most_alike(found)
    others = sorted(set(found) - set(alike))
    whole = _join(module, facts, alike, len(cases) - len(others) - len(empty))
    if empty:
        said = next(iter(empty.values()))
        whole["notes"].insert(0, "%d cases are left out, as a tensor of theirs is empty: %s" % (len(empty), said))
    if others:
        said = ", ".join(str(cases[number - 1])[:80] for number in others[:3])
        whole["notes"].insert(
            0, "%d cases have tensors of other names or types and are left out: %s" % (len(others), said)
        )
    return whole


def _most_alike(found: Dict[int, Described]) -> Dict[int, Described]:
    """Return the cases that have the same tensors but for sizes: the most that do."""
    groups: Dict[str, List[int]] = {}
    for number in sorted(found):
        one = found[number]
        kinds = [[(s["name"], s["dtype"], len(s["shape"])) for s in one[side]] for side in ("inputs", "outputs")]
        groups.setdefault(repr((kinds, one["state"])), []).append(number)
    return {number: found[number] for number in max(groups.values(), key=len)}


def _axes(case: Dict[str, Any]) -> Dict[str, Any]:
    axes = case.get("axes")
    return cast("Dict[str, Any]", axes) if isinstance(axes, dict) else case


def _size(case: Dict[str, Any]) -> float:
    """Return what grows with a case: the product of its numbers, those of a workload's axes alone."""
    values = _axes(case)
    sizes = [v for name, v in values.items() if name != "seed" and isinstance(v, (int, float)) and v > 1]
    return math.prod(sizes)


def _bytes(one: Described) -> int:
    given = [*one["inputs"], *one["outputs"]]
    return sum(ITEM_BYTES[spec["dtype"]] * math.prod(spec["shape"]) for spec in given)


def _join(module: Any, facts: Dict[str, Any], found: Dict[int, Described], total: int) -> Described:
    numbers, ones = list(found), list(found.values())
    cases = [module.cases[number - 1] for number in numbers]
    shapes: List[Dict[str, int]] = [{"case": i + 1} for i in range(len(ones))]
    names = _Names(cases, shapes, {spec["name"] for one in ones for spec in (*one["inputs"], *one["outputs"])})
    whole: Described = {side: _sides(side, ones, names) for side in ("inputs", "outputs")}
    scalars, constants = _scalars(ones, names)
    notes = list(dict.fromkeys(note for one in ones for note in one["notes"]))
    if len(numbers) < total:
        notes.insert(0, "%d of %d cases left out: larger than the wish allows" % (total - len(numbers), total))
    notes += [facts["note"]] if facts.get("note") else []
    return {
        **whole,
        "state": ones[0]["state"],
        "constants": constants,
        "layouts": ones[0]["layouts"],
        "notes": notes,
        "shapes": shapes,
        "cases": cases,
        "case_layouts": [one["layouts"] for one in ones],
        "case_constants": [one["constants"] for one in ones],
        "scalars": scalars,
        "adapter": dict(module.facts, **({"checker": True} if facts.get("checker") else {})),
        "rtol": facts.get("rtol"),
        "atol": facts.get("atol"),
    }


class _Names:
    """Symbols for what differs: one for all that differs alike."""

    def __init__(self, cases: Sequence[Dict[str, Any]], shapes: List[Dict[str, int]], taken: Any) -> None:
        self.shapes, self.taken = shapes, {"case", *taken}
        self.known: Dict[Tuple[int, ...], str] = {}
        plain = [_axes(case) for case in cases]
        self.offered: Dict[Tuple[Any, ...], str] = {}
        for name in plain[0]:
            sizes = tuple(case.get(name) for case in plain)
            if all(isinstance(size, int) for size in sizes):
                self.offered.setdefault(sizes, str(name))

    def symbol(self, sizes: Tuple[int, ...], otherwise: str) -> str:
        """Return the symbol of some sizes, a case each."""
        if sizes not in self.known:
            plain = re.sub(r"[^a-z0-9_]", "_", self.offered.get(sizes, otherwise).lower()).lstrip("_0123456789")[-28:]
            name, number = plain or "n", 2
            while name in self.taken or name in RESERVED:
                name, number = "%s_%d" % (plain or "n", number), number + 1
            self.taken.add(name)
            self.known[sizes] = name
            for shape, size in zip(self.shapes, sizes):
                shape[name] = size
        return self.known[sizes]


def _sides(side: str, ones: Sequence[Described], names: _Names) -> List[Dict[str, Any]]:
    """Return the specs of all cases as one, by symbols where sizes differ."""
    joined: List[Dict[str, Any]] = []
    for place, spec in enumerate(ones[0][side]):
        drawn = {one[side][place]["distribution"] for one in ones}
        shape: List[Any] = []
        for axis in range(len(spec["shape"])):
            sizes = tuple(int(one[side][place]["shape"][axis]) for one in ones)
            alike = len(set(sizes)) == 1
            shape.append(sizes[0] if alike else names.symbol(sizes, "%s_%d" % (spec["name"][-24:], axis)))
        joined.append(dict(spec, shape=shape, distribution=drawn.pop() if len(drawn) == 1 else "made"))
    return joined


def _scalars(ones: Sequence[Described], names: _Names) -> Tuple[List[str], Dict[str, Any]]:
    """Return whole numbers beside the tensors that differ, which launchers get, and what is the same everywhere."""
    found: List[str] = []
    constants: Dict[str, Any] = {}
    for position in ones[0]["constants"]:
        values = [one["constants"].get(position) for one in ones]
        if all(value == values[0] and type(value) is type(values[0]) for value in values):
            constants[position] = values[0]
        elif all(type(value) is int for value in values):
            found.append(names.symbol(tuple(values), "argument_%s" % position))
    return found, constants
