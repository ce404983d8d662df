"""Compare a program's outputs with and without a kernel: equal but for numbers, and these within a tolerance."""

import math
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from gpu_mcp_server.models.program_speed import VerifyOptions

NUMBER = re.compile(
    r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?\.?|[-+]?(?<![A-Za-z0-9_])(?i:nan|inf(?:inity)?)(?![A-Za-z0-9_])"
)
"""In what a program prints or writes as text; a dot behind one may end a sentence, and goes with it."""
INTEGER = re.compile(r"[-+]?\d+")


@dataclass(frozen=True)
class WrittenText:
    """A text, taken apart."""

    numbers: list[str]
    between: list[str]
    """What stands before, between and behind the numbers, with single spaces."""

    @classmethod
    def parse(cls, data: bytes) -> "WrittenText":
        """Take a text apart; bytes that are no UTF-8 stay told apart."""
        text = data.decode("utf-8", "backslashreplace")
        numbers = [word.rstrip(".") for word in NUMBER.findall(text)]
        return cls(numbers, [" ".join(part.split()) for part in NUMBER.split(text)])

    def unsteady_numbers(self, others: "Iterable[WrittenText]", options: VerifyOptions) -> set[int]:
        """Return the places of numbers that are others in texts with the same words."""
        alike = [each for each in others if each.between == self.between]
        return {
            at
            for at, one in enumerate(self.numbers)
            if any(not equal_numbers(one, each.numbers[at], options) for each in alike)
        }

    def difference(self, after: "WrittenText", options: VerifyOptions, skipped: "Set[int]" = frozenset()) -> str:
        """Say where another text differs by more than the tolerance, but for skipped numbers; nothing if nowhere."""
        if len(self.numbers) != len(after.numbers):
            return f"{len(self.numbers)} numbers before, {len(after.numbers)} after"
        for at, (one, other) in enumerate(zip(self.between, after.between, strict=True)):
            if one != other:
                return f"the text before number {at + 1} is {one[-60:]!r} before and {other[-60:]!r} after"
        for at, (one, other) in enumerate(zip(self.numbers, after.numbers, strict=True)):
            if at not in skipped and not equal_numbers(one, other, options):
                return f"number {at + 1} is {one[:40]} before and {other[:40]} after"
        return ""


def equal_numbers(one: str, other: str, options: VerifyOptions) -> bool:
    """Say whether two written numbers agree: integers exactly, others within the tolerance; NaN with NaN alone."""
    one, other = one.removeprefix("+"), other.removeprefix("+")
    if one == other:
        return True
    if INTEGER.fullmatch(one) and INTEGER.fullmatch(other):
        return False
    before, after = float(one), float(other)
    if math.isnan(before) or math.isnan(after):
        return math.isnan(before) and math.isnan(after)
    if math.isinf(before) or math.isinf(after):
        return before == after
    return abs(before - after) <= options.atol + options.rtol * abs(before)


@dataclass(frozen=True)
class OutputComparison:
    """Outputs of all runs."""

    wrong: str = ""
    """Where a run with the kernel wrote something else."""
    unsteady: str = ""
    """Where runs of the program as it was differ among themselves: nothing can be said then."""
    said: str = ""
    empty: bool = False
    """Whether no output holds anything that a kernel's answer could show in."""


def compare_outputs(
    names: Sequence[str], before: Sequence[Sequence[bytes]], after: Sequence[Sequence[bytes]], options: VerifyOptions
) -> OutputComparison:
    """Compare each run's outputs with those of the first run without the kernel.

    Args:
        names: The outputs.
        before: Of each run without the kernel, what it wrote, in the order of names.
        after: Of each run with it.
        options: Tolerances.
    """
    said: list[str] = []
    empty = True
    for at, name in enumerate(names):
        first = before[0][at]
        skipped = _skipped([run[at] for run in before], options) if options.skip_unsteady else set[int]()
        for runs, is_before in ((before, True), (after, False)):
            for data in dict.fromkeys(run[at] for run in runs):
                if differs := data_difference(first, data, options, skipped):
                    number = next(n for n, run in enumerate(runs) if run[at] == data)
                    told = f"{name}, run {number + 1}: {differs}"
                    return OutputComparison(unsteady=told) if is_before else OutputComparison(wrong=told)
        same = all(run[at] == first for run in [*before, *after])
        binary = b"\0" in first
        numbers = 0 if binary else len(WrittenText.parse(first).numbers) - len(skipped)
        empty = empty and not numbers and not binary
        if not numbers and not binary:
            words = "no other numbers" if skipped else "no numbers" if first.strip() else "empty"
            said.append(f"{name}: {words}, which shows nothing")
        else:
            agree = "number agrees" if numbers == 1 else "numbers agree"
            said.append(f"{name}: the same bytes" if same else f"{name}: {numbers} {agree}")
        if skipped:
            said[-1] += (
                f", {len(skipped)} left out, which differ without the kernel too (number {min(skipped) + 1} first)"
            )
    return OutputComparison(said="; ".join(said), empty=empty)


def _skipped(runs: Sequence[bytes], options: VerifyOptions) -> set[int]:
    """Return the numbers that differ between runs without the kernel."""
    if any(b"\0" in data for data in runs):
        return set()
    first, *others = (WrittenText.parse(data) for data in dict.fromkeys(runs))
    return first.unsteady_numbers(others, options)


def data_difference(before: bytes, after: bytes, options: VerifyOptions, skipped: Set[int] = frozenset()) -> str:
    """Say where two outputs differ, but for skipped numbers; nothing if they agree."""
    if before == after:
        return ""
    if b"\0" in before + after:
        return "other bytes, and no text"
    return WrittenText.parse(before).difference(WrittenText.parse(after), options, skipped)
