"""Scopes of systemd: when an ordinary user's hostd asks for one, and the command that restarts it there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.sandbox import systemd_scope
from tests.hostd.conftest import needs_root

USEFUL = {"euid": 1000, "environ": {}, "unified": True, "limits": False, "bus": True}


def test_a_scope_is_useful_to_an_ordinary_user_without_limits():
    assert systemd_scope.is_useful(**USEFUL)


@pytest.mark.parametrize(
    "change",
    [{"euid": 0}, {"environ": {systemd_scope.MARK: "1"}}, {"unified": False}, {"limits": True}, {"bus": False}],
)
def test_a_scope_is_not_asked_for_otherwise(change):
    assert not systemd_scope.is_useful(**{**USEFUL, **change})


def test_the_bus_is_found_where_the_environment_or_custom_says(tmp_path):
    assert systemd_scope.runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)}, 1000) is None
    (tmp_path / "bus").touch()
    assert systemd_scope.runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)}, 1000) == str(tmp_path)
    assert systemd_scope.runtime_folder({}, 4_000_000) is None


def test_the_command_is_the_one_that_this_process_was_started_with():
    words = systemd_scope.own_command()
    assert words[0] == sys.executable
    assert words[1:] == Path("/proc/self/cmdline").read_bytes().decode().split("\0")[1:-1]


@needs_root
@pytest.mark.parametrize("knows_policy", [True, False])
def test_it_starts_itself_in_the_first_scope_that_works(tmp_path, knows_policy):
    """A stand-in for systemd-run does what the real one does with stdio and environment: nothing."""
    package = Path(systemd_scope.__file__).parents[2]
    stand_in = tmp_path / "systemd-run"
    check = "" if knows_policy else 'case "$*" in *OOMPolicy*) exit 1;; esac\n'
    stand_in.write_text(f'#!/bin/sh\n{check}case "$*" in *"-- true") exit 0;; esac\necho "$@"\n')
    for path in (stand_in, tmp_path):
        path.chmod(0o755)
    (tmp_path / "bus").touch()
    script = (
        f"import os, sys; sys.path.insert(0, {str(package)!r})\nfrom hostd.sandbox import systemd_scope as scope\n"
        f"scope.shutil.which = lambda *_, **__: {str(stand_in)!r}\nscope.UNIFIED = '/'\n"
        "scope.reexec_in_scope(['python', 'x']); print('stayed')"
    )
    for parent in [*tmp_path.parents][:-1]:
        if not os.access(parent, os.X_OK) or parent.stat().st_mode & 1 == 0:
            parent.chmod(0o711)
    user = ["setpriv", "--reuid", "61500", "--regid", "61500", "--clear-groups"]
    environ = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)}
    run = [*user, sys.executable, "-I", "-B", "-c", script]
    done = subprocess.run(run, env=environ, capture_output=True, text=True)
    policy = "-p OOMPolicy=continue " if knows_policy else ""
    assert done.stdout == f"--user --scope --quiet --collect -p Delegate=yes {policy}-- python x\n", done.stderr
    again = subprocess.run(run, env={**environ, systemd_scope.MARK: "1"}, capture_output=True, text=True)
    assert again.stdout == "stayed\n"
