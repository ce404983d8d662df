"""Compiles HIP by a clang that is newer than AMD's device libraries.

The libraries lack the one-line module that names the processor (`oclc_isa_version_942.bc`) for processors that came
after them. It is a constant, so it is made here, beside links to the others, and the compiler is told to look there.

Source: ROCm-Device-Libs, doc/OCML.md and oclc/: `__oclc_ISA_version` is major * 1000 + minor * 100 + stepping.
"""

import os
import sys

FOLDER = "/tmp/device-libs"


def isa_version(processor: str) -> int:
    """Return the number for a processor such as gfx90a: 9010, as its last digit is hexadecimal."""
    digits = processor[len("gfx") :]
    return int(digits[:-2]) * 1000 + int(digits[-2], 16) * 100 + int(digits[-1], 16)


def main(arguments: list[str]) -> None:
    """Complete the libraries and become the compiler.

    Args:
        arguments: Folder of the libraries, processor, compiler, its arguments.
    """
    import subprocess

    libraries, processor, compiler, rest = arguments[0], arguments[1], arguments[2], arguments[3:]
    os.makedirs(FOLDER, exist_ok=True)
    for name in os.listdir(libraries):
        os.symlink(os.path.join(libraries, name), os.path.join(FOLDER, name))
    module = os.path.join(FOLDER, "oclc_isa_version_%s.bc" % processor[len("gfx") :])
    if not os.path.exists(module):
        text = '__attribute__((visibility("protected"))) __constant const int __oclc_ISA_version = %d;\n'
        target = ["-x", "cl", "-cl-std=CL2.0", "-target", "amdgcn-amd-amdhsa", "-nogpulib", "-emit-llvm", "-c"]
        made = subprocess.run([compiler, *target, "-o", module, "-"], input=(text % isa_version(processor)).encode())
        if made.returncode:
            sys.exit(made.returncode)
    os.execv(compiler, [compiler, "--rocm-device-lib-path=" + FOLDER, *rest])
