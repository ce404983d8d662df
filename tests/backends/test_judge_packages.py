"""`hosts add --with`: packages for the judge, installed on a host by its own pip."""

import base64
import hashlib
import json
import os
import subprocess
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.services.hosts.judge_environments import MOST_PACKAGES, environment_error, package_names
from tests.backends.sshd import USER, Sshd
from tests.commands import Commands, Done

Add = Callable[..., Done]


def write_wheel(folder: Path, name: str, version: str) -> None:
    """Write a wheel of one empty module. Source: PEP 427."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": b"",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for path, data in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)


@pytest.fixture
def wheels() -> Iterator[dict[str, str]]:
    """pip's variables for a folder with a package `tiny` and with a stand-in for NumPy, which takes half a minute."""
    with tempfile.TemporaryDirectory() as name:
        for each, version in (("tiny", "1.5"), ("numpy", "9.0")):
            write_wheel(Path(name), each, version)
        yield {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": name}


@pytest.fixture
def run(commands: Commands, tmp_path: Path) -> Add:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GPU_MCP_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }  # fmt: skip
    return lambda *words, **more: commands.run("hosts", *words, env={**environment, **more}, cwd=tmp_path)


@pytest.fixture
def add(run: Add, sshd: Sshd, state_dir: str) -> Add:
    def call(*more: str, pip: dict[str, str], server: Sshd = sshd) -> Done:
        words = ["add", "box", f"{USER}@127.0.0.1:{server.port}", "--identity-file", str(server.user_key)]
        words += ["--known-hosts", str(server.known_hosts), "--state-dir", state_dir]
        return run(*words, "--set", f"environment={json.dumps(pip)}", *more)

    return call


def config(folder: Path) -> dict[str, dict[str, str]]:
    path = folder / "config" / "gpu-mcp-server" / "config.toml"
    return tomllib.loads(path.read_text()).get("hosts", {}) if path.exists() else {}


def test_packages_are_installed_over_ssh_and_their_python_judges(
    add: Add, run: Add, wheels: dict[str, str], state_dir: str, tmp_path: Path
):
    added = add("--with", "tiny==1.5", pip=wheels)

    assert added.returncode == 0, added.stdout + added.stderr
    python = f"{state_dir}/judge-environment/bin/python"
    assert "installed tiny 1.5, numpy 9.0" in added.stdout and "judges cpu" in added.stdout
    assert config(tmp_path)["box"]["judge_python"] == python
    assert subprocess.run([python, "-c", "import tiny"], check=False).returncode == 0
    assert not (Path(state_dir) / "judge-environment" / "unpacked").exists()

    write_wheel(Path(wheels["PIP_FIND_LINKS"]), "other", "2")
    more = json.loads(run("set", "box", "--with", "other", "--json").stdout)
    assert more["settings"]["judge_python"] == python
    assert subprocess.run([python, "-c", "import tiny, other"], check=False).returncode == 0


def test_this_machine_s_pip_is_told_what_the_shell_says(
    run: Add, wheels: dict[str, str], state_dir: str, tmp_path: Path
):
    done = run("add", "here", "--kind", "local", "--state-dir", state_dir, "--with", "tiny", **wheels)

    assert done.returncode == 0, done.stdout + done.stderr
    assert config(tmp_path)["here"] == {
        "kind": "local",
        "state_dir": state_dir,
        "judge_python": f"{state_dir}/judge-environment/bin/python",
    }


@pytest.mark.parametrize(
    ("packages", "pip", "words"),
    [
        ("tinny", {}, ["No matching distribution found for tinny", "Is tinny spelt right"]),
        ("tiny==7", {}, ["No matching distribution found for tiny==7", "such a version"]),
        (
            "tiny",
            {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
            ["does not reach its package index", "PIP_INDEX_URL"],
        ),
    ],
)
def test_what_pip_cannot_install_is_told_and_the_host_not_kept(
    add: Add,
    wheels: dict[str, str],
    state_dir: str,
    tmp_path: Path,
    packages: str,
    pip: dict[str, str],
    words: list[str],
):
    done = add("--with", packages, pip=wheels | pip)

    assert done.returncode == 2
    assert all(each in done.stderr for each in [*words, "The settings are as they were"]), done.stderr
    assert config(tmp_path) == {}
    assert not (Path(state_dir) / "judge-environment").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_a_full_disk_is_told(add: Add, wheels: dict[str, str], state_dir: str):
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=711", "tmpfs", state_dir]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        done = add("--with", "tiny", pip=wheels)
    finally:
        subprocess.run(["umount", "-l", state_dir], check=False)

    assert f"has no room for the packages in {state_dir}" in done.stderr, done.stdout + done.stderr
    assert "state_dir of the host" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_a_host_without_the_module_venv_is_told_what_to_install(
    add: Add, wheels: dict[str, str], start_sshd: Callable[..., Sshd]
):
    server = start_sshd()
    server.stop()
    hide = 'for f in /usr/lib/python3*/ensurepip /usr/local/lib/python3*/ensurepip; do [ ! -d "$f" ] || mount -t tmpfs tmpfs "$f"; done'
    server.inside = ["unshare", "--mount", "sh", "-c", f'{hide}; exec "$@"', "sh"]
    server.start()

    done = add("--with", "tiny", server=server, pip=wheels)

    assert "A Python with the modules venv and ensurepip" in done.stderr, done.stdout + done.stderr
    assert "apt-get install python3-venv" in done.stderr


def test_a_key_that_must_be_accepted_first_does_not_forget_the_packages(add: Add, tmp_path: Path):
    done = add("--with", "tiny", "--known-hosts", str(tmp_path / "none"), pip={})

    assert done.returncode == 1
    assert "--accept-key" in done.stdout
    assert "hosts set box --with tiny" in " ".join(done.stdout.split())


@pytest.mark.parametrize("given", ["--index-url=http://x", "a b", "../x.whl", "tiny; rm -rf ~", "tiny==1 --pre", ""])
def test_what_is_no_package_never_reaches_pip(given: str):
    with pytest.raises(BadRequest, match="no package"):
        package_names([given])


def test_packages_have_names_and_a_limit():
    assert package_names(["torch==2.13.0", "Jinja2", "x[cuda]>=1.0", "ruamel.yaml"]) == [
        "torch",
        "Jinja2",
        "x",
        "ruamel.yaml",
    ]
    with pytest.raises(BadRequest, match=f"1 to {MOST_PACKAGES}"):
        package_names(["a"] * (MOST_PACKAGES + 1))


@pytest.mark.parametrize(
    ("step", "said", "words"),
    [
        ("busy", "/state/judge-environment", "are being installed"),
        ("limit", "3600 s", "did not end within 3600 s"),
        ("reach", "/root/x", "state_dir of the host"),
        ("import", "ImportError: failed to map segment", "noexec"),
        ("pip", "x\nERROR: Could not build wheels", "Could not build wheels"),
        ("pip", "OSError: [Errno 28] No space left on device", "no room"),
    ],
)
def test_each_step_that_fails_says_what_to_do(step: str, said: str, words: str):
    assert words in str(environment_error("box", step, said, "/state"))
