"""Parse captured compiler outputs, and count lines that say error and got lost.

`python benchmarks/toolchains/messages.py [FOLDER ...]`; without folders the captures of the tests. A line counts as an
error when it says so (`error`, `fatal`, `undefined reference`); it is lost when no message and no context holds it, and
it is none of those that only count errors or say that there were some.
"""

import re
import sys
from pathlib import Path

from gpu_mcp_server.toolchains import diagnostics, resources

DATA = Path(__file__).parents[2] / "tests" / "toolchains" / "data"
SAYS = re.compile(r"\b(?:error|fatal|catastrophic)\b\s*:|: (?:undefined reference|multiple definition)", re.IGNORECASE)
COUNTS = re.compile(
    r"^\d+ (?:catastrophic )?errors? |ld returned \d+ exit|assembly aborted|command failed with exit code"
    r"|compilation terminated"
)


def message_of(line: str) -> str:
    """Return what a line says after its severity, as the parsers would keep it."""
    said = re.split(r"(?:error|fatal|catastrophic error)(?: #\d+(?:-D)?)?\s*: ", line, maxsplit=1)[-1]
    said = re.sub(r" \[-W[^\]]+\]$| in '/tmp/[^']*'", "", said)
    return diagnostics.demangle_text(said).strip()[:200]


def row(path: Path) -> tuple[str, int, int, int, int, list[str]]:
    """Return name, error lines, errors, warnings, kernels, and lines that were lost."""
    text = path.read_text(encoding="utf-8", errors="replace")
    found = diagnostics.parse(text)
    kept = "\n".join([d.message for d in found] + [c for d in found for c in d.context])
    lines = [line.strip() for line in text.splitlines() if SAYS.search(line) and not COUNTS.search(line.strip())]
    lines = [re.sub(r"^.*?: (?=undefined reference|multiple definition)", "", line) for line in lines]
    lost = [line for line in lines if message_of(line) not in kept]
    kernels = len(resources.parse(text)) + len(resources.parse_amd(text, "gfx"))
    severities = [d.severity for d in found]
    return path.name, len(lines), severities.count("error"), severities.count("warning"), kernels, lost


def main() -> int:
    """Print the table; the exit status says whether a line was lost."""
    folders = [Path(f) for f in sys.argv[1:]] or [DATA / "nvcc", DATA / "hip"]
    print(f"{'output':32} {'error lines':>11} {'errors':>7} {'warnings':>9} {'kernels':>8}  lost")
    lost_at_all = 0
    for folder in folders:
        for path in sorted(folder.glob("*.stderr")):
            name, lines, errors, warnings, kernels, lost = row(path)
            lost_at_all += len(lost)
            print(f"{name:32} {lines:11} {errors:7} {warnings:9} {kernels:8}  {lost or 'none'}")
    return 1 if lost_at_all else 0


if __name__ == "__main__":
    sys.exit(main())
