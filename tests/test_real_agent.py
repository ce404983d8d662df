"""The benchmark of a real agent, by scripted ones that err as models do: what they claim is not what counts."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.laboratory import Folder
from tests.recipes.conftest import TWICE

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "benchmarks/agent"
REAL: dict[str, Any] = runpy.run_path(str(AGENT / "real.py"))
PLAN = """
name = "real"
mode = "agent"
problem = "p.toml"
language = "c"
[agent]
command = ["{python}", "agent.py", "{seed}"]
files = { "agent.py" = "AGENT" }
"""
BRIEFLY = """
import runpy, sys
from tests.brief_rounds import set_rounds
set_rounds(brief=True)
sys.argv[:1] = []
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def row(arm: str = "tools", **more: Any) -> Any:
    values = {"arm": arm, "problem": "p", "seed": 1, "claimed": True, "verdict": "correct", "speedup": 2.0, "low": 1.5,
              "high": 2.5, "tokens": 10, "cost_usd": 0.5, "seconds": 1.0, "transcript": "t"}  # fmt: skip
    return REAL["Row"](**{**values, **more})


def test_a_claim_is_what_its_last_line_says():
    claim_of = REAL["claim_of"]
    assert claim_of('{"claim": {"correct": true, "speedup": 1.5}}')
    assert claim_of(
        'first {"claim": {"correct": false, "speedup": null}} then {"claim": {"correct": true, "speedup": 3}}'
    )
    for text in (
        "",
        "it is 3 times as fast",
        '{"claim": {"correct": true, "speedup": 0.9}}',
        '{"claim": {"correct": 1}}',
    ):
        assert not claim_of(text)


def test_a_win_is_beyond_its_interval_and_a_false_one_was_claimed():
    assert row().win and not row(low=0.9).win and not row(verdict="incorrect").win and not row(low=None, high=None).win
    assert row(verdict="cheat").false_win and row(low=0.5, high=0.9).false_win
    assert not row(low=0.9, high=1.2).false_win and not row(verdict="incorrect", claimed=False).false_win
    said = REAL["summary"]([row(), row("shell", verdict="incorrect", tokens=None, cost_usd=None)])
    assert (
        "| shell | 1 | 1 | 0.000" in said and "unknown (0 runs)" in said and "verified wins +1 (1 differences" in said
    )
    assert REAL["spread"]([*range(100)], 4) == [0, 25, 50, 75] and REAL["spread"]([1, 2], 4) == [1, 2]


@pytest.mark.timeout(400)  # eight verdicts with times; the matter is none of them
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_both_arms_are_judged_anew_and_a_killed_measurement_goes_on(tmp_path: Path):
    (tmp_path / "p.toml").write_text(TWICE)
    (tmp_path / "plan.toml").write_text(PLAN.replace("AGENT", str(AGENT / "scripted_agent.py")))
    command = [sys.executable, "-c", BRIEFLY, str(AGENT / "real.py"), "plan.toml", "--problems", "p.toml"]
    command += ["--seeds", "2"]
    shell = ["--shell", f"python3 {AGENT / 'scripted_agent.py'} {{seed}}"]
    with Folder() as data:
        env = {**os.environ, "GPU_MCP_DATA_DIR": str(data), "GPU_MCP_INDEX_DOCUMENTATION": "false"}
        env |= {"PYTHONPATH": str(ROOT)}
        refused = subprocess.run([*command, *shell], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert refused.returncode == 2 and "--allow-shell" in refused.stderr
        whole = [*command, *shell, "--allow-shell"]
        with subprocess.Popen(whole, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            first = running.stdout.readline()
            running.send_signal(signal.SIGKILL)
        assert first.startswith("tools p 1: correct")
        done = subprocess.run(whole, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "real-agent" / "rows.jsonl").read_text().splitlines()]
    assert [(r["arm"], r["seed"], r["verdict"]) for r in rows] == [
        ("tools", 1, "correct"), ("shell", 1, "incorrect"), ("tools", 2, "correct"), ("shell", 2, "incorrect"),
    ]  # fmt: skip
    assert all(r["claimed"] and r["tokens"] == 100 for r in rows if r["arm"] == "shell")
    assert "| shell | 2 | 2 | 0.000 (0 of 2" in done.stdout and "| 1.000 (2 of 2" in done.stdout
    text = (tmp_path / "real-agent" / "shell-p-2.txt").read_text()
    assert "wrong tail" in text and "n / 4 * 4 - 4" in text
