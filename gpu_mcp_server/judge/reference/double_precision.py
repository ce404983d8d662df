"""The reference's answers in double precision, for what is a matter of rounding."""

import time
from typing import Any, Dict, List, Sequence

import numpy as np

from ..correctness import fp64_reference
from ..numerics.array_copies import own_copy
from ..numerics.tensors import tensors
from .arrays_numpy import BadResult

Reply = Dict[str, Any]

NUDGES = 4
"""Times that the inputs are moved at random: by one alone an answer may stay where it is by chance."""


class DoublePrecision:
    """Answers a reference process's requests for them."""

    def __init__(self, reference: Any) -> None:
        """Take the process's `Reference`, whose buffers are open when it is asked."""
        self.reference = reference

    def _wide(self, *, nudge: bool, call: int) -> Sequence[Any]:
        """Answer a call's inputs once more in double precision."""
        specs, given = self.reference.memories, self.reference.arrays.inputs[call]
        rest = nudge and fp64_reference.at_rest(specs, given)
        wide = [fp64_reference.widened(i, x, nudge, rest=rest) for i, x in zip(specs, given)]
        # Inputs that widening leaves alone are copied: a reference that works in place must not write to the owner's.
        return self._in_double([own_copy(mine) if mine is theirs else mine for mine, theirs in zip(wide, given)])

    def sensitivity(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Write of elements of some outputs how far the answer is from the exact one, and what half a last place moves.

        The file has their positions, output by output.
        """
        begin, call = time.perf_counter(), int(message["call"])
        with fp64_reference.ResultFile(descriptors[0]) as file:
            picked = file.positions(message["picked"])
            exact, answers = self._wide(nudge=False, call=call), self.reference.arrays.answers(call)
            nudged = [self._wide(nudge=True, call=call) for _ in range(NUDGES)]
            found: List[Any] = []
            for number, at in picked.items():
                found.append(fp64_reference.absolute_differences(answers[number], exact[number], at))
                moves = [fp64_reference.absolute_differences(one[number], exact[number], at) for one in nudged]
                found.append(np.maximum.reduce(moves))
            file.write(found)
        return {"ran_s": time.perf_counter() - begin}

    def answer_fp64(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Answer a call's inputs once more in double precision, into a memory file: all of it, or `picked`."""
        begin = time.perf_counter()
        with fp64_reference.ResultFile(descriptors[0]) as file:
            wanted = message.get("picked")
            picked = file.positions(wanted) if wanted else {}
            found = self._wide(nudge=False, call=int(message["call"]))
            # Measured before the results are written: only the computing counts as the reference's time.
            ran_s = time.perf_counter() - begin
            if picked:
                file.write([fp64_reference.doubles_at(found[number], at) for number, at in picked.items()])
            else:
                file.write([fp64_reference.doubles(result) for result in found])
        return {"ran_s": ran_s}

    def decide(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Answer inputs of some calls, as they are or moved, in double precision; write discrete outputs or `every`."""
        specs, outputs = self.reference.memories, tensors(self.reference.task["outputs"], self.reference.dims)
        with fp64_reference.ResultFile(descriptors[0]) as file:
            short = any(item.dtype in fp64_reference.SHORT for item in specs)
            if short and self.reference.task["framework"] == "numpy":
                raise BadResult("NumPy does not have the inputs' types")
            whole: List[Any] = []
            for call in message["calls"]:
                inputs = self.reference.arrays.inputs[call]
                # Numbers go on from call to call, so that each input is moved by random numbers of its own.
                given = enumerate(zip(specs, inputs), call * len(specs))
                wide = [fp64_reference.moved(*pair, message, number) for number, pair in given]
                wide = [own_copy(mine) if mine is theirs else mine for mine, theirs in zip(wide, inputs)]
                # Of whole numbers the values come back as floats, moved: they are no places, so nothing excuses them.
                told = self.reference.arrays.answers(call) if message["wholes"] else [None] * len(outputs)
                found = zip(outputs, self._in_double(wide), told)
                for item, result, own in found:
                    if item.discrete:
                        whole.append(fp64_reference.whole(result, own))
                    elif message.get("every"):
                        whole.append(fp64_reference.doubles(result).view(np.int64))
            file.write(whole)
        return {}

    def _in_double(self, wide: List[Any]) -> Sequence[Any]:
        reference = self.reference
        given = reference.laid_inputs(wide)
        answer = reference.module.call_wide(given) if reference.module else reference.entry(*given)
        return reference.results(answer)  # type: ignore[no-any-return]
