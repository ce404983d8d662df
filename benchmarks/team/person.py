"""One of many who work with a server: a client, its era, what it does, and what is counted of that."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.laboratory import HONEST


@dataclass
class Tally:
    """Counts of all persons' calls, failures and jobs."""

    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of each call, by tool."""
    wrong: Counter[str] = field(default_factory=Counter)
    """What failed that was not asked for."""
    jobs: dict[str, str] = field(default_factory=dict)
    """The token of whoever started a job, by its id."""
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds, bytes of the server, bytes of the host side."""


class Person:
    """One client, its era, and what it does."""

    def __init__(
        self, url: str, token: str, number: int, tally: Tally, problem_id: str, laptop: Path | None = None
    ) -> None:
        """With a folder as `laptop` it works through a bridge there, and its files travel by hash."""
        self.laptop = laptop
        self.url, self.token, self.number, self.tally, self.problem_id = url, token, number, tally, problem_id
        self.mode: Any = "legacy" if number % 2 else "auto"
        self.random = random.Random(number)
        self.workspace: str | None = None
        self.count = 0
        self.client: Client

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Connect, with a stream for notifications where the era has it; the SDK opens the legacy one itself."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with contextlib.AsyncExitStack() as stack:
            if self.laptop is not None:
                transport = stdio_client(await asyncio.to_thread(logged_in, self.laptop, self.url, self.token))
                self.client = await stack.enter_async_context(Client(transport, mode=self.mode))
                await self.client.list_tools()
                yield
                return
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=300))
            transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
            self.client = await stack.enter_async_context(Client(transport, mode=self.mode))
            await self.client.list_tools()
            if self.mode == "auto":
                await stack.enter_async_context(self.client.listen(tools_list_changed=True))
            yield

    async def call(self, tool: str, *, fails: bool = False, **arguments: Any) -> dict[str, Any]:
        """Call a tool, count how long it took, and what went wrong unless it should."""
        began = time.perf_counter()
        try:
            result = await self.client.call_tool(tool, arguments)
        except Exception as error:
            self.tally.wrong[f"{tool}: {type(error).__name__}: {str(error)[:100]}"] += 1
            return {}
        self.tally.took[tool].append(time.perf_counter() - began)
        said = " ".join(getattr(block, "text", "") for block in result.content)
        if bool(result.is_error) != fails:
            self.tally.wrong[f"{tool}: {said[:140]}"] += 1
        data = result.structured_content or {}
        if data.get("job_id"):
            self.tally.jobs[data["job_id"]] = self.token
        return data

    async def look(self) -> None:
        """Look at the GPUs, as agents do most."""
        await self.call("gpu_status")

    async def files(self) -> None:
        """Write, list and read; now and then ask for one that is not there."""
        self.count += 1
        name, text = f"k{self.count % 20}.c", f"int a{self.count};\n" * 50
        if self.laptop is None:
            wrote = await self.call("write_files", files={name: text}, workspace_id=self.workspace)
        else:
            (self.laptop / name).write_text(text)
            wrote = await self.call("write_files", local_path=".", workspace_id=self.workspace)
        self.workspace = wrote.get("workspace_id", self.workspace)
        if self.workspace:
            await self.call("list_files", workspace_id=self.workspace)
            await self.call("read_file", workspace_id=self.workspace, path=name)
            await self.call("read_file", fails=True, workspace_id=self.workspace, path="missing.c")

    async def documents(self) -> None:
        """Search the guides."""
        words = [
            "coalesced loads",
            "cp.async.bulk",
            "warp shuffle reduction",
            "mma.sync layout",
            "stream ordered memory",
        ]
        await self.call("search_docs", query=self.random.choice(words))

    async def memory(self) -> None:
        """Ask for the attempts at the problem."""
        await self.call("list_problems")
        await self.call("list_attempts", problem_id=self.problem_id)

    async def compile(self) -> None:
        """A new source each time, so that no cache answers."""
        self.count += 1
        await self.call(
            "compile_kernel", source=f"int f{self.number}_{self.count}(int x) {{ return x + 1; }}\n", language="c"
        )

    async def run(self) -> None:
        """A short command."""
        await self.call("run_command", command=["sh", "-c", "echo hello"], timeout_s=60)

    async def cancelled(self) -> None:
        """A long command that is cancelled."""
        job = await self.call("run_command", command=["sleep", "300"], timeout_s=400, detach=True)
        if job.get("job_id"):
            await self.call("job_status", job_id=job["job_id"])
            await self.call("cancel_job", job_id=job["job_id"])

    async def judged(self) -> None:
        """A kernel for the processor; another text each time, so that it is judged each time."""
        self.count += 1
        source = HONEST + f"/* {self.number} {self.count} */\n"
        verdict = await self.call(
            "evaluate_kernel", problem_id=self.problem_id, source=source, language="c", timing={"tier": "smoke"}
        )
        if verdict and verdict.get("verdict") not in ("correct", None):
            self.tally.wrong[f"evaluate_kernel: {verdict.get('verdict')}: {verdict.get('reason')}"] += 1

    async def work(self, until: float, think_s: float) -> None:
        """Do one thing after the other, with pauses, until the end."""
        mixture: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (40, self.look), (30, self.files), (12, self.documents), (10, self.memory), (3, self.compile),
            (2.5, self.run), (1.5, self.cancelled), (1, self.judged),
        ]  # fmt: skip
        await asyncio.sleep(self.random.uniform(0, think_s))
        while time.monotonic() < until:
            (_, thing), *_ = self.random.choices(mixture, [share for share, _ in mixture])
            await thing()
            await asyncio.sleep(self.random.expovariate(1 / think_s))


def logged_in(laptop: Path, url: str, token: str) -> StdioServerParameters:
    """Log in at a server from a folder of one's own; return how a client starts the bridge there."""
    laptop.mkdir(parents=True)
    home = str(laptop.with_suffix(".home"))
    known = {"PATH": os.environ["PATH"], "HOME": home, "XDG_CONFIG_HOME": f"{home}/config"}
    ours = [sys.executable, "-m", "gpu_mcp_server"]
    subprocess.run(
        [*ours, "login", url, "--no-clients"], input=token, text=True, env=known, check=True, capture_output=True
    )
    return StdioServerParameters(command=ours[0], args=[*ours[1:], "connect", url], env=known, cwd=laptop)
