"""Measurements on a bare GPU machine: each step names what is there, and no part takes another's time."""

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from gpu_mcp_server.cli import cheat_suite
from tests.laboratory import Folder

ROOT = Path(__file__).parents[1]
WORDS = {"torch": "python3", "out": "OUT", "case": "CASE", "shard": "1/2", "seconds": "60"}


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, as the program is."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("on_gpu")


@pytest.fixture
def parts(on_gpu: ModuleType) -> dict:
    return on_gpu.PARTS


def commands(parts: dict) -> list[tuple[str, list[str]]]:
    """Return each step's name and arguments, for both devices."""
    return [
        (f"{name}/{step.name}", step.argv({**WORDS, "device": device})[1:])
        for name, steps in parts.items()
        for step in steps
        for device in ("cuda", "cpu")
    ]


def test_every_program_and_test_of_a_step_is_there(parts: dict):
    for name, argv in commands(parts):
        paths = [word for word in argv if re.match(r"(benchmarks|tests|gpu_mcp_server)/", word)]
        assert paths or argv[:2] == ["-m", "gpu_mcp_server"], name
        assert [path for path in paths if not (ROOT / path).is_file()] == [], name
        assert len({step.name for step in parts[name.partition("/")[0]]}) == len(parts[name.partition("/")[0]])


@cache
def options_of(*program: str) -> set[str]:
    """Return the options that a file of ours defines, or those that a module's help has."""
    if program[0] != "-m":
        return set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', (ROOT / program[0]).read_text()))
    told = subprocess.run([sys.executable, *program, "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"--[a-z][a-z-]*", told.stdout))


def test_every_option_of_a_step_is_one_that_its_program_takes(parts: dict):
    wrong: list[str] = []
    for name, argv in commands(parts):
        ours = argv[1:2] == ["gpu_mcp_server"]
        program = argv[:5] if ours else argv[:2] if argv[0] == "-m" else argv[:1]
        given = {word for word in argv if word.startswith("--")}
        wrong += [f"{name}: {option}" for option in sorted(given - options_of(*program))]
    assert wrong == []


def test_the_candidates_that_a_step_names_are_in_the_catalogue(parts: dict):
    step = parts["verdicts"][0]
    known = {(each.device, each.id) for each in cheat_suite.catalogued_candidates()}
    wanted = {("cuda", each) for each in shlex.split(step.cuda)} | {("cpu", each) for each in shlex.split(step.cpu)}
    assert wanted <= known


def test_a_part_is_named_with_its_shard_and_seconds(on_gpu: ModuleType):
    assert on_gpu.wish_of("ablation:2/6=400") == on_gpu.Wish("ablation", "2/6", 400.0, on_gpu.PARTS["ablation"])
    assert [step.name for step in on_gpu.wish_of("verdicts.seconds").steps] == ["seconds"]
    assert on_gpu.wish_of("ablation:2/6").folder == "ablation-2of6"
    plain = on_gpu.wish_of("verdicts")
    assert (plain.folder, plain.seconds) == ("verdicts", sum(step.seconds for step in on_gpu.PARTS["verdicts"]))
    for bad in ("nothing", "ablation:0/2", "ablation:3/2", "ablation:2", "ablation=soon", "verdicts.no"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"Give one (of|such as)"):
            on_gpu.wish_of(bad)


def test_a_part_that_hangs_is_ended_with_all_its_processes_and_the_next_one_runs(
    on_gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    left = tmp_path / "left"
    hangs = f"import os, time; open({str(left)!r}, 'w').write(str(os.fork() and os.getpid())); print('begun', flush=True); time.sleep(600)"
    monkeypatch.setattr(on_gpu, "GRACE_S", 0.5)
    monkeypatch.setattr(on_gpu, "LEAST_S", 0.1)
    steps = {
        "first": (on_gpu.Step("hangs", 3, f"-c {shlex.quote(hangs.replace('{', '{{').replace('}', '}}'))}"),),
        "second": (
            on_gpu.Step("fails", 60, "-c 'raise SystemExit(3)'"),
            on_gpu.Step("wants", 60, "-c 'print(1)'", needs="no_such_file"),
            on_gpu.Step("says", 60, '-c \'import os; print(os.environ["WORD"], "{device}", {seconds} > 9)\''),
        ),
    }
    given = argparse.Namespace(out=tmp_path, case=tmp_path, device="cpu", torch_python="python3")
    runner = on_gpu.Runner(given, {**os.environ, "WORD": "a word"}, time.monotonic() + 200)

    assert [
        runner.run_part(on_gpu.Wish(name, "1/1", 100.0 if name == "second" else 3.0, steps[name])) for name in steps
    ] == [False] * 2
    rows = [line.split("\t") for line in (tmp_path / "parts.tsv").read_text().splitlines()[1:]]
    assert [row[:3] for row in rows] == [
        ["first", "hangs", "124"], ["first", "all", "124"],
        ["second", "fails", "3"], ["second", "wants", "-"], ["second", "says", "0"], ["second", "all", "3"],
    ]  # fmt: skip
    assert "no_such_file" in rows[3][4] and "limit" in rows[0][4]
    assert "begun" in (tmp_path / "first" / "hangs.log").read_text()
    assert (tmp_path / "second" / "says.log").read_text().endswith("a word cpu True\n")
    until = time.monotonic() + 60
    while any(str(left) in each for each in command_lines()):
        assert time.monotonic() < until, "its processes are still there"


def command_lines() -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode("utf-8", "replace"))
        except OSError:
            continue
    return found


def test_without_wheels_it_says_what_to_do(tmp_path: Path):
    command = [sys.executable, "benchmarks/on_gpu.py", "run", "--out", str(tmp_path / "out"), "--wheels", str(tmp_path)]
    said = subprocess.run([*command, "verdicts"], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 1 and "has no wheels" in said.stderr and "prepare" in said.stderr


def test_cheats_go_on_where_their_file_ends():
    with Folder() as folder:
        out = folder / "rows.jsonl"
        command = [sys.executable, "benchmarks/judge/cheats.py", "--device", "cpu", "--json", str(out)]
        first = subprocess.run(
            [*command, "no_work", "plain", "--part", "1/2"], cwd=ROOT, capture_output=True, text=True
        )
        assert first.returncode == 0, first.stdout + first.stderr
        again = subprocess.run(
            [*command, "no_work", "plain", "--seconds", "0"], cwd=ROOT, capture_output=True, text=True
        )
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["missed"]) for row in rows] == [("no_work", False)]
    assert again.returncode == 1 and "left: plain\n" in again.stdout
    unknown = subprocess.run([*command, "no_such"], cwd=ROOT, capture_output=True, text=True)
    assert "called no_such" in unknown.stderr
