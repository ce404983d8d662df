"""Public candidates by name, and the shards in which they are judged: resumable, each with a time limit."""

import asyncio
import json
import platform
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

SEED = 27
"""Of the draw; the same candidates in every run."""
NAMED = (
    "2/96", "3/31", "2/89", "1/77", "1/20", "1/12", "1/35", "1/44", "2/83", "2/80", "2/66", "3/44", "2/90", "2/97",
    "2/5",
)  # fmt: skip
"""Each was judged wrongly once, or is of a kind of its own; they are always drawn, and judged first."""
CONTROL = "control"
LEAST_S = 20.0
"""What is taken for a candidate's time before one has ended."""


@dataclass(frozen=True)
class Candidate:
    """One line of the file."""

    name: str
    """LEVEL/TASK, as KernelBench counts."""
    reference: str
    source: str
    claimed: float | None = None
    """Speed-up that its authors give."""


def candidates_in(path: Path) -> dict[str, Candidate]:
    """Return the file's candidates by name; lines without a candidate are left out."""
    found: dict[str, Candidate] = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            row: dict[str, Any] = json.loads(line)
            # Where the collection has none it has null, or the word "None" beside a claimed speed-up.
            if "ModelNew" in (row.get("custom_code") or ""):
                name = f"{row['level_id']}/{row['task_id']}"
                found[name] = Candidate(name, row["ref_code"], row["custom_code"], row.get("score_default"))
    return found


def drawn(names: Sequence[str], count: int) -> list[str]:
    """Return so many names: those that are always drawn first, the others by a fixed seed."""
    always = [name for name in NAMED if name in names][:count]
    others = sorted(set(names) - set(always))
    return always + random.Random(SEED).sample(others, min(count - len(always), len(others)))


def chosen(known: dict[str, Candidate], ids: str) -> list[Candidate]:
    """Return the candidates that `--ids` names: names with commas between them, or drawn:COUNT, or all.

    Raises:
        SystemExit: If the file has no such candidate.
    """
    if ids == "all":
        return list(known.values())
    names = drawn(list(known), int(ids[6:])) if ids.startswith("drawn:") else ids.split(",")
    if missing := [name for name in names if name not in known]:
        raise SystemExit(f"The file has no candidate {', '.join(missing)}. Give other --ids.")
    return [known[name] for name in names]


Item = TypeVar("Item")


def part_of(candidates: Sequence[Item], part: str) -> list[Item]:
    """Return every Nth candidate from the Kth on, for a part K/N.

    Raises:
        SystemExit: If it is no such part.
    """
    first, _, step = part.partition("/")
    if not (first.isdigit() and step.isdigit() and 1 <= int(first) <= int(step)):
        raise SystemExit(f"{part} is no part. Give one such as 3/8.")
    return list(candidates[int(first) - 1 :: int(step)])


class Results:
    """A file of JSON lines, one for each candidate that was judged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            lines = path.read_text(encoding="utf-8").split("\n")
            self.rows = [json.loads(line) for line in lines[:-1] if line]
            if lines[-1]:  # the program was killed as it wrote
                path.write_text("\n".join([*lines[:-1], ""]), encoding="utf-8")
        self.shard = 1 + max((int(row["shard"]) for row in self.rows), default=0)

    def missing(self, wanted: Sequence[Candidate]) -> list[Candidate]:
        """Return those of the wanted that have no row yet."""
        there = {row["id"] for row in self.rows}
        return [candidate for candidate in wanted if candidate.name not in there]

    def add(self, row: dict[str, Any]) -> None:
        """Append a row, at once."""
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


Play = Callable[[Candidate], Awaitable[dict[str, Any]]]


class Shard:
    """One run of at most so many seconds, with the control candidate at its beginning."""

    def __init__(self, results: Results, play: Play, *, limit_s: float, at_once: int) -> None:
        self.results, self._play, self._at_once = results, play, at_once
        self._end = time.monotonic() + limit_s
        self._taken: list[float] = []

    async def run(self, control: Candidate, candidates: Sequence[Candidate]) -> list[str]:
        """Judge what there is time for; return the names of what is left for another shard."""
        waiting = self.results.missing(candidates)
        if not waiting:
            return []
        try:
            async with asyncio.timeout(max(0.0, self._end - time.monotonic())):
                await self._one(control)
                await self._all(waiting)
        except TimeoutError:
            pass  # what was under way has no row, so another shard judges it
        return [candidate.name for candidate in self.results.missing(candidates)]

    async def _all(self, waiting: list[Candidate]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(self._worker(waiting))

    async def _worker(self, waiting: list[Candidate]) -> None:
        while waiting and time.monotonic() + self._expected_s() < self._end:
            await self._one(waiting.pop(0))

    def _expected_s(self) -> float:
        """Return how long a candidate may take by those before."""
        return 1.5 * statistics.median(self._taken) if self._taken else LEAST_S

    async def _one(self, candidate: Candidate) -> None:
        begin = time.monotonic()
        row = await self._play(candidate)
        taken = time.monotonic() - begin
        if candidate.name != CONTROL:
            self._taken.append(taken)
        self.results.add({"id": candidate.name, "shard": self.results.shard, **row, "wall_s": round(taken, 1)})


def write_table(text: str, into: Path | None, device: str, of: str = "") -> None:
    """Write a table into a file or to the terminal, under the date, the device, the system and what it is of."""
    heads = [f"{datetime.now(UTC):%Y-%m-%d}", device, f"Linux {platform.release()}", of]
    whole = f"{', '.join(filter(None, heads))}\n\n{text}"
    if into:
        into.write_text(whole, encoding="utf-8")
    else:
        print(whole)


def print_end(begin_s: float, left: Sequence[str]) -> None:
    """Say how long a shard took, that began at a time of the monotonic clock, and which candidates are left."""
    print(f"this shard took {time.monotonic() - begin_s:.0f} s; left: {', '.join(left) or 'nothing'}")
