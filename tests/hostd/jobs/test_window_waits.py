"""A trusted role's wait for a part of its GPU's time: what it is told, and what the job's record says meanwhile."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from gpu_mcp_server.hostd.gpus.gpu_window import GpuWindow
from gpu_mcp_server.hostd.jobs import owner_control
from gpu_mcp_server.hostd.jobs.owner_control import ControlLink

GPU = "GPU-00000000-1111"


class Role:
    """The trusted role's end of a link, whose job shares a GPU."""

    def __init__(self, locks: GpuLocks) -> None:
        ours, self.end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours, self.said = ours, list[str]()
        self.link = ControlLink(ours, [])
        self.link.window, self.link.tell = GpuWindow(locks, GPU), self.said.append
        self.end.settimeout(0.1)

    def ask(self, part: str) -> None:
        self.end.send(json.dumps({"do": "window", "role": part}).encode())
        self.link.serve()

    def heard(self) -> dict:
        return json.loads(self.end.recv(4096))

    def close(self) -> None:
        if self.link.window is not None:
            self.link.window.close()
        self.ours.close()
        self.end.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Role, Role]]:
    """Two roles of jobs on one GPU, the first of which has it alone."""
    locks = GpuLocks(str(tmp_path / "locks"))
    roles = Role(locks), Role(locks)
    roles[0].ask("alone")
    roles[0].link.try_window()
    assert roles[0].heard() == {"window": True, "beside": False}
    yield roles
    for role in roles:
        role.close()


def test_a_wait_is_told_in_the_record_until_it_is_over(pair, monkeypatch):
    monkeypatch.setattr(owner_control, "TOLD_S", -1.0)
    first, second = pair
    second.ask("shared")
    for _ in range(3):
        second.link.try_window()
    assert second.link.is_waiting() and second.said == ["waits until no other job is timed on its GPU"]
    first.link.window.close()
    second.link.try_window()

    assert second.heard()["window"] is True and not second.link.is_waiting()
    assert second.said[1:] == [""]


def test_a_wait_that_is_too_long_ends_and_keeps_nobody_out(pair, monkeypatch):
    first, second = pair
    second.ask("alone")
    second.link.try_window()
    monkeypatch.setattr(owner_control, "WINDOW_S", -1.0)
    second.link.try_window()

    assert second.heard() == {"error": "other jobs left it no time on its GPU for -1 s"}
    second.ask("shared")
    assert "error" in second.heard(), "who was told that it has no window has none later"
    first.ask("shared")
    first.link.try_window()
    assert first.heard()["window"] is True


def test_a_job_that_has_its_gpu_to_itself_waits_for_nothing(tmp_path):
    role = Role(GpuLocks(str(tmp_path / "locks")))
    role.link.window = None
    role.ask("alone")

    assert role.heard() == {"window": True, "beside": False} and not role.link.is_waiting()
    role.close()
