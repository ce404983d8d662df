"""The speed target of mode nccl: a verified program counts as fast only where the user's own program was timed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.nccl_check import NcclProgramTimes
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.modes.nccl_mode import PROGRAM_FOLDER
from gpu_mcp_server.recipes.modes.nccl_speed import speed_of
from gpu_mcp_server.recipes.run.journal import FILE
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.nccl.program_times import ROUNDS, ProgramTimes
from gpu_mcp_server.services.nccl.rank_jobs import ProgramLaunch
from tests.recipes.conftest import HERE
from tests.recipes.modes import test_nccl_mode
from tests.recipes.modes.test_nccl_mode import ran
from tests.services.nccl.test_pipeline import PROGRAM

LEFT = next(text for name, text in vars(test_nccl_mode).items() if name in ("BROADCAST", "PRODUCT"))
"""A program of which a host call is left to the scripted agent."""


def timed(original_s: float, changed_s: float) -> NcclProgramTimes:
    return NcclProgramTimes(original_s=[original_s, 2 * original_s], changed_s=[changed_s, 2 * changed_s])


def test_a_speed_is_the_ratio_of_pairs_and_what_was_not_timed_reaches_nothing():
    speed = speed_of(timed(3.0, 2.0), 1.4)
    assert (speed.reached, speed.ratio.mean, speed.ratio.of) == (True, pytest.approx(1.5), 2)
    assert not speed_of(timed(3.0, 2.0), 1.6).reached and "target 1.6" in speed_of(timed(3.0, 2.0), 1.6).said
    wide = NcclProgramTimes(original_s=[3.0, 3.0, 3.0], changed_s=[1.5, 2.0, 2.5])
    assert (speed_of(wide, 1.4).ratio.mean or 0) > 1.4 and not speed_of(wide, 1.4).reached, "the lower end counts"
    nothing = speed_of(NcclProgramTimes(not_measured="2 GPUs are needed, 'local' has 0"), 0.1)
    assert (nothing.reached, nothing.measured) == (False, False) and "2 GPUs are needed" in nothing.said


async def test_without_its_gpus_a_verified_program_is_unmeasured_not_fast(lab: Lab, tmp_path: Path):
    state, folder = await ran(lab, tmp_path, PROGRAM, target={"speedup": 1.1})

    assert state.stopped == "unmeasured" and "2 GPUs are needed, 'local' has 0" in state.why, state.summary()
    assert state.spent.agent_calls == 0 and "nccl.host" in state.next_step
    assert "2 GPUs" in json.loads((folder / "handoffs" / "measure-000.json").read_text())["not_measured"]
    with pytest.raises(BadRequest, match=r"target\.speedup"):
        await ran(lab, tmp_path, PROGRAM, target={"median_us": 5})


async def test_a_verified_program_below_its_target_is_made_faster_and_a_killed_run_measures_once(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    measured: list[tuple[dict[str, str], str]] = []

    async def measure(_: ProgramTimes, original: Any, changed: Any, *rest: Any) -> NcclProgramTimes:
        measured.append(changed)
        assert original[1] == "p.cu" and original[0]["p.cu"] == LEFT
        return timed(3.0, 3.0 if len(measured) == 1 else 1.0)

    monkeypatch.setattr(ProgramTimes, "measure", measure)  # stands in for two GPUs
    script = Path(HERE / "nccl_agent.py").read_text()
    faster = (
        'edits = [("p.device.cu", "<<<16, 512, 0, stream>>>", "<<<32, 512, 0, stream>>>")] if number > 3 else edits\n'
    )
    agent = tmp_path / "faster_agent.py"
    agent.write_text(
        script.replace("assert CALL in prompt", "assert CALL in prompt or number > 3").replace(
            "told = [", f"{faster}told = ["
        )
    )
    call = {**test_nccl_mode.AGENT, "files": {"agent.py": str(agent)}}
    (tmp_path / "program").mkdir()
    state, folder = await ran(lab, tmp_path / "program", LEFT, target={"speedup": 2.0}, agent=call)

    assert state.stopped == "target" and "the whole program is 3 (2 differences" in state.why, state.summary()
    steps = [(s.step, s.speedup) for s in state.steps if s.kind == "measure"]
    assert steps == [("measure-003", pytest.approx(1.0)), ("measure-004", pytest.approx(3.0))]
    assert "<<<32, 512" in measured[1][0]["p.device.cu"] and "<<<16, 512" in measured[0][0]["p.device.cu"]
    assert "<<<32, 512" in (folder / f"{PROGRAM_FOLDER}-004" / "p.device.cu").read_text()
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    for step in (b'"begun","step":"measure-003"', b'"done","step":"measure-003"', b'"begun","step":"verify-004"'):
        cut = next(n for n, line in enumerate(lines) if step in line)
        (folder / FILE).write_bytes(b"".join(lines[: cut + 1]))
        measured[:] = measured[: 0 if b'"begun","step":"measure-003"' in step else 1]
        again = await Runs(lab).go(state.run_id)
        assert [s.step for s in again.steps] == [s.step for s in state.steps] and again.why == state.why
        assert len(measured) == 2


async def test_whole_programs_run_in_turn_and_one_that_fails_has_no_time(lab: Lab, tmp_path: Path):
    def built(name: str, text: str) -> bytes:
        (tmp_path / f"{name}.c").write_text(text)
        subprocess.run(["gcc", "-o", tmp_path / name, tmp_path / f"{name}.c"], check=True)
        return (tmp_path / name).read_bytes()

    async def tell(message: str) -> None:
        told.append(message)

    told: list[str] = []
    times, host = lab.nccl.times, await lab.nccl.verifier.hosts.describe_host(None)
    good, bad = built("good", "int main(void) { return 0; }\n"), built("bad", "int main(void) { return 3; }\n")
    found = await times.measure_binaries(host, good, good, ProgramLaunch(ranks=1), 0, tell)
    assert (len(found.original_s), len(found.changed_s), found.not_measured) == (ROUNDS, ROUNDS, "")
    assert min(*found.original_s, *found.changed_s) > 0 and told[-1] == f"pair {ROUNDS} of {ROUNDS}"
    failed = await times.measure_binaries(host, good, bad, ProgramLaunch(ranks=1), 0, tell)
    assert failed.original_s == [] and failed.not_measured.startswith("the changed program ended as ")
