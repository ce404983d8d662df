"""Assembly of the processor from gcc and clang, and what they say of loops that became vectors, or did not.

Source: GCC 12 manual, "Developer Options" (`-fopt-info`), "Debugging Options" (`-g1`); clang 19, "Options to Emit
Optimization Reports" (`-Rpass`, `-Rpass-missed`, `-Rpass-analysis`).
"""

import re
from dataclasses import replace

from gpu_mcp_server.toolchains.base import OUTPUT, CompilePlan

ASSEMBLY = "kernel.s"
REPORT = "vectorization.txt"
MAX_LINES = 40
_LINKER = re.compile(r"-Wl,|-l|-L|-shared$")
_GCC = re.compile(
    r"^(?P<file>[^:\n]{1,300}):(?P<line>\d{1,9}):\d{1,9}: (?:optimized|missed):\s{1,20}(?P<words>[^\n]{1,400})$"
)
_CLANG = re.compile(
    r"^(?P<file>[^:\n]{1,300}):(?P<line>\d{1,9}):\d{1,9}: remark: (?P<words>[^\n]{1,400}?)"
    r"(?: \[-Rpass(?:|-missed|-analysis)=[\w-]+\])?$"
)
_TOLD = re.compile(r"vectorized|couldn't vectorize|not vectorized")


def assembly_plan(plan: CompilePlan, compiler: str) -> CompilePlan:
    """Return a plan of `cc` that stops at the assembly, with source lines, and reports on vectors.

    Args:
        plan: Of the library.
        compiler: gcc, g++, clang or clang++, as the host names it.
    """
    kept = (word for word in plan.argv if not _LINKER.match(word))
    if compiler.startswith("clang"):
        passes = "loop-vectorize|slp-vectorizer"
        more = [f"-Rpass={passes}", "-Rpass-missed=loop-vectorize", "-Rpass-analysis=loop-vectorize"]
    else:
        more = [f"-fopt-info-vec-optimized-missed={REPORT}"]
    argv = (*(ASSEMBLY if word == OUTPUT else word for word in kept), "-S", "-g1", *more)
    return replace(plan, argv=argv, output=ASSEMBLY, listings=(REPORT,))


def vectorization_report(said: str, file: str) -> list[str]:
    """Return a line for each loop of a file that became vectors or did not, with the reason, in the file's order.

    Never raises: what is not understood is left out.

    Args:
        said: What the compiler wrote.
        file: Name of the source; what is said of headers is left out.
    """
    found: dict[tuple[int, str], None] = {}
    for line in said.splitlines():
        match = _GCC.match(line[:1000]) or _CLANG.match(line[:1000])
        if match and match["file"].rpartition("/")[2] == file and _TOLD.search(match["words"]):
            words = re.sub(r"\s+", " ", match["words"]).strip()
            found.setdefault((int(match["line"]), words[:200]))
    return [f"{file}:{number}: {words}" for number, words in sorted(found)][:MAX_LINES]
