"""Writes the listing of a binary: SASS by nvdisasm or cuobjdump, PTX by cuobjdump, AMDGCN by llvm-objdump."""

import glob
import os
import subprocess
import sys
from typing import List

CUBIN_MACHINE = b"\xbe\x00"
LISTING = "listing.txt"


def run(out: int, *argv: str) -> int:
    """Run a program with its output in a file, and return its exit status."""
    return subprocess.run(argv, stdout=out, stdin=subprocess.DEVNULL).returncode


def main(arguments: List[str]) -> None:
    """Disassemble.

    Args:
        arguments: View (sass, ptx, amdgcn), cuobjdump, nvdisasm, llvm-objdump (empty where there is none), files.
    """
    view, cuobjdump, nvdisasm, objdump, files = arguments[0], arguments[1], arguments[2], arguments[3], arguments[4:]
    out = os.open(LISTING, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    code = 0
    for file in files:
        if view == "amdgcn":
            code |= run(out, objdump, "-d", "-l", "--no-show-raw-insn", "--no-leading-addr", file)
        elif view == "ptx":
            code |= run(out, cuobjdump, "-ptx", file)
        elif not nvdisasm:
            code |= run(out, cuobjdump, "-sass", file)
        else:
            with open(file, "rb") as head:
                is_cubin = head.read(20)[18:20] == CUBIN_MACHINE
            if not is_cubin:
                subprocess.run([cuobjdump, "-xelf", "all", file], stdout=subprocess.DEVNULL)
            for cubin in [file] if is_cubin else sorted(glob.glob("*.cubin")):
                code |= run(out, nvdisasm, "-c", "-g", cubin)
    sys.exit(1 if code else 0)
