"""Hidden shapes that are larger than the declared ones: where an index of 16 bits ends.

One size at a time grows, the others are small, so that hardly any memory is needed. Nobody knows beforehand how much
memory and time the reference takes there. A first call at a moderate size and the declared shapes tell how far to go:
both are taken to grow with the square of each size.
"""

import hashlib
import math
import random
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional

from ..inputs.constraints import Constraints, Dims
from ..inputs.hidden_shapes import elements
from ..numerics.tensors import symbols

if TYPE_CHECKING:
    from .trial_room import TrialRoom

FIRST = 2048
"""The size of the first call."""
SIZES = (8192, 32768, 65536)
"""Beyond which the next ones are."""
RUNGS = tuple(FIRST * 4**power for power in range(1, 6))
"""Sizes on the way to twice a large declared one: guessed from the first call, whose cost is mostly fixed, that size
looks far too slow."""
PYTHON_SIZE = 32768
"""The last one for Python candidates: a kernel of Triton has a row in one block, of a power of two elements, and many
have 65,536 as their limit."""
BESIDES = (2, 3, 5)
"""Other sizes: where one is 1, much is right by chance."""
ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 24}
"""Of the largest tensor."""
CALL_S = 0.3
"""For a call of the reference, by what an earlier one took."""
INTERPRETED_S = 5.0
"""For a call of a candidate that an interpreter runs, likewise: a Triton kernel took 41 s for 32,768 rows. Others have
more time, and who is slow on purpose has no confirmed one."""
LEAST_INTERPRETED_S = 0.01
"""A shorter one may be mostly what does not grow."""
SLOW = "the candidate may take"
CALL_BYTES = {"cpu": 2 << 30, "cuda": 8 << 30}
"""For what it needs meanwhile, likewise."""
POWER = 2


class Step(NamedTuple):
    """A size that was tried."""

    size: int
    reference_s: float
    used_bytes: int
    """What the reference needed besides what it had before."""
    candidate_s: float


class LargerShapes:
    """Tries them, a dimension at a time."""

    def __init__(self, room: "TrialRoom") -> None:
        self.room = room
        self.constraints = Constraints(room.task.get("constraints") or [])
        self.reached: Dict[str, int] = {}
        """By dimension, the largest size that was tried beyond the declared ones."""
        self.tried = 0

    def run(self) -> None:
        """Try every dimension.

        Raises:
            Judged: If the candidate is wrong.
        """
        task = self.room.task
        # A size that follows from others grows with them.
        names = [] if task.get("fixed_shapes") else [n for n in symbols(task) if n not in self.constraints.defined]
        # A separate stream of the seed: how many shapes are tried must not shift any other draw.
        secret = hashlib.sha256(b"larger shapes" + bytes.fromhex(task["seed"])).digest()
        rng = random.Random(secret)
        # A drawn order: where time runs out, no dimension is the one that is always left out.
        for name in rng.sample(names, len(names)):
            if self.room.late("shapes larger than declared along %s" % name):
                continue
            self._along(name, rng)

    def _along(self, name: str, rng: random.Random) -> None:
        """Go as far as the reference can."""
        task = self.room.task
        most = max(dims[name] for dims in task["shapes"])
        last = SIZES[-1] if task["candidate"] == "library" else PYTHON_SIZE
        sizes = [size for size in SIZES if most < size <= last] or [*(rung for rung in RUNGS if rung < most), 2 * most]
        before: Optional[Step] = None
        why = ""
        for _ in range(len(sizes) + 1):
            # The largest affordable size comes first: a call past it is past the smaller limits, too.
            # Where a square is too large at the first size, twice the declared one may not be.
            wanted = [FIRST, 2 * most] if before is None else [size for size in reversed(sizes) if size > before.size]
            chosen: Optional[Dims] = None
            for size in wanted:
                # A size just past the limit, drawn: a power of two would be divisible by every tile.
                shape = self._shape(name, size + 1 + rng.randrange(99), rng)
                why = self._why_not(shape, name, min(FIRST, size + 1), before)
                if shape and not why:
                    chosen = shape
                    break
            if chosen is None:
                break
            before = self._step(chosen, name, most)
            if before is None:
                return
        if why and (name not in self.reached or why.startswith(SLOW)):
            self.room.left_out["%s beyond %d (%s)" % (name, most, why)] = None
            if why.startswith(SLOW) and not task.get("interpreted"):
                self.room.slow = why

    def _shape(self, name: str, size: int, rng: random.Random) -> Optional[Dims]:
        names: List[str] = symbols(self.room.task)
        dims = {other: size if other == name else rng.choice(BESIDES) for other in names}
        return self.constraints.adjust_shape(dims)

    def _why_not(self, dims: Optional[Dims], name: str, least: int, before: Optional[Step]) -> str:
        """Say why a shape is not tried, empty if it is."""
        task = self.room.task
        if dims is None or dims[name] < least:
            return "constraints"
        most = ELEMENTS[task["device"]]
        if elements(task, dims) > most:
            return "a tensor of %d elements, the limit is %d" % (elements(task, dims), most)
        if before is None:
            return self.room.slow_at(dims) or self._slow_if_square(dims, name)
        # Attention-like problems grow with the square; for linear ones the guess is too careful by design.
        times = (dims[name] / before.size) ** POWER
        took_s, used = before.reference_s * times, before.used_bytes * times
        for declared, declared_s, declared_bytes in self.room.declared_calls:
            grown = math.prod(max(1.0, dims[other] / declared[other]) for other in dims) ** POWER
            took_s, used = min(took_s, declared_s * grown), min(used, declared_bytes * grown)
        if took_s > CALL_S:
            return "the reference may take %.2g s, the limit is %.2g s" % (took_s, CALL_S)
        if task.get("interpreted") and before.candidate_s * times > INTERPRETED_S:
            told = (before.candidate_s * times, INTERPRETED_S)
            return SLOW + " %.2g s in the interpreter, the limit is %.2g s" % told
        limit = CALL_BYTES[task["device"]]
        if used > limit:
            return "the reference may take %.2g GB, the limit is %.2g GB" % (used / 1e9, limit / 1e9)
        # Last: a candidate is spared nothing where the reference cannot go, and its time may be confirmed.
        return self.room.slow_after(before.candidate_s, times)

    def _slow_if_square(self, dims: Dims, name: str) -> str:
        """Say so if an interpreter may not be through in time at the first size, which attention has to the square."""
        task, smallest = self.room.task, self.room.smallest
        if not task.get("interpreted") or self.room.call_s < LEAST_INTERPRETED_S:
            return ""
        grown = math.prod(max(1.0, dims[other] / smallest[other]) for other in dims)
        took_s = self.room.call_s * grown * max(1.0, dims[name] / smallest[name]) ** (POWER - 1)
        limit_s = float(task.get("prepare_s") or task["round_timeout_s"]) / 2
        told = (took_s, limit_s)
        return SLOW + " %.2g s in the interpreter, the limit is %.2g s" % told if took_s > limit_s else ""

    def _step(self, dims: Dims, name: str, most: int) -> Optional[Step]:
        """Try a shape, with two calls; `None` if the reference has no answer."""
        larger = dims[name] > most
        table = self.room.sit(dims, hidden=True, larger=larger)
        had, began_s = self.room.peak_bytes, self.room.own_s
        reference_s = self.room.play(table, "")
        if reference_s is None:
            self.room.leave(table)
            return None
        self.tried += 1
        first_s, began_s = self.room.own_s - began_s, self.room.own_s
        used = max(0, self.room.peak_bytes - had)
        # The second call tells the steady time: the first pays for compilers and new pages.
        again_s = self.room.play(table, "")
        self.room.leave(table)
        if larger:
            self.reached[name] = max(dims[name], self.reached.get(name, 0))
        reference_s = min(reference_s, again_s if again_s is not None else reference_s)
        return Step(dims[name], reference_s, used, min(first_s, self.room.own_s - began_s))

    def text(self) -> str:
        """Say how far it went."""
        if not self.reached:
            return ""
        return " (larger than declared, up to %s)" % ", ".join("%s=%d" % pair for pair in sorted(self.reached.items()))
