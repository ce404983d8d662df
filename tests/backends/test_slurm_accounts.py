"""A Slurm that counts: what accounts and qualities of service forbid is said in words, and who waits for them is told why."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.backends.batch import BatchBackend
from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.errors import ConfigError, GpuMcpError, HostUnavailable
from gpu_mcp_server.settings.server_settings import BatchHost
from tests.backends.accounts import CountedCluster, lacking
from tests.backends.slurm import SBIN, found_by_environment

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def counted() -> Iterator[CountedCluster]:
    """A cluster with slurmdbd; it ends with the module."""
    if os.geteuid() != 0 or lacking():
        pytest.skip(f"needs root and apt-get install slurm-wlm slurmdbd mariadb-server-core: {lacking()}")
    with found_by_environment(CountedCluster()) as cluster:
        yield cluster


async def refused(**changes: object) -> GpuMcpError:
    backend = BatchBackend("box", BatchHost.model_validate({"queue_wait_s": 2, **changes}))
    try:
        with pytest.raises(GpuMcpError) as caught:
            link = await HostdClient.open(backend)
            await link.close()
    finally:
        await backend.release()
    return caught.value


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"account": "nobody"}, "Invalid account or account/partition"), ({"qos": "none"}, "Invalid qos specification")],
)
async def test_an_account_or_quality_that_is_not_ours_is_refused(
    counted: CountedCluster, changes: dict[str, object], words: str
):
    error = await refused(**changes)
    assert isinstance(error, ConfigError)
    assert words in str(error) and "Correct partition, account, qos" in str(error)


async def test_who_holds_as_many_gpus_as_its_quality_allows_is_told_so(counted: CountedCluster):
    holder = BatchBackend("holder", BatchHost(account="lab", qos="single", gpus=1, queue_wait_s=60))
    try:
        async with ContractHost(holder) as host:
            assert (await host.run("true")).record.status == "ok"
            error = await refused(account="lab", qos="single", gpus=1, time_s=1800)
    finally:
        await holder.release()
    assert isinstance(error, HostUnavailable) and error.retryable
    assert "QOSMaxGRESPerUser: you hold as many GPUs as this qos allows" in str(error)


async def test_how_a_job_ended_that_the_controller_forgot_comes_from_the_accounts(
    counted: CountedCluster, tmp_path: Path
):
    backend = BatchBackend("past", BatchHost(account="lab", gpus=0, queue_wait_s=60))
    async with ContractHost(backend) as host:
        number = str(host.link.greeting["allocation"])
    await backend.release()
    assert counted._comes(lambda: "CANCELLED" in counted.say("sacct", "-P", "-n", "-X", "-j", number, "-o", "State"))
    forgetful = tmp_path / "scontrol"
    forgetful.write_text("#!/bin/sh\nexit 1\n")
    forgetful.chmod(0o755)
    env = {**counted.env(), "PATH": f"{tmp_path}:{SBIN}"}
    look = subprocess.run(
        backend.dialect.past_job_command(number), env=env, capture_output=True, text=True, check=False
    )
    ended = backend.dialect.parse_ended_job(look.stdout, number)
    assert ended is not None and ended.state.words == "was cancelled", look
