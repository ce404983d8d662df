"""Rules in force in real processes."""

import json
import socket
import subprocess
import sys

import pytest

from gpu_mcp_server.hostd.sandbox import landlock

pytestmark = pytest.mark.skipif(sys.platform != "linux" or landlock.abi() == 0, reason="this kernel has no Landlock")

SCRIPT = """
import errno, json, os, signal, socket, subprocess, sys
from gpu_mcp_server.hostd.sandbox import landlock
given = json.loads(sys.argv[1])
rules = landlock.Ruleset(given["read_only"], given["read_write"], given["devices"], given["allow_tcp"])
rules.apply()
rules.close()
def attempt(action):
    try:
        action()
        return 0
    except OSError as error:
        return error.errno
def connect(address, family=socket.AF_INET):
    with socket.socket(family) as s:
        s.connect(address)
found = {
    "write_inside": attempt(lambda: open(given["inside"], "w").write("x")),
    "write_outside": attempt(lambda: open(given["outside"], "w")),
    "read_outside": attempt(lambda: open(given["outside"]).read()),
    "write_read_only": attempt(lambda: open(given["listed"], "a")),
    "read_read_only": attempt(lambda: open(given["listed"]).read()),
    "shadow": attempt(lambda: open("/etc/shadow")),
    "null": attempt(lambda: open("/dev/null", "r+b", buffering=0).write(b"x")),
    "mknod": attempt(lambda: os.mknod(given["inside"] + ".dev", 0o20600, os.makedev(1, 3))),
    "tcp": attempt(lambda: connect(("127.0.0.1", given["port"]))),
    "abstract": attempt(lambda: connect(given["abstract"], socket.AF_UNIX)),
    "signal": attempt(lambda: os.kill(os.getppid(), 0)),
    "run": subprocess.run(["/bin/true"]).returncode,
    "missing": rules.missing,
}
print(json.dumps(found))
"""

EACCES, EPERM = 13, 1


@pytest.fixture
def attempts(tmp_path):
    inside, outside, listed = tmp_path / "work", tmp_path / "elsewhere", tmp_path / "listed"
    for folder in (inside, outside, listed):
        folder.mkdir()
        (folder / "file").write_text("kept")

    def run(allow_tcp: bool = False) -> dict[str, object]:
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(f"\0gpu-mcp-test-{tmp_path}"[:100])
            abstract.listen()
            given = {
                "read_only": [
                    "/usr",
                    "/lib",
                    "/lib64",
                    "/bin",
                    "/etc/ld.so.cache",
                    str(listed),
                    "/no/such/place",
                    sys.prefix,
                ],
                "read_write": [str(inside)],
                "devices": ["/dev/null"],
                "allow_tcp": allow_tcp,
                "inside": str(inside / "new"),
                "outside": str(outside / "file"),
                "listed": str(listed / "file"),
                "port": tcp.getsockname()[1],
                "abstract": abstract.getsockname().decode(),
            }
            # A pyenv below a home is outside /usr: the interpreter has loaded all it needs before it is bound.
            done = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(given)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_bound_process_writes_only_where_it_was_told(attempts):
    found = attempts()
    assert (found["write_inside"], found["read_read_only"], found["null"], found["run"]) == (0, 0, 0, 0)
    assert {found[k] for k in ("write_outside", "read_outside", "write_read_only", "shadow")} == {EACCES}


def test_a_bound_process_makes_no_device_nodes(attempts):
    assert attempts()["mknod"] in (EACCES, EPERM)


def test_missing_paths_are_skipped_and_named(attempts):
    assert "/no/such/place" in attempts()["missing"]


@pytest.mark.skipif(sys.platform != "linux" or landlock.abi() < 4, reason="the kernel's Landlock knows no network")
def test_tcp_needs_permission(attempts):
    assert attempts()["tcp"] == EACCES
    assert attempts(allow_tcp=True)["tcp"] == 0


@pytest.mark.skipif(sys.platform != "linux" or landlock.abi() < 6, reason="the kernel's Landlock knows no scopes")
def test_abstract_sockets_and_signals_end_at_the_border(attempts):
    found = attempts()
    assert (found["abstract"], found["signal"]) == (EPERM, EPERM)


def test_rules_made_before_a_fork_bind_only_the_child(tmp_path):
    rules = landlock.Ruleset(["/usr", "/lib", "/lib64", "/bin"], [], [], False)
    done = subprocess.run(["cat", "/etc/hostname"], preexec_fn=rules.apply, capture_output=True, text=True)
    rules.close()
    assert done.returncode == 1
    assert "Permission denied" in done.stderr
    (tmp_path / "mine").write_text("still free")


@pytest.mark.parametrize(("version", "count"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (9, 16)])
def test_each_version_handles_the_rights_it_knows(version, count):
    assert bin(landlock.handled_files(version)).count("1") == count
