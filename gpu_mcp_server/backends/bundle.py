"""hostd as it travels: one zip file with a hash for a name."""

import functools
import hashlib
import importlib.util
import io
import zipfile
from pathlib import Path

from gpu_mcp_server.package_files import HOSTD

_MAIN = "import sys\nfrom hostd.__main__ import main\nsys.exit(main())\n"


def nvml_module() -> Path | None:
    """Return the file of the pure module pynvml, which travels along."""
    spec = importlib.util.find_spec("pynvml")
    return Path(spec.origin) if spec and spec.origin else None


@functools.cache
def hostd_zip() -> tuple[str, bytes]:
    """Return the zip's short content hash and its bytes; the same sources give the same bytes."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as out:

        def add(name: str, content: bytes) -> None:
            out.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)

        add("__main__.py", _MAIN.encode())
        for path in sorted(HOSTD.rglob("*.py")):
            add(f"hostd/{path.relative_to(HOSTD).as_posix()}", path.read_bytes())
        nvml = nvml_module()
        if nvml is not None:
            add("pynvml.py", nvml.read_bytes())
    content = data.getvalue()
    return hashlib.sha256(content).hexdigest()[:16], content
