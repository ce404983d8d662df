"""A real hostd for each test, on a state folder of its own, at a level of one's choice."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.sandbox import landlock
from tests.hostd.laboratory import Laboratory

Opener = Callable[..., Awaitable[Laboratory]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if sys.platform != "linux":
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="hostd runs on Linux"))


@pytest.fixture
def state() -> Iterator[Path]:
    """Return a folder that every uid may enter, as /var/lib is; pytest's own is closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-test-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder / "state"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def open_lab(state: Path) -> AsyncIterator[Opener]:
    """Return a function that starts a hostd; several share the state folder."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(level: str = "full", **more: str) -> Laboratory:
            lab = await Laboratory.open(state, level, more)
            stack.push_async_callback(lab.close)
            skip_unless(lab, level)
            return lab

        yield start


@pytest.fixture(params=["full", "namespaces", "landlock"])
async def lab(request: pytest.FixtureRequest, open_lab: Opener) -> Laboratory:
    """Return a hostd at each of the levels."""
    return await open_lab(request.param)


@pytest.fixture(params=["full", "full-warm", "namespaces", "namespaces-warm", "landlock"])
async def any_lab(request: pytest.FixtureRequest, open_lab: Opener) -> Laboratory:
    """Return a hostd at each of the levels; `warm` when a sandbox waits for the job already."""
    level, _, warm = request.param.partition("-")
    lab = await open_lab(level)
    if warm:
        await lab.warm_up()
    return lab


@pytest.fixture
async def full(open_lab: Opener) -> Laboratory:
    """Return a hostd at the strongest level."""
    return await open_lab("full")


@pytest.fixture(params=["full", "namespaces"])
async def boxed(request: pytest.FixtureRequest, open_lab: Opener) -> Laboratory:
    """Return a hostd whose jobs have namespaces of their own."""
    return await open_lab(request.param)


def skip_unless(lab: Laboratory, level: str) -> None:
    if level == "landlock" and landlock.abi() == 0:
        pytest.skip("the kernel has no Landlock")
    if lab.level != level:
        pytest.skip(f"this machine gives level {lab.level}: {lab.weaker_because}")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
