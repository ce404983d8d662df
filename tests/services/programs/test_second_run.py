"""The second run of a program whose GPU waits: real workers and torch; the GPU's records alone are made by hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.package_files import WORKERS, worker_source
from gpu_mcp_server.profilers.hotspots import RecordedProgram, parse_recording, read_second_run
from gpu_mcp_server.workers.run_profiler import OUT_OF_TIME
from tests.judge.harness import torch_python

PYTHON = torch_python() or ""
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON, reason="no Python with torch: set TEST_TORCH_PYTHON"),
]

GPU = """
import json, os, sys
if "hotspot_trace.py" in sys.orig_argv:
    import torch, torch.profiler
    class Recorded:
        def __init__(self, activities, record_shapes):
            with open("asked.txt", "a") as file:
                print(sorted(a.name for a in activities), record_shapes, file=file)
        def __enter__(self):
            return self
        def __exit__(self, *_):
            pass
        def export_chrome_trace(self, path):
            kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 0.0, "dur": float(os.environ["BUSY_US"]), "args": {}}
            with open(path, "w") as file:
                json.dump({"traceEvents": [kernel] if kernel["dur"] else []}, file)
    torch.profiler.profile = Recorded
    torch.cuda.is_available = lambda: True
    torch.cuda.synchronize = lambda: None
    torch.cuda.get_device_name = lambda: "a GPU"
"""
"""Stands in for torch's view of a GPU, as sitecustomize of the program's interpreter."""
PROGRAM = """
import pathlib, sys, time, torch
here = pathlib.Path("ran.txt")
before = here.read_text() if here.exists() else ""
here.write_text(before + "x")
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
while True:
    weight.sum().backward()
    optimizer.step()
    if before and "fails" in sys.argv:
        sys.exit(3)
    if before and "hangs" in sys.argv:
        time.sleep(600)
"""


def ran(folder: Path, *words: str, busy_us: float = 1.0, limit_s: float = 500.0) -> dict[str, Any]:
    """Run the program as find_hotspots has run_profiler do it; return what that wrote down."""
    for name in ("hotspot_trace.py", "python_profile.py"):
        (folder / name).write_bytes((WORKERS / name).read_bytes())
    (folder / "sitecustomize.py").write_text(GPU)
    (folder / "program.py").write_text(PROGRAM)
    part: dict[str, Any] = {"warm_s": 0, "record_s": 100, "steps": 3}
    first = [PYTHON, "hotspot_trace.py", json.dumps(part), "recording.json", "program.py", *words]
    part["beside"] = "recording.json"
    plan = {
        "argv": first, "folder": "out", "collect": ["recording.json", "second.json"], "limit_s": limit_s,
        "second": [PYTHON, "hotspot_trace.py", json.dumps(part), "second.json", "program.py", *words],
    }  # fmt: skip
    worker = worker_source("run_profiler") + "\nmain(sys.argv[1:])"
    argv = [sys.executable, "-c", worker, json.dumps(plan)]
    done = subprocess.run(
        argv, cwd=folder, env={"PYTHONPATH": ".", "BUSY_US": str(busy_us)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out/about.json").read_text())


def test_a_second_run_of_as_many_steps_records_the_gpu_alone_and_without_shapes(tmp_path: Path):
    about = ran(tmp_path)
    assert (about["code"], about["second"]) == (0, 0)
    assert (tmp_path / "asked.txt").read_text().splitlines() == ["['CPU', 'CUDA'] True", "['CUDA'] False"]
    records = [parse_recording((tmp_path / f"out/out-{n}.json").read_bytes()) for n in range(2)]
    first, second = (r for r in records if isinstance(r, RecordedProgram))
    assert first.steps == second.steps == 3 and second.device_busy > 0
    found, missing = read_second_run(first, about, (tmp_path / "out/out-1.json").read_bytes())
    assert missing is None and found is not None and found.alike == 1.0


def test_a_program_runs_once_where_its_gpu_was_busy_or_not_used_or_no_time_is_left(tmp_path: Path):
    for name, told in {"busy": {"busy_us": 1e9}, "unused": {"busy_us": 0.0}, "late": {"limit_s": 0.1}}.items():
        folder = tmp_path / name
        folder.mkdir()
        about = ran(folder, **told)
        assert about["code"] == 0 and about.get("second", 0) == 0 and (name == "late") == ("second" not in about)
        assert (folder / "ran.txt").read_text() == "x" and not (folder / "out/out-1.json").exists()


def test_a_second_run_that_fails_leaves_the_first_ones_record(tmp_path: Path):
    about = ran(tmp_path, "fails")
    assert (about["code"], about["second"]) == (0, 3)
    first = parse_recording((tmp_path / "out/out-0.json").read_bytes())
    assert isinstance(first, RecordedProgram) and first.steps == 3
    assert read_second_run(first, about, b"")[1] == "the second run ended with 3"


def test_a_second_run_that_hangs_is_ended_at_the_limit_and_leaves_the_first_ones_record(tmp_path: Path):
    about = ran(tmp_path, "hangs", limit_s=25.0)
    assert (about["code"], about["second"]) == (0, OUT_OF_TIME)
    first = parse_recording((tmp_path / "out/out-0.json").read_bytes())
    assert isinstance(first, RecordedProgram) and first.steps == 3
    assert read_second_run(first, about, b"")[1] == "timeout_s ended the second run"
