"""Captures what nvcc, hipcc and clang say of the sources beside this file: `python tests/toolchains/data/capture.py`.

Each output is kept as it was, beside its source. What a compiler of another version says differs in words and
figures; test_diagnostics.py and test_hip.py then have to be read again. Compilers that are not there are left out.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NVCC = (
    # output, source, arguments
    ("syntax", "syntax.cu", "-c -arch=sm_90"),
    ("template", "template.cu", "-c -arch=sm_90"),
    ("deep", "deep.cu", "-c -arch=sm_90"),
    ("warnings", "warnings.cu", "-arch=sm_90 -Xcompiler=-Wall -Xptxas=-v"),  # no main: the linker has the last word
    ("header", "header.cu", "-c -arch=sm_90"),
    ("undefined_host", "undefined_host.cu", "-arch=sm_90 -Xptxas=-v"),
    ("undefined_device", "undefined_device.cu", "-arch=sm_90"),
    ("undefined_linked", "undefined_device.cu", "-arch=sm_90 -rdc=true"),
    ("shared", "shared.cu", "-c -arch=sm_90 -Xptxas=-v"),
    ("inline_ptx", "inline_ptx.cu", "-c -arch=sm_90"),
    ("two_kernels", "two_kernels.cu", "-c -arch=sm_90 -Xptxas=-v"),
    ("two_kernels_linked", "two_kernels.cu", "-arch=sm_90 -rdc=true -res-usage"),
    ("wrong_side", "wrong_side.cu", "-c -arch=sm_90"),
    ("host", "host.cu", "-c -arch=sm_90"),
    ("spilling", "spilling.cu", "-c -arch=sm_90 -Xptxas=-v,-warn-spills,-Werror"),
    ("spilling_warned", "spilling.cu", "-c -arch=sm_90 -Xptxas=-warn-spills,-warn-lmem-usage"),
    ("old_arch", "two_kernels.cu", "-c -arch=sm_20"),
    ("no_such_flag", "two_kernels.cu", "-c -arch=sm_90 --frobnicate"),
)
HIPCC = (("badarch_clang15", "waves.hip", "-c --offload-arch=gfx950"),)


def captured(compiler: str, source: Path, arguments: str) -> str:
    """Return what a compiler writes to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(source, folder)
        env = {**os.environ, "LC_ALL": "C", "HIP_PLATFORM": "amd"}
        command = [compiler, *arguments.split(), "-o", "made", source.name]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False).stderr


def main() -> None:
    """Capture all."""
    for compiler, folder, rows in (("nvcc", "nvcc", NVCC), ("hipcc", "hip", HIPCC)):
        path = shutil.which(compiler)
        if path is None:
            sys.stderr.write(f"{compiler} is not here\n")
            continue
        for name, source, arguments in rows:
            text = captured(path, HERE / folder / source, arguments)
            (HERE / folder / f"{name}.stderr").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
