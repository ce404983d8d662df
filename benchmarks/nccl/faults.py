"""Planted faults against static rules: what each is caught by; clean programs: what alarms they raise.

`python benchmarks/nccl/faults.py [FOLDER ...]` also takes folders of programs that are taken to be right, such as a
checkout of NVIDIA/nccl's examples; they are only read.
"""

import sys
import time
from pathlib import Path

from gpu_mcp_server.nccl.checks import rules
from gpu_mcp_server.nccl.program_model.program import ProgramModel

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "nccl"
SOURCES = ("*.cu", "*.cc", "*.cpp", "*.cuh")
STYLES = (("lsa", "gin"), ("pull", "puts"), ("deal", "mail"), ("parcel", "relay"))
"""How the names of mutations begin, of one author's style each."""
sys.path.insert(0, str(ROOT))
from tests.nccl.mutations import mutated  # noqa: E402 - found from the root only


def errors(path: Path) -> list[str]:
    """Return the rules that a file breaks."""
    return errors_of(path.name, path.read_text("utf-8", "replace"))


def errors_of(name: str, text: str) -> list[str]:
    """Return the rules that a text breaks."""
    program = ProgramModel.read({name: text}, name)
    return sorted({f.rule for f in rules.findings(program) if f.severity == "error"})


def main(folders: list[str]) -> None:
    print("| planted fault | caught by |\n| --- | --- |")
    faults = sorted((PROGRAMS / "faults").glob("*.cu"))
    caught = 0
    for path in faults:
        found = errors(path)
        caught += bool(found)
        print(f"| {path.stem.replace('_', ' ')} | {', '.join(found) or '**nothing**'} |")
    print(f"\n{caught} of {len(faults)} caught.\n")
    print("| mutation | caught by |\n| --- | --- |")
    caught, mutations = 0, mutated()
    for name, text in mutations.items():
        found = errors_of("main.cu", text)
        caught += bool(found)
        print(f"| {name} | {', '.join(found) or '**nothing**'} |")
    print(f"\n{caught} of {len(mutations)} mutations caught.\n")
    print("| style | mutations | caught |\n| --- | --- | --- |")
    for style in STYLES:
        own = [errors_of("main.cu", text) for name, text in mutations.items() if name.startswith(style)]
        print(f"| {' and '.join(style)} | {len(own)} | {sum(map(bool, own))} |")
    print()
    print("| taken to be right | files | alarms | seconds |\n| --- | --- | --- | --- |")
    for folder in [PROGRAMS / "clean", PROGRAMS / "programs", *map(Path, folders)]:
        paths = sorted(p for pattern in SOURCES for p in folder.rglob(pattern))
        began = time.monotonic()
        alarms = {p.name: found for p in paths if (found := errors(p))}
        print(f"| {folder.name} | {len(paths)} | {alarms or 0} | {time.monotonic() - began:.1f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
