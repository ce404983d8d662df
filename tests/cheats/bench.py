"""One laboratory for all candidates of a test module."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu_mcp_server.cli import cheat_suite
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.settings.server_settings import load_settings

BAD = ("incorrect", "cheat")


class Bench:
    """A court in a thread of its own, so that one laboratory serves a whole module's tests."""

    def __init__(self, court: cheat_suite.CheatSuite, loop: asyncio.AbstractEventLoop) -> None:
        self.court, self.loop = court, loop

    def judge(self, candidate: cheat_suite.CheatCandidate) -> cheat_suite.CheatRow:
        return asyncio.run_coroutine_threadsafe(self.court.judge(candidate), self.loop).result()

    def host(self) -> HostProbe:
        jobs = self.court.lab.jobs.runner
        return asyncio.run_coroutine_threadsafe(jobs.probe(jobs.hosts.choose(None)), self.loop).result()


@contextmanager
def bench(**settings: Any) -> Iterator[Bench]:
    ready: threading.Event = threading.Event()
    found: list[Bench | BaseException] = []
    ended = asyncio.Event()

    async def serve() -> None:
        async with cheat_suite.open_suite(load_settings().model_copy(update=settings)) as court:
            found.append(Bench(court, asyncio.get_running_loop()))
            ready.set()
            await ended.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            found.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        if not isinstance(found[0], Bench):
            raise found[0]
        yield found[0]
    finally:
        if isinstance(found[0], Bench):
            found[0].loop.call_soon_threadsafe(ended.set)
        thread.join()


AGAIN = 8
"""How often a candidate is judged at most, while the judge says that it could not time it."""


def deserved(bench: Bench, candidate: cheat_suite.CheatCandidate) -> cheat_suite.CheatRow:
    """Judge a candidate until the verdict rests on rounds of several calls, if it rests on any.

    The answers of a candidate that batches are right, and only its time is a lie. On a busy machine a single call may
    seem to take as long as a round; then the judge says that there is no time, and there is nothing to catch yet.
    """
    for _ in range(AGAIN):
        row = bench.judge(candidate)
        if row.verdict != "correct" or row.timed or not candidate.right:
            break
    return row


def passes(row: cheat_suite.CheatRow) -> None:
    """Check a row against what the table expects."""
    candidate = row.candidate
    said = (row.verdict, row.reason, row.gain)
    assert not row.was_missed, said
    assert row.stopped_by != "confirmation run", said  # the first look is to stop it
    assert not row.false_alarm, said
    if candidate.harmless and row.verdict in BAD:
        return
    assert row.verdict in (BAD if candidate.expect == "caught" else (candidate.expect,)), said
    assert not candidate.words or any(words in row.reason for words in candidate.words), said
    assert row.caught_by or candidate.kind == "honest" or not row.timed, said


def named(device: str) -> list[cheat_suite.CheatCandidate]:
    """Return a device's candidates, without those that need more than the device."""
    return [c for c in cheat_suite.catalogued_candidates() if c.device == device and not c.needs]
