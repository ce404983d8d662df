"""Reads the peak figures of devices: `knowledge_base/specs/*.toml`."""

import functools
import tomllib

from gpu_mcp_server.models.device_spec import DeviceSpec
from gpu_mcp_server.package_files import content_path


@functools.cache
def specs() -> tuple[DeviceSpec, ...]:
    """Return every device that is described; none where the content is not installed."""
    files = sorted(content_path("knowledge_base/specs").glob("*.toml"))
    return tuple(DeviceSpec.model_validate(tomllib.loads(f.read_text(encoding="utf-8"))) for f in files)


def spec_of(name: str) -> DeviceSpec | None:
    """Return the figures of the device that the driver calls `name`, `None` if there are none."""
    return next((spec for spec in specs() if name in spec.names), None)
