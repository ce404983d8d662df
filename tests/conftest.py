"""Fixtures of all tests: how they wait, and one laboratory a module."""

import faulthandler
import gc
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from gpu_mcp_server.services.evaluation import judge_job
from gpu_mcp_server.services.lab import Lab
from tests import judge_package
from tests.brief_rounds import ROUND_MS, set_rounds
from tests.commands import Commands, shared_commands
from tests.laboratory import laboratory

judge_package.load()

TOGETHER = ("judge", "cheats")
"""Folders whose modules, however deep, stay together: tests that time the processor wait for each other's turns."""

NEIGHBOURS = 12
"""Tests of a module that one worker has, where they share what was set up: more would leave others idle at the end."""
OVERDUE_S = 60.0
"""After its limit a test's process ends: asyncio's loop swallows what pytest-timeout raises within a callback."""
STDERR = pytest.StashKey[int]()

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored, and so below it


QUICK = [line for line in (Path(__file__).parent / "quick.txt").read_text().splitlines() if not line.startswith("#")]
BELOW_QUICK = tuple(f"{line}{mark}" for line in QUICK for mark in ("/", "::", "["))


def pytest_configure(config: pytest.Config) -> None:
    """Keep stderr as it is before tests' own output is captured."""
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """End the worker, with a trace of its threads, where a test goes on after its limit: pytest-xdist names the test."""
    limit_s = settings.timeout + OVERDUE_S
    faulthandler.dump_traceback_later(limit_s, exit=True, file=item.config.stash[STDERR])
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Let a worker go on whose test came to its end."""
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search what is imported and collected for garbage once: it stays, and full searches take a tenth of all tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give what must stay together to one worker, mix what workers do, and mark what `make test` leaves out."""
    sharing: Counter[Path] = Counter()
    for item in items:
        if {*TOGETHER} & {*item.path.relative_to(item.config.rootpath).parts}:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
        elif shares_fixtures(item):
            item.add_marker(pytest.mark.xdist_group(f"{file_of(item)}-{sharing[item.path] // NEIGHBOURS}"))
            sharing[item.path] += 1
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.xdist_group("gpu"))  # one after the other: they time it
        if not is_quick(item.nodeid):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        # Neighbours in a folder would wait for the same turn of the processor, and leave a core idle meanwhile.
        items.sort(key=lambda item: crc32(unit_of(item).encode()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test's evaluations as many rounds as it needs."""
    set_rounds(brief=not {"cheats", "real"} & {*item.path.parts})


def shares_fixtures(item: pytest.Item) -> bool:
    """Say whether a test uses what is set up once for its module, which each worker with a part of it sets up anew."""
    found = getattr(item, "_fixtureinfo", None)
    return found is not None and any(each[-1].scope == "module" for each in found.name2fixturedefs.values())


def file_of(item: pytest.Item) -> str:
    """Return a test's file as its name begins, whatever the checkout's folder."""
    return item.nodeid.partition("::")[0]


def unit_of(item: pytest.Item) -> str:
    """Return the name of what goes to one worker: a group, or the test itself."""
    group = item.get_closest_marker("xdist_group")
    return group.args[0] if group else item.nodeid


def is_quick(node: str) -> bool:
    """Say whether a test is below one of the lines of quick.txt."""
    return node in QUICK or node.startswith(BELOW_QUICK)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"  # asyncssh knows no other


@pytest.fixture(scope="session")
def commands() -> Commands:
    """Return a runner of the program's commands."""
    return shared_commands()


@pytest.fixture
def long_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rounds last as long as those of users: what else the machine does decides less about which time is best."""
    monkeypatch.setattr(judge_job, "ROUND_MS", ROUND_MS)


@pytest.fixture(scope="module")
async def lab() -> AsyncIterator[Lab]:
    """One laboratory for a module: to open one starts a host side, which looks for compilers."""
    async with laboratory() as lab:
        yield lab


@pytest.fixture
async def own_lab() -> AsyncIterator[Lab]:
    """A laboratory for one test: nothing is recorded in it yet."""
    async with laboratory() as lab:
        yield lab
