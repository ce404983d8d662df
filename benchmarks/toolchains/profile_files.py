"""Say what is read from profilers' files, each by itself, or why not: `python -m` this module FILE..."""

import sys
from collections import Counter
from pathlib import Path

from gpu_mcp_server.profilers import bottleneck, report_detection


def describe(path: Path) -> tuple[str, str]:
    """Return a word for what came of a file, and a line about it."""
    data = path.read_bytes()
    profiler, kernels = report_detection.read({path.name: data})
    if not kernels:
        unread = report_detection.describe_unread({path.name: data})
        return ("trace alone", "events of a trace") if not unread else ("not read", unread[0])
    timed = sum(k.time_us is not None for k in kernels)
    word = "all timed" if timed == len(kernels) else "some timed" if timed else "no time"
    advice = bottleneck.verdicts(kernels)[0].advice
    return word, f"{profiler}, {timed} of {len(kernels)} kernels with a time: {advice[0] if advice else 'no advice'}"


def main() -> None:
    """Print a row a file, and how many came to what."""
    found: Counter[str] = Counter()
    for name in sys.argv[1:]:
        word, line = describe(Path(name))
        found[word] += 1
        print(f"| {Path(name).name[-60:]} | {word} | {line[:170]} |")
    print(", ".join(f"{word} {count}" for word, count in found.most_common()))


if __name__ == "__main__":
    main()
