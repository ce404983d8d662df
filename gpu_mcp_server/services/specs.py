"""Reads the peak figures of devices: `knowledge_base/specs/*.toml`."""

import functools
import tomllib
from pathlib import Path

from gpu_mcp_server.models.spec import DeviceSpec


def _folder() -> Path | None:
    package = Path(__file__).parents[1]
    for place in (package.parent / "knowledge_base" / "specs", package / "_content" / "knowledge_base" / "specs"):
        if place.is_dir():
            return place
    return None


@functools.cache
def specs() -> tuple[DeviceSpec, ...]:
    """Return every device that is described; none where the content is not installed."""
    place = _folder()
    files = sorted(place.glob("*.toml")) if place else []
    return tuple(DeviceSpec.model_validate(tomllib.loads(f.read_text(encoding="utf-8"))) for f in files)


def spec_of(name: str) -> DeviceSpec | None:
    """Return the figures of the device that the driver calls `name`, `None` if there are none."""
    return next((spec for spec in specs() if name in spec.names), None)
