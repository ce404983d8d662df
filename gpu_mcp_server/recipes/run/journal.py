"""The journal of a run: a line for each thing that was begun or done, on disk before the run goes on."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from gpu_mcp_server.errors import BadRequest, DiskFull

FILE = "journal.jsonl"


class Journal:
    """Append-only; one process at a time may write it.

    A step is `begun` with what identifies its work elsewhere (a job, a batch) and later `done` with its result. Who
    resumes a run replays what is done and asks for what was begun, so every step counts once however often the run is
    killed.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._done: dict[str, dict[str, Any]] = {}
        self._begun: dict[str, dict[str, Any]] = {}
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Lock and read it; a last line that a crash tore is cut off.

        Raises:
            BadRequest: If another process runs this run.
        """
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise BadRequest("Another process is running this run.", hint="Wait for it, or end it.") from error
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != len(data):
            os.ftruncate(self._descriptor, len(whole))
        for entry in _entries(whole):
            (self._done if entry["event"] == "done" else self._begun)[entry["step"]] = entry
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unlock it."""
        os.close(self._descriptor)

    def begun(self, step: str) -> Mapping[str, Any] | None:
        """Return what was noted when a step was begun last."""
        return self._begun.get(step)

    def done(self, step: str) -> Mapping[str, Any] | None:
        """Return a step's result; None if it is not done."""
        return self._done.get(step)

    def steps(self) -> list[str]:
        """Return what is done, in that order."""
        return list(self._done)

    def begin(self, step: str, **about: Any) -> None:
        """Note that a step is begun."""
        self._begun[step] = self._write({"event": "begun", "step": step, **about})

    def finish(self, step: str, **result: Any) -> None:
        """Note a step's result, once.

        Raises:
            ValueError: If it is done already.
        """
        if step in self._done:
            raise ValueError(f"step {step} is done already")
        self._done[step] = self._write({"event": "done", "step": step, **result})

    def _write(self, entry: dict[str, Any]) -> dict[str, Any]:
        line = json.dumps(entry, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        before = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, line)
            if written != len(line):
                raise OSError("no room left")
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, before)
            raise DiskFull(f"The run's journal cannot be written: {error}.", hint="Make room, then resume.") from error
        return entry


def entries(folder: Path) -> list[dict[str, Any]]:
    """Return what a journal says, without its lock: of a run that may be going on."""
    try:
        data = (folder / FILE).read_bytes()
    except FileNotFoundError:
        return []
    return list(_entries(data[: data.rfind(b"\n") + 1]))


def _entries(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        yield cast("dict[str, Any]", json.loads(line))
