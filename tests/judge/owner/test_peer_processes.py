"""In which order the players of a task are brought on, and what is measured before a candidate is loaded."""

import types
from typing import Any

import pytest
from gpu_mcp_judge.devices.device import Device
from gpu_mcp_judge.owner import peer_processes
from gpu_mcp_judge.reference import reference_process
from gpu_mcp_judge.timing import time_accounting

SEED = 11
TASK: dict[str, Any] = {"device": "cuda", "problem": "module", "candidate": "library", "round_ms": 10}


class Gpu(Device):
    kind = "cuda"


class Processor(Device):
    kind = "cpu"


class Stub:
    """A player that answers what it is told to; all of them write into one diary."""

    prepare_s = 0.0

    def __init__(self, role: str, diary: list[Any], *, ready: bool = True, reply: dict[str, Any] | None = None) -> None:
        self.role, self.diary, self.ready, self.reply = role, diary, ready, reply or {}
        self.asked = "hello"
        self.link = self
        self.frozen = False

    def pending(self, timeout_s: float) -> bool:
        return self.ready

    def tell(self, do: str, **fields: Any) -> None:
        assert not self.frozen
        self.asked = do
        self.diary.append((self.role, do, fields))

    def hear(self, timeout_s: float) -> dict[str, Any]:
        assert not self.frozen
        return self.reply if self.asked == "start" else {}

    def ask(self, do: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        self.tell(do, **fields)
        return self.hear(timeout_s)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False


@pytest.fixture
def bring(monkeypatch):
    """Return a function that brings two players on and returns what was asked of whom, in order."""

    def bring_on(
        device: Device, *, ready: bool = True, refuses: dict[str, Any] | None = None, **task: Any
    ) -> list[Any]:
        diary: list[Any] = []

        def rehearsed(both: Any, on: Device, passes: int, *more: Any) -> dict[str, Any]:
            diary.append(("both", "calibrate", {} if passes == on.rehearsals else {"passes": passes}))
            for player in both:
                player.freeze()
            return {}

        monkeypatch.setattr(peer_processes.Link, "from_environment", lambda role: None)
        monkeypatch.setattr(peer_processes, "rehearsed_costs", rehearsed)
        first = Stub("reference", diary, ready=ready, reply=refuses)
        other = Stub("candidate", diary, ready=ready)
        both = peer_processes.Players({**TASK, "device": device.kind, **task}, SEED)
        both.start_concurrently(first, other)
        diary.append(("owner", "device", {}))
        both.supervisor.enter_window = lambda part: bool(diary.append(("owner", part, {})))
        both.start(time_accounting.Ledger(), device, other, first)
        assert (other.frozen, first.frozen) == (True, False)
        return diary

    return bring_on


BEGIN = ("reference", "start", {"torch_seed": SEED})
OTHER = ("candidate", "start", {})
DEVICE = ("owner", "device", {})
ALONE, SHARED = ("owner", "alone", {}), ("owner", "shared", {})
CALIBRATE = ("both", "calibrate", {})
LOAD = ("candidate", "load", {"torch_seed": SEED})
LAST = ("reference", "load", {"torch_seed": SEED})


def test_those_that_waited_begin_while_the_owner_makes_its_context(bring):
    assert bring(Gpu()) == [BEGIN, OTHER, DEVICE, ALONE, CALIBRATE, SHARED, LOAD]


def test_those_that_still_import_begin_afterwards_and_before_anything_is_calibrated(bring):
    assert bring(Gpu(), ready=False) == [DEVICE, BEGIN, OTHER, ALONE, CALIBRATE, SHARED, LOAD]


@pytest.mark.parametrize("task", [{"tier": "smoke"}, {"tier": "correctness"}, {"mode": "writes"}])
def test_the_clock_is_calibrated_only_where_something_is_timed(bring, task):
    assert bring(Gpu(), **task) == [BEGIN, OTHER, DEVICE, LOAD]


@pytest.mark.parametrize(
    ("task", "passes"),
    [({}, 5), ({"brief": False}, 9), ({"gated": False}, 9), ({"basis": "call"}, 9), ({"basis": "kernelbench"}, 9)],
)
def test_a_first_look_makes_fewer_empty_passes_where_gates_give_the_time(bring, task, passes):
    calibrate = CALIBRATE if passes == 9 else ("both", "calibrate", {"passes": passes})

    assert calibrate in bring(Gpu(), **{"brief": True, "gated": True, **task})


def test_on_a_processor_nothing_is_loaded_before_both_are_calibrated(bring):
    assert bring(Processor()) == [DEVICE, CALIBRATE, LOAD, LAST]


def test_a_reference_that_cannot_be_loaded_is_told_as_that(bring):
    with pytest.raises(peer_processes.JudgeFailed, match="start and load: no torch"):
        bring(Gpu(), refuses={"error": "no torch"})


def test_a_reference_loads_the_problem_while_its_context_is_made(monkeypatch):
    done: list[str] = []
    one = reference_process.Reference(None)
    one.arrays = types.SimpleNamespace(begin=lambda: done.append("begin"), start=lambda: done.append("start"))
    monkeypatch.setattr(
        one, "load", lambda message, descriptors: done.append("load") or {"said": message["torch_seed"]}
    )

    assert one.start({"torch_seed": SEED}, []) == {"said": SEED}
    assert one.start({}, []) == {}
    assert done == ["begin", "load", "start", "start"]
