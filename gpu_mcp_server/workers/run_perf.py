"""Times a program on a processor, and has perf count and sample it where the host lets it.

The program itself may say which part of it matters: it writes the time of each call into the file that `TIMES` names,
and switches perf's counters on and off by the pipe that `PERF_CONTROL` names. Samples are read here, beside the
program's own files: addr2line gives their lines.

Source: perf-stat(1), "CSV FORMAT" and `--control`; perf-script(1); linux/perf_event.h (PERF_RECORD_MMAP2); elf(5).
"""

import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from typing import Any, Dict, List, Optional, Tuple

EVENTS = ("task-clock", "cycles", "instructions", "cache-misses", "branches", "branch-misses", "page-faults")
USER = ":u"
"""The program's own part alone: a login may count no more of it where perf_event_paranoid is 2."""
COUNTED = re.compile(r"^(?P<count>[^,]{0,40}),[^,]{0,20},(?P<event>[\w-]{1,40})(?::u)?,")
SAMPLE = re.compile(r"^\s{1,60}(?P<ip>[0-9a-f]{1,16}) (?P<symbol>.{1,20000}) \((?P<file>[^()]{1,400})\)$")
MAPPED = re.compile(
    r"PERF_RECORD_MMAP2 .{1,60}?: \[0x(?P<start>[0-9a-f]{1,16})\(0x(?P<size>[0-9a-f]{1,16})\)"
    r" @ (?:0x)?(?P<offset>[0-9a-f]{1,16}) .{1,80}\]: \S{4} (?P<file>.{1,400})$"
)
REGION_HZ, PROGRAM_HZ = 997, 199
"""Samples a second of each thread; odd, so that they keep no step with a loop."""
MOST_SAMPLES, MOST_LINES, MOST_FUNCTIONS, MOST_ADDRESSES = 500000, 40, 20, 5000
LINE_BYTES, NAME = 1 << 15, 300
"""Of a line of perf's, and characters of a function's name in it that are kept: templates have thousands."""
KEPT = 1 << 16
"""Bytes of what the program printed."""


def run(argv: List[str], limit_s: float, log: str, **env: str) -> Dict[str, Any]:
    """Run a command with its output in a file; one that is over its time is killed with all that it started."""
    began, used = time.monotonic(), _used_s()
    timed_out = False
    with open(log, "wb") as out:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=dict(os.environ, **env),
            )
        except OSError as error:
            return {"code": 127, "seconds": 0.0, "error": "%s: %s" % (argv[0], error.strerror)}
        try:
            process.wait(max(limit_s, 0.1))
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if os.path.getsize(log) > KEPT:
        os.truncate(log, KEPT)
    took = time.monotonic() - began
    return {"code": process.returncode, "seconds": took, "cpu_s": _used_s() - used, "timed_out": timed_out}


def _used_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def words_of(path: str) -> str:
    """Return the beginning of a file as text; nothing where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as text:
            return text.read(4000)
    except OSError:
        return ""


def find_perf(folder: str) -> Tuple[str, Dict[str, Any]]:
    """Return perf, and what an administrator needs to know where it does not work; then its path is empty."""
    path = shutil.which("perf")
    found: Dict[str, Any] = {"paranoid": words_of("/proc/sys/kernel/perf_event_paranoid").strip()}
    if path is None:
        found["why"] = "missing"
        return "", found
    log = folder + "/perf.log"
    tried = run([path, "stat", "-x,", "-e", "task-clock" + USER, "true"], 20.0, log)
    if tried["code"]:
        lines = [line.strip() for line in words_of(log).splitlines() if line.strip(" :\n")]
        found["why"], found["said"] = "refused", " ".join(lines[:3])[:300]
        return "", found
    run([path, "--version"], 20.0, log)
    found["version"] = words_of(log).strip()[:80]
    return path, found


def counts_in(text: str) -> Dict[str, float]:
    """Return counts by event from perf-stat's CSV; one that was not counted is absent."""
    found: Dict[str, float] = {}
    for line in text.splitlines():
        match = COUNTED.match(line)
        try:
            if match and match.group("event") in EVENTS:
                found[match.group("event")] = float(match.group("count"))
        except ValueError:  # <not supported>, <not counted>
            pass
    return found


def sample_in(line: str) -> Optional[Tuple[int, str, str]]:
    """Return address, function and file of a line of perf-script; None of any other line."""
    match = SAMPLE.match(line)
    return (int(match.group("ip"), 16), match.group("symbol")[:NAME], match.group("file")) if match else None


class Counting:
    """perf around one command.

    Args:
        perf: Its path.
        plan: As `main` got it.
    """

    def __init__(self, perf: str, plan: Dict[str, Any]) -> None:
        self._perf, self._plan, self._folder = perf, plan, plan["folder"]
        self._pipes = [os.path.abspath("%s/%s" % (self._folder, name)) for name in ("control", "answer")]
        if plan["regions"]:
            for pipe in self._pipes:
                os.mkfifo(pipe)

    def _run(self, options: List[str], limit_s: float) -> Dict[str, Any]:
        env = {"REGION_S": "1.0"}
        if self._plan["regions"]:
            options = [*options, "--control", "fifo:%s,%s" % tuple(self._pipes), "-D", "-1"]
            env.update(PERF_CONTROL=self._pipes[0], PERF_ANSWER=self._pipes[1])
        argv = [self._perf, *options, "--", *self._plan["command"]]
        return run(argv, limit_s, self._folder + "/perf.log", **env)

    def count_events(self, limit_s: float) -> Dict[str, float]:
        """Return counts by event; one that the machine does not count is absent."""
        path = self._folder + "/stat.csv"
        self._run(["stat", "-x,", "-o", path, "-e", ",".join(e + USER for e in EVENTS)], limit_s)
        return counts_in(words_of(path))

    def sample_places(self, event: str, limit_s: float) -> Dict[str, Any]:
        """Return samples by function and by line, the most first."""
        path = self._folder + "/perf.data"
        hertz = REGION_HZ if self._plan["regions"] else PROGRAM_HZ
        self._run(["record", "-q", "-F", str(hertz), "-e", event + USER, "-o", path], limit_s)
        argv = [self._perf, "script", "-i", path, "-F", "ip,sym,dso", "--show-mmap-events"]
        functions: "Counter[Tuple[str, str]]" = Counter()
        places: "Counter[Tuple[int, str]]" = Counter()
        maps: List[Tuple[int, int, int, str]] = []
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as script:
            assert script.stdout is not None
            for number, raw in enumerate(script.stdout):
                line = raw[:LINE_BYTES].decode("utf-8", "replace").rstrip("\n")
                sample, mapped = sample_in(line), MAPPED.search(line[:1000])
                if sample:
                    ip, name, file = sample
                    functions[name, file] += 1
                    places[ip, file] += 1
                elif mapped:
                    numbers = [int(mapped.group(name), 16) for name in ("start", "size", "offset")]
                    maps.append((numbers[0], numbers[1], numbers[2], mapped.group("file")))
                if number > MOST_SAMPLES:
                    script.kill()
                    break
        return {
            "event": event,
            "samples": sum(functions.values()),
            "functions": [
                [name, os.path.basename(file), n] for (name, file), n in functions.most_common(MOST_FUNCTIONS)
            ],
            "lines": lines_of(places, maps),
        }


def lines_of(places: "Counter[Tuple[int, str]]", maps: List[Tuple[int, int, int, str]]) -> List[List[Any]]:
    """Return file, line and samples of what was compiled with `-g` here; nothing of the host's own libraries."""
    by_file: Dict[str, Dict[int, int]] = {}
    here = os.getcwd() + os.sep
    for (ip, file), count in places.most_common(MOST_ADDRESSES):
        if not file.startswith((here, "/tmp/")):
            continue
        start, offset = next(((s, o) for s, size, o, f in reversed(maps) if f == file and s <= ip < s + size), (0, 0))
        address = linked_address(file, ip - start + offset)
        if start and address is not None:
            own = by_file.setdefault(file, {})
            own[address] = own.get(address, 0) + count
    lines: "Counter[Tuple[str, int]]" = Counter()
    for file, addresses in by_file.items():
        asked = "".join("%x\n" % address for address in addresses)
        try:
            done = subprocess.run(
                ["addr2line", "-e", file], input=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                universal_newlines=True, timeout=60, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        for said, count in zip(done.stdout.splitlines(), addresses.values()):
            name, _, number = said.partition(" (")[0].rpartition(":")
            if number.isdigit() and int(number):
                lines[name[-300:], int(number)] += count
    return [[name, number, count] for (name, number), count in lines.most_common(MOST_LINES)]


def linked_address(path: str, offset: int) -> Optional[int]:
    """Return the address that a byte of an ELF file has for its linker; None if it is in no segment."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:5] != b"\x7fELF\x02":
                return None
            (table,) = struct.unpack_from("<Q", head, 32)
            size, count = struct.unpack_from("<HH", head, 54)
            file.seek(table)
            rows = file.read(size * count)
    except (OSError, struct.error):
        return None
    for n in range(len(rows) // size if size >= 56 else 0):
        kind, _, begins, address, _, length = struct.unpack_from("<IIQQQQ", rows, n * size)
        if kind == 1 and begins <= offset < begins + length:  # PT_LOAD
            return address + offset - begins
    return None


def main(arguments: List[str]) -> None:
    """Compile where told to, time, count, sample; write down what was seen.

    Args:
        arguments: One JSON document: `compile` (a command, or nothing), `command`, `regions` (whether the program
            times its own calls), `count` (whether perf is asked for), `limit_s` (of each run), `folder`.
    """
    plan = json.loads(arguments[0])
    folder, limit_s = plan["folder"], plan["limit_s"]
    os.makedirs(folder, exist_ok=True)
    about: Dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    code = 0
    if plan["compile"]:
        about["compiled"] = run(plan["compile"], limit_s, folder + "/compile.log")
        code = about["compiled"]["code"]
    if code == 0:
        times = os.path.abspath(folder + "/times.txt")
        about["timed"] = run(plan["command"], limit_s, folder + "/output.log", TIMES=times, REGION_S="0.3")
        code = about["timed"]["code"]
        sys.stdout.write(words_of(folder + "/output.log"))
    if code == 0 and plan["count"]:
        perf, about["perf"] = find_perf(folder)
        if perf:
            counting = Counting(perf, plan)
            about["counts"] = counting.count_events(limit_s)
            event = "cycles" if "cycles" in about["counts"] else "cpu-clock"
            about["sampled"] = counting.sample_places(event, limit_s)
    with open(folder + "/about.json", "w", encoding="utf-8") as out:
        json.dump(about, out)
    sys.exit(code if 0 <= code < 256 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])
