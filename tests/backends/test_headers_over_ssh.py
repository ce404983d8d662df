"""`docs fetch HOST` over a real SSH connection: the headers of the other machine answer, in its version."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gpu_mcp_server.cli.app import app
from gpu_mcp_server.errors import HostUnavailable
from gpu_mcp_server.knowledge.index import build as building
from gpu_mcp_server.knowledge.readers.sources import known_sources
from gpu_mcp_server.services.documentation import host_headers
from tests.backends.sshd import Sshd

NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 99.1, V99.1.7'\n"
HEADER = """\
#define CUDART_VERSION 99010
/** Stacks boxes on the device, the heavy ones below. */
cudaError_t cudaStackBoxes(int count);
"""
ADDRESS = "doc://cuda-runtime/99.1/function/cudaStackBoxes"
Run = Callable[..., Result]


@pytest.fixture
def toolkit(state_dir: str) -> Path:
    """A toolkit of a version that no machine has, as it lies on the host."""
    root = Path(state_dir) / "toolkit"
    for name, text in {"bin/nvcc": NVCC, "include/cuda_runtime_api.h": HEADER}.items():
        path = root / name
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (root / "include" / "driver_types.h").symlink_to("/etc/hostname")
    return root


@pytest.fixture
def config(sshd: Sshd, toolkit: Path, state_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings with one host more, which only SSH reaches; of this machine's own documentation only our messages."""
    known = known_sources()
    monkeypatch.setattr(host_headers, "known_sources", lambda: {"cuda-runtime": known["cuda-runtime"]})
    here = building.installed_places
    monkeypatch.setattr(building, "installed_places", lambda: here({"messages": known["messages"]}))
    monkeypatch.setenv("GPU_MCP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("GPU_MCP_INDEX_DOCUMENTATION", "false")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    host = sshd.settings(state_dir=f"{state_dir}/jobs", cuda=str(toolkit)).model_dump(mode="json", exclude_unset=True)
    path = tmp_path / "config" / "gpu-mcp-server" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(["[hosts.box]", 'kind = "ssh"', *(f"{key} = {value!r}" for key, value in host.items())]))
    return path


@pytest.fixture
def run(config: Path) -> Run:
    return lambda *arguments: CliRunner().invoke(app, ["docs", *arguments])


def test_a_machine_that_ssh_reaches_gives_its_headers_until_they_are_forgotten(run: Run, tmp_path: Path):
    fetched = run("fetch", "box")

    assert fetched.exit_code == 0, fetched.output
    assert "reading cuda-runtime 99.1 (CUDA runtime API, of host box" in fetched.output
    found = run("search", "stack", "heavy", "boxes")
    assert ADDRESS in found.output and "> Stacks boxes on the device, the heavy ones below." in found.output
    assert run("fetch", "box", "--forget").exit_code == 0
    assert ADDRESS not in run("search", "cudaStackBoxes").output
    assert not (tmp_path / "data" / "knowledge" / "hosts" / "box").exists()


def test_a_host_that_does_not_answer_leaves_what_came_before(run: Run, config: Path, sshd: Sshd):
    assert run("fetch", "box").exit_code == 0
    config.write_text(config.read_text().replace(f"port = {sshd.port}", "port = 1"))

    refused = run("fetch", "box")

    assert isinstance(refused.exception, HostUnavailable), refused.output
    assert ADDRESS in run("search", "cudaStackBoxes").output
