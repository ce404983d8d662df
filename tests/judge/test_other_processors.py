"""The judge's C is C for aarch64 too: a cross compiler takes it without a warning. Nothing of it has run there."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.judge_package import JUDGE

COMPILER = "aarch64-linux-gnu-gcc"
AARCH64 = 183
"""EM_AARCH64 of elf.h."""


@pytest.mark.skipif(not shutil.which(COMPILER), reason=f"no {COMPILER}: apt-get install gcc-aarch64-linux-gnu")
@pytest.mark.parametrize("source", sorted(JUDGE.rglob("*.c")), ids=lambda path: path.name)
def test_the_judges_c_compiles_for_aarch64(tmp_path: Path, source: Path):
    library = tmp_path / "library.so"
    options = ["-O3", "-fopenmp", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-z,defs", "-lm"]
    subprocess.run([COMPILER, source, "-o", library, *options], check=True)

    assert struct.unpack_from("<H", library.read_bytes(), 18) == (AARCH64,)
