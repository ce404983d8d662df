"""This machine: hostd as a child process."""

import os
import sys

from gpu_mcp_server.backends.base import Channel
from gpu_mcp_server.backends.bundle import HOSTD, nvml_module
from gpu_mcp_server.backends.child_process import ChildProcess
from gpu_mcp_server.errors import HostUnavailable

KEPT_ENVIRONMENT = (
    *("PATH", "HOME", "CUDA_HOME", "LD_LIBRARY_PATH", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
    "DBUS_SESSION_BUS_ADDRESS",
)


class LocalBackend:
    """Starts hostd from this package."""

    kind = "local"

    def __init__(self, name: str = "local", *, python: str | None = None, state_dir: str | None = None) -> None:
        self.name = name
        self._python = python or sys.executable
        self._state = state_dir or ""

    async def open(self) -> Channel:
        """Start hostd.

        Raises:
            HostUnavailable: If this is not Linux, or the interpreter does not start.
        """
        if sys.platform != "linux":
            raise HostUnavailable(
                "Jobs run only on Linux hosts.",
                hint="Add one with `gpu-mcp-server hosts add NAME user@host`.",
                retryable=False,
            )
        nvml = nvml_module()
        paths = f"sys.path.insert(0, {str(HOSTD.parent)!r}); sys.path.append({str(nvml.parent) if nvml else ''!r})"
        code = f"import sys; {paths}; from hostd.__main__ import main; sys.exit(main())"
        env = {k: v for k, v in os.environ.items() if k in KEPT_ENVIRONMENT}
        try:
            process = await ChildProcess.start([self._python, "-I", "-c", code, "serve", self._state], env)
        except OSError as error:
            raise HostUnavailable(f"hostd does not start: {error}.", retryable=False) from error
        return process.channel()
