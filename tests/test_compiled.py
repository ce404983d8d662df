"""Tests' programs are compiled once, and again for each change in all that they depend on."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import compiled as module
from tests.compiled import compiled

SOURCE = "int one(void) { return 1; }\n"
GCC = ("-c", "-o", "one.o", "one.c")


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A .venv in which nothing was compiled yet."""
    (tmp_path / "venv").mkdir()
    monkeypatch.setattr(module, "VENV", tmp_path / "venv")
    module.kept.cache_clear()
    yield tmp_path / "venv"
    module.kept.cache_clear()


@pytest.fixture
def gcc(tmp_path: Path) -> Path:
    """A compiler that writes down each time that it compiles."""
    program = tmp_path / "gcc"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] || echo compiled >> {tmp_path}/log\nexec gcc "$@"\n')
    program.chmod(0o755)
    return program


def times(tmp_path: Path) -> int:
    log = tmp_path / "log"
    return log.read_text().count("compiled") if log.exists() else 0


def test_the_same_is_compiled_once_and_what_differs_anew(venv, gcc, tmp_path):
    first = compiled("one.o", {"one.c": SOURCE}, str(gcc), *GCC)
    assert compiled("one.o", {"one.c": SOURCE}, str(gcc), *GCC) == first
    assert (times(tmp_path), venv in first.parents) == (1, True)

    others = {compiled("one.o", {"one.c": SOURCE + " "}, str(gcc), *GCC)}
    others.add(compiled("one.o", {"one.c": SOURCE}, str(gcc), "-O2", *GCC))
    others.add(compiled("one.o", {"one.c": SOURCE, "two.h": ""}, str(gcc), *GCC))
    assert (times(tmp_path), len(others - {first})) == (4, 3)


def test_what_fails_is_not_kept_and_a_source_sees_only_what_is_named(venv, gcc, tmp_path):
    (tmp_path / "two.h").touch()
    for n in (1, 2):
        with pytest.raises(subprocess.CalledProcessError):
            compiled("one.o", {"one.c": '#include "two.h"\n'}, str(gcc), *GCC)
        assert times(tmp_path) == n
    assert compiled("one.o", {"one.c": '#include "two.h"\n', "two.h": ""}, str(gcc), *GCC).is_file()


def test_processes_that_ask_at_once_compile_it_once(venv, gcc, tmp_path):
    ask = (
        "import sys; from pathlib import Path; from tests import compiled; compiled.VENV = Path(sys.argv[1])\n"
        "print(compiled.compiled('one.o', {'one.c': sys.argv[2]}, *sys.argv[3:]))"
    )
    command = [sys.executable, "-c", ask, str(venv), SOURCE, str(gcc), *GCC]
    told = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    asking = [subprocess.Popen(command, env=told, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {process.communicate()[0] for process in asking}

    assert (times(tmp_path), len(answers)) == (1, 1)
    assert Path(answers.pop().strip()).is_file()


def test_what_nothing_asked_for_in_a_week_goes(venv, gcc):
    old, new = (compiled("one.o", {"one.c": SOURCE + end}, str(gcc), *GCC).parent for end in ("", " "))
    os.utime(old, (0, time.time() - 8 * 86_400))
    module.kept.cache_clear()
    module.kept()

    assert (old.exists(), new.exists()) == (False, True)


def test_without_a_venv_it_lasts_as_long_as_the_process(venv, gcc):
    venv.rmdir()
    made = compiled("one.o", {"one.c": SOURCE}, str(gcc), *GCC)

    assert made.is_file() and venv not in made.parents
