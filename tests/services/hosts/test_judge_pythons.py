"""Choice of the judge's Python where the settings name none."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.hostd.probe import host_probe
from gpu_mcp_server.hostd.probe.version_cache import VersionCache
from gpu_mcp_server.services.evaluation.judge_job import lack_hint
from gpu_mcp_server.services.hosts.host_connections import JudgePython
from gpu_mcp_server.services.hosts.judge_pythons import OWN, is_tracked, local_judge_pythons


def fake_python(prefix: Path, *, numpy: str | None, torch: str | None) -> str:
    """Write a program that tells of itself what an interpreter would."""
    (prefix / "bin").mkdir(parents=True)
    python = prefix / "bin" / "python"
    about = {"version": "3.12.1", "executable": str(python), "roots": [str(prefix)]}
    has = {"numpy": numpy, "torch": torch, "torch_archs": [], "triton": None, "uncompiled": {}}
    said = json.dumps({**about, **has})
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    python.chmod(0o755)
    return str(python)


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VersionCache:
    monkeypatch.setattr(host_probe, "_found_pythons", lambda: [])
    monkeypatch.setattr(host_probe, "can_jobs_reach", lambda path: "closed" not in path)  # pyright: ignore
    return VersionCache(str(tmp_path / "answers.json"))


def chosen(answers: VersionCache, pythons: dict[str, str], *, named: bool = False) -> Any:
    wishes = {"judge_pythons": list(pythons), "judge_reasons": pythons, "judge_named": named}
    return host_probe._choose_python(answers, wishes)


def test_torch_comes_before_numpy_and_the_first_before_the_second(answers: VersionCache, tmp_path: Path):
    bare = fake_python(tmp_path / "a", numpy=None, torch=None)
    plain = fake_python(tmp_path / "b", numpy="2.0", torch=None)
    torch = fake_python(tmp_path / "c", numpy="2.0", torch="2.9")
    later = fake_python(tmp_path / "d", numpy="2.0", torch="2.9")
    found = chosen(answers, {bare: "one", plain: "two", torch: "three", later: "four"})

    assert (found["path"], found["why"]) == (torch, "three, the first of 4 with torch")
    found = chosen(answers, {bare: "one", plain: "two"})
    assert (found["path"], found["why"]) == (plain, "two, the first of 2 with NumPy; none has torch")
    assert chosen(answers, {bare: "one"})["numpy"] is None
    assert chosen(answers, {str(tmp_path / "gone"): "one"}) is None


def test_what_the_settings_name_is_taken_without_torch(answers: VersionCache, tmp_path: Path):
    plain = fake_python(tmp_path / "b", numpy="2.0", torch=None)
    torch = fake_python(tmp_path / "c", numpy="2.0", torch="2.9")

    named = chosen(answers, {plain: "judge_python of this host", torch: "other"}, named=True)
    assert (named["path"], named["why"]) == (plain, "judge_python of this host")


def test_what_the_settings_name_in_vain_is_said(answers: VersionCache, tmp_path: Path):
    bare = fake_python(tmp_path / "a", numpy=None, torch=None)
    plain = fake_python(tmp_path / "b", numpy="2.0", torch=None)
    (closed := tmp_path / "closed").touch(0o600)
    faults = {bare: "has no NumPy", str(tmp_path / "gone"): "does not exist", str(closed): "this account may not start"}
    for named, fault in faults.items():
        found = chosen(answers, {named: "judge_python of this host", plain: "other"}, named=True)
        assert found["path"] == plain
        assert found["why"].startswith(f"instead of judge_python {named}, which {fault}; other, the first of ")
        told = lack_hint(JudgePython(path=plain, version="3", roots=[], why=found["why"]), "box", "torch")
        assert told.startswith(
            f"{plain} has none. The server took it instead of judge_python {named}, which {fault}. A "
        )


def test_a_package_that_the_named_python_lacks_is_told_without_another():
    named = JudgePython(path="/a", version="3", roots=[], why="judge_python of this host")

    assert lack_hint(named, "box", "torch").startswith("/a has none. A person can run")


def test_one_that_jobs_cannot_reach_comes_last(answers: VersionCache, tmp_path: Path):
    closed = fake_python(tmp_path / "closed", numpy="2.0", torch="2.9")
    plain = fake_python(tmp_path / "b", numpy="2.0", torch=None)

    assert chosen(answers, {closed: "one", plain: "two"})["path"] == plain
    assert chosen(answers, {closed: "one"})["path"] == closed


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="jobs have uids of their own only as root")
def test_jobs_of_root_reach_no_program_below_a_closed_folder(tmp_path: Path):
    (tmp_path / "closed").mkdir(mode=0o700)

    assert not host_probe.can_jobs_reach(str(tmp_path / "closed" / "python"))
    assert host_probe.can_jobs_reach("/usr/bin/env")


def test_environments_come_before_the_folder_s_and_the_server_s_own(tmp_path: Path):
    active = fake_python(tmp_path / "active", numpy=None, torch=None)
    conda = fake_python(tmp_path / "conda", numpy=None, torch=None)
    here = fake_python(tmp_path / "work" / ".venv", numpy=None, torch=None)
    variables = {"VIRTUAL_ENV": str(tmp_path / "active"), "CONDA_PREFIX": str(tmp_path / "conda"), "PATH": "/nowhere"}

    found = local_judge_pythons(tmp_path / "work", variables)
    assert list(found) == [active, conda, here, sys.executable]
    assert found[here] == ".venv of the working folder" and found[sys.executable] == OWN
    assert list(local_judge_pythons(tmp_path, {"PATH": "/nowhere"})) == [sys.executable]


def test_a_venv_that_git_brought_is_not_started(tmp_path: Path):
    fake_python(tmp_path / ".venv", numpy="2.0", torch="2.9")
    assert not is_tracked(tmp_path, ".venv"), "no repository"
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert not is_tracked(tmp_path, ".venv")
    subprocess.run(["git", "-C", str(tmp_path), "add", "-f", ".venv"], check=True)

    assert is_tracked(tmp_path, ".venv")
    assert list(local_judge_pythons(tmp_path, {"PATH": "/nowhere"})) == [sys.executable]
