"""A laptop without Linux: no local jobs, but everything over SSH."""

import json
import subprocess
import sys

AS_DARWIN = """
import os, sys
import aiosqlite, asyncssh, mcp.server.mcpserver, platformdirs, pydantic_settings, stamina, structlog  # look at the platform
sys.platform = "darwin"
for name in ("memfd_create", "pipe2", "eventfd", "pidfd_open", "sched_getaffinity", "sched_setaffinity", "setns", "unshare"):
    if hasattr(os, name):
        delattr(os, name)
import json
from gpu_mcp_server.settings.server_settings import Settings, SshHost
settings = Settings()
import gpu_mcp_server.services.lab, gpu_mcp_server.backends.ssh, gpu_mcp_server.mcp_api.server
from gpu_mcp_server.services.hosts.host_connections import Hosts
none = list(settings.hosts)
hosts = Hosts(Settings(hosts={"box": SshHost(host="box")}))
print(json.dumps({"none": none, "hosts": hosts.names(), "default": hosts.choose(None), "kind": hosts.backend("box").kind,
    "hostd": sorted(m for m in sys.modules if m.startswith("gpu_mcp_server.hostd."))}))
"""


def test_nothing_that_only_linux_has_is_needed_for_hosts_over_ssh(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", AS_DARWIN], capture_output=True, text=True, cwd=tmp_path, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["none"] == []
    assert (found["hosts"], found["default"], found["kind"]) == (["box"], "box", "ssh")
    assert found["hostd"] == [f"gpu_mcp_server.hostd.{each}" for each in ("gpus", "gpus.gpu_matching", "protocol")]
