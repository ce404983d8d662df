import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.backends.base import Backend
from gpu_mcp_server.backends.batch import BatchBackend
from gpu_mcp_server.backends.docker import DockerBackend
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.backends.openssh import OpenSshBackend
from gpu_mcp_server.backends.ssh import SshBackend
from gpu_mcp_server.settings.server_settings import BatchHost
from tests.backends.dockerd import DOCKERD, Dockerd, fake_gpu_hook
from tests.backends.slurm import SlurmCluster, found_by_environment, missing
from tests.backends.sshd import SSHD, Sshd


@pytest.fixture(scope="session")
def start_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Sshd]]:
    """Starts servers with more lines of configuration; they end with the session."""
    if not SSHD:
        pytest.skip("no sshd here: apt-get install openssh-server")
    started: list[Sshd] = []

    def start(*lines: str) -> Sshd:
        started.append(Sshd(tmp_path_factory.mktemp("sshd"), *lines))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop()


@pytest.fixture(scope="session")
def sshd(start_sshd: Callable[..., Sshd]) -> Sshd:
    return start_sshd()


@pytest.fixture(scope="session")
def gpu_hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder where dockerd finds its stand-in for NVIDIA's hook."""
    return fake_gpu_hook(tmp_path_factory.mktemp("hook"))


@pytest.fixture(scope="session")
def dockerd(gpu_hook: Path) -> Iterator[Dockerd]:
    """A dockerd of our own; it ends with the session."""
    if os.geteuid() != 0 or not DOCKERD:
        pytest.skip("no dockerd that we may start: it needs root and apt-get install docker.io")
    daemon = Dockerd(str(gpu_hook))
    try:
        why = daemon.started()
        if why:
            pytest.skip(f"dockerd does not start here: {why}")
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A Slurm cluster of our own, which its commands find by the environment; it ends with the session."""
    if os.geteuid() != 0 or missing():
        pytest.skip(f"no Slurm that we may start: it needs root and apt-get install slurm-wlm munge {missing()}")
    with found_by_environment(SlurmCluster()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder_of_jobs() -> Iterator[str]:
    """The folder of a host that several tests share."""
    yield from _folder()


@pytest.fixture
def state_dir() -> Iterator[str]:
    """A folder for jobs that the uid of a job can reach, as pytest's own folders are not."""
    yield from _folder()


def _folder() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="hostd-"))
    folder.chmod(0o711)
    yield str(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _local(request: pytest.FixtureRequest, state_dir: str) -> Backend:
    return LocalBackend("tested", state_dir=state_dir)


def _ssh(request: pytest.FixtureRequest, state_dir: str) -> Backend:
    return SshBackend("tested", request.getfixturevalue("sshd").settings(state_dir=state_dir))


def _openssh(request: pytest.FixtureRequest, state_dir: str) -> Backend:
    if not shutil.which("ssh"):
        pytest.skip("no ssh here: apt-get install openssh-client")
    return OpenSshBackend("tested", request.getfixturevalue("sshd").openssh(state_dir=state_dir))


def _docker(request: pytest.FixtureRequest, state_dir: str) -> Backend:
    return DockerBackend("tested", request.getfixturevalue("dockerd").settings())


def _slurm(request: pytest.FixtureRequest, state_dir: str) -> Backend:
    request.getfixturevalue("slurm")
    return BatchBackend("tested", BatchHost(queue_wait_s=60))


BACKENDS = {"local": _local, "ssh": _ssh, "openssh": _openssh, "docker": _docker, "slurm": _slurm}
"""Every way to reach a host; a new one is one more line here."""


@pytest.fixture(params=BACKENDS, scope="module")
def backend(request: pytest.FixtureRequest, folder_of_jobs: str) -> Backend:
    return BACKENDS[request.param](request, folder_of_jobs)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on the Slurm cluster, and what runs on any host but this machine: all of that is slow."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "slurm" in names or "slurm" in [value for value in parameters.values() if isinstance(value, str)]:
            item.add_marker(pytest.mark.slurm)
        if parameters.get("backend", "local") != "local":
            item.add_marker(pytest.mark.slow)
