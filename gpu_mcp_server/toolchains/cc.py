"""C and C++ for the processor: gcc, g++, clang, clang++."""

from collections.abc import Sequence

from gpu_mcp_server.models.build import Language
from gpu_mcp_server.toolchains.base import OUTPUT, CompilePlan, Toolchain, source_name
from gpu_mcp_server.toolchains.flags import checked_cc_flags, libraries

STANDARDS = {"c": "-std=gnu17", "cpp": "-std=gnu++20"}


def plan(
    source: str, toolchain: Toolchain, flags: Sequence[str] = (), *, language: Language = "c", name: str = "kernel"
) -> CompilePlan:
    """Plan the build of one translation unit into a shared library.

    Optimised for the processor that compiles (`-march=native`): a cached result holds for that processor only.
    Symbols that nothing defines are errors here (`-z defs`), not first when the library is loaded.

    Raises:
        BadRequest: If a flag is not allowed.
    """
    given = checked_cc_flags(flags)
    file = source_name(name, language)
    defaults = ["-shared", "-fPIC", "-Wl,-z,defs", "-fdiagnostics-color=never"]
    if not any(f.startswith("-O") for f in given):
        defaults.append("-O3")
    if not any(f.startswith(("-march=", "-mcpu=")) for f in given):
        defaults.append("-march=native")
    if not any(f.startswith("-std=") for f in given):
        defaults.append(STANDARDS[language])
    if toolchain.name.startswith("g") and "-fno-openmp" not in given:
        defaults.append("-fopenmp")
    late = libraries(given)
    argv = [toolchain.path, *defaults, *(f for f in given if f not in late), "-o", OUTPUT, file, *late]
    if "-lm" not in late:
        argv.append("-lm")
    # Without LC_ALL, messages come with curly quotes, or in the person's language.
    return CompilePlan(tuple(argv), {file: source}, {"LC_ALL": "C"}, roots=toolchain.roots)
