"""Packages without bytecode get theirs from hostd, where jobs can read it and not write it."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gpu_mcp_server.hostd.probe.bytecode import MADE, bytecode_of
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from tests.laboratory import HONEST, PROBLEM, laboratory

ROLE = """
IMPORTS = ["quick", "slow.part", "json"]
{source}
sys.path.insert(0, sys.argv[1])
import_ahead(prepares=True)
import slow.late
print([sys.modules[name].__spec__.cached for name in ("slow", "slow.part", "slow.late", "quick", "json")])
"""


def wait_for(folder: Path, since: float = 0) -> None:
    """Wait until an interpreter's packages are compiled."""
    end = time.monotonic() + 100
    while not (folder / MADE).exists() or (folder / MADE).stat().st_mtime < since:
        assert time.monotonic() < end, "not compiled in 100 s"
        time.sleep(0.05)
    with (folder / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # its process ends after that


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder of modules: a package without bytecode, and a module with."""
    (tmp_path / "site/slow/tests").mkdir(parents=True)
    for name in ("slow/__init__", "slow/part", "slow/late", "slow/tests/more", "quick"):
        (tmp_path / f"site/{name}.py").write_text("value = 1\n")
    subprocess.run([sys.executable, "-m", "compileall", "-q", "quick.py"], cwd=tmp_path / "site", check=True)
    return tmp_path / "site"


def compiled(tmp_path: Path, site: Path, version: str = "1.0", level: str = "full") -> Path | None:
    found = bytecode_of(str(tmp_path / "state"), level, sys.executable, {"slow": [str(site / "slow"), version]})
    return Path(found) if found else None


def test_a_package_is_compiled_once_for_each_version_of_it(tmp_path, site):
    folder = compiled(tmp_path, site)
    assert folder is not None
    wait_for(folder)
    made = {path.name.split(".")[0] for path in folder.rglob("*.pyc")}
    assert made == {"__init__", "part", "late"}
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in folder.rglob("*.pyc"))
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in [folder, *folder.rglob("*")] if path.is_dir())

    shutil.rmtree(folder / str(site)[1:])
    assert compiled(tmp_path, site) == folder
    time.sleep(0.3)
    assert not list(folder.rglob("*.pyc")), "the same version is not compiled again"
    begun = time.time()
    assert compiled(tmp_path, site, "1.1") == folder
    wait_for(folder, begun)
    assert json.loads((folder / MADE).read_text()) == {str(site / "slow"): "1.1"}
    assert list(folder.rglob("*.pyc"))


def test_packages_below_a_folder_named_tests_are_compiled_too(tmp_path):
    (tmp_path / "tests/slow/tests").mkdir(parents=True)
    for name in ("__init__", "part", "tests/more"):
        (tmp_path / f"tests/slow/{name}.py").write_text("value = 1\n")
    folder = compiled(tmp_path, tmp_path / "tests")
    assert folder is not None
    wait_for(folder)
    assert {path.name.split(".")[0] for path in folder.rglob("*.pyc")} == {"__init__", "part"}


def test_other_versions_and_forgotten_interpreters_are_removed(tmp_path, site):
    folder = compiled(tmp_path, site)
    assert folder is not None
    wait_for(folder)
    (folder / "opt/old").mkdir(parents=True)
    (folder.parent / "forgotten/opt").mkdir(parents=True)
    (folder.parent / "kept").mkdir()
    os.utime(folder.parent / "forgotten", (0, 0))
    begun = time.time()
    compiled(tmp_path, site, "2.0")
    wait_for(folder, begun)
    assert sorted(path.name for path in folder.parent.iterdir()) == sorted([folder.name, "kept"])
    assert not (folder / "opt/old").exists()
    assert list(folder.rglob("*.pyc"))


def test_two_that_ask_at_once_compile_once(tmp_path, site):
    folder = compiled(tmp_path, site)
    assert folder is not None
    wait_for(folder)
    with (folder / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert compiled(tmp_path, site, "2.0") == folder
        time.sleep(0.3)
        assert "2.0" not in (folder / MADE).read_text()


@pytest.mark.parametrize(("level", "wanted"), [("unconfined", False), ("landlock", True), ("full", True)])
def test_where_a_job_could_write_it_there_is_none(tmp_path, site, level, wanted):
    assert (compiled(tmp_path, site, level=level) is not None) == wanted


def test_an_interpreter_with_bytecode_of_its_own_needs_none(tmp_path):
    assert bytecode_of(str(tmp_path), "full", sys.executable, {}) == ""
    assert not list(tmp_path.iterdir())


def test_a_role_reads_it_for_those_packages_alone(tmp_path, site):
    folder = compiled(tmp_path, site)
    assert folder is not None
    wait_for(folder)
    env = {**os.environ, "JUDGE_BYTECODE": str(folder), "JUDGE_BYTECODE_OF": "slow torch"}
    program = ROLE.format(source=worker_source("judge_role"))
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-v", "-c", program, str(site)],
        env=env, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    for name in ("__init__", "part", "late"):
        assert f"code object from '{folder}{site}/slow/{name}." in done.stderr
    assert f"code object from '{site}/__pycache__/quick." in done.stderr
    assert not (site / "slow/__pycache__").exists()


WRITING = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <fcntl.h>
static int spoil(void) {
    char path[4096];
    const char *folder = getenv("JUDGE_BYTECODE");
    if (!folder || access(folder, R_OK)) return 78;
    snprintf(path, sizeof path, "%s/made.json", folder);
    if (access(path, R_OK)) return 79;
    if (open(path, O_RDWR) >= 0 || unlink(path) == 0) return 77;
    snprintf(path, sizeof path, "%s/new.pyc", folder);
    return open(path, O_RDWR | O_CREAT, 0644) >= 0 ? 76 : 0;
}
"""


async def test_a_candidate_reads_it_and_cannot_write_it(tmp_path):
    """A Python whose NumPy was never compiled judges: its processes read hostd's bytecode, the candidate's too."""
    own = Path("/opt") if os.geteuid() == 0 else tmp_path  # a job's uid enters no temporary folder of root's
    home = own / f"python-of-{tmp_path.name}-{os.getpid()}"
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        site = next(home.glob("lib/python3*/site-packages"))
        installed = Path(np.__file__).parent
        for folder in [installed, *installed.parent.glob("numpy*.libs"), *installed.parent.glob("numpy-*.dist-info")]:
            shutil.copytree(folder, site / folder.name, ignore=shutil.ignore_patterns("__pycache__", "tests"))
        host = {"kind": "local", "judge_python": str(home / "bin/python")}
        async with laboratory(hosts={"local": host}) as lab:
            probe = await lab.hosts.probe("local")
            assert probe.judge is not None and probe.judge.uncompiled == ("numpy",)
            wait_for(Path(probe.judge.bytecode))
            text = WRITING + HONEST.replace(
                "    for (", "    int code = spoil();\n    if (code) return code;\n    for ("
            )
            info = await lab.evaluation.registry.register(**PROBLEM)
            source = CandidateSource(text, "c", "candidate.c")
            found = await lab.evaluation.evaluator.evaluate(info.problem_id, source, device="cpu")
            assert found.verdict == "correct", found.reason
    finally:
        shutil.rmtree(home, ignore_errors=True)
