"""The server of the fault run: jobs whose ids are in a journal ahead of their submit, and their records in another.

It is killed at any moment and started again by `faults.py`; `python faults_server.py FOLDER` goes on where it was.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gpu_mcp_server.errors import GpuMcpError, NotFound  # noqa: E402
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec, Limits, ProcessSpec  # noqa: E402
from gpu_mcp_server.services.jobs.job_table import new_job_id  # noqa: E402
from gpu_mcp_server.services.lab import Lab  # noqa: E402
from gpu_mcp_server.settings.server_settings import Settings, SshHost  # noqa: E402

AT_ONCE = 6
WALL_S = 30.0
SLOW_S = 1.0
KINDS = ("turn", "plain", "turn", "fails", "turn", "attached", "output", "turn", "slow", "attached")
"""What the jobs do, by turns: a turn of the processor needs the broker, slow ones run into their limit."""


def script(number: int, kind: str) -> str:
    end = {
        "fails": "exit 3",
        "slow": f"sleep 7{number:05d}; echo end {number}",
        "output": f"head -c 300000 /dev/zero; echo end {number}",
    }
    return f"echo begin {number}; sleep 0.2; {end.get(kind, f'echo end {number}')}"


def spec(number: int, kind: str, job_id: str) -> JobSpec:
    return JobSpec(
        id=job_id,
        processes=(ProcessSpec(argv=("sh", "-c", script(number, kind)), env={"PATH": "/usr/bin:/bin"}),),
        gpus=GpuRequest(mode="exclusive", wait_s=120.0) if kind == "turn" else GpuRequest(),
        limits=Limits(wall_s=SLOW_S if kind == "slow" else WALL_S),
        detached=kind != "attached",
    )


class Journal:
    """Lines of JSON; each is one write, so that a kill leaves whole lines only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, **about: Any) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(json.dumps(about).encode() + b"\n")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()] if self.path.exists() else []


class Server:
    def __init__(self, folder: Path, lab: Lab) -> None:
        self.folder, self.lab = folder, lab
        self.begun, self.ended = Journal(folder / "begun"), Journal(folder / "ended")
        self.ids = {line["number"]: line["id"] for line in self.begun.lines()}
        self.taken = {line["id"] for line in Journal(folder / "taken").lines()}
        self.done = {line["number"] for line in self.ended.lines()}

    async def one(self, number: int) -> None:
        """Bring a job to its record, whatever happens meanwhile."""
        kind = KINDS[number % len(KINDS)]
        if number not in self.ids:
            self.ids[number] = new_job_id()
            self.begun.add(number=number, id=self.ids[number])
        job_id = self.ids[number]
        while True:
            try:
                if job_id not in self.taken:
                    await self.lab.jobs.runner.submit(spec(number, kind, job_id), host="box", blobs={})
                    self.taken.add(job_id)
                    Journal(self.folder / "taken").add(id=job_id)
                done = await self.lab.jobs.runner.wait(job_id, "box")
                row = await self.lab.commands.status(job_id)
                break
            except NotFound as error:
                self.ended.add(number=number, id=job_id, kind=kind, status="LOST", note=str(error), stdout="")
                return
            except GpuMcpError as error:
                Journal(self.folder / "errors").add(number=number, error=type(error).__name__, said=str(error)[:300])
                await asyncio.sleep(0.2)
        assert done is not None
        self.ended.add(
            number=number, id=job_id, kind=kind, status=done.record.status, note=done.record.note, shown=row.status,
            stdout=done.stdout.replace(b"\0", b"").decode(), stderr=done.stderr.decode()[-300:],
            ended_at=done.record.ended_at, processes=[[p.exit_code, p.signal] for p in done.record.processes],
        )  # fmt: skip

    async def all(self, count: int) -> None:
        """Bring all jobs to their records, a few at a time, no more of them than the faults' run allows yet."""
        places = asyncio.Semaphore(AT_ONCE)

        async def placed(number: int) -> None:
            async with places:
                while number >= int((self.folder / "allowed").read_text()):  # noqa: ASYNC110  # another process writes it
                    await asyncio.sleep(0.05)
                await self.one(number)

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                if number not in self.done:
                    group.create_task(placed(number))


async def main(folder: Path) -> None:
    about = json.loads((folder / "about").read_text())
    box = SshHost.model_validate(about["host"])
    settings = Settings(data_dir=folder / "data", hosts={"box": box}, default_host="box")
    async with Lab.open(settings) as lab:
        await Server(folder, lab).all(about["jobs"])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
    os._exit(0)
