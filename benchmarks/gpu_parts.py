"""Parts of `on_gpu.py`: ordered steps with the seconds that each may take, measured on an H100 or estimated."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

LEAN = "-m pytest -v -p no:cacheprovider --timeout 400"
"""A line a test, so that what was ended shows what ran; no warning of a machine's own plugins can be of interest."""


@dataclass(frozen=True)
class Step:
    """One command. In braces: torch, out, case, device, shard (K/N), seconds, and what differs by device."""

    name: str
    seconds: int
    command: str
    needs: str = ""
    """File or folder below .case without which it is not run."""
    gpus: int = 0
    """GPUs without which it is not run; 0: a processor will do to try it."""
    cuda: str = ""
    """What {more} stands for on a GPU."""
    cpu: str = ""
    """And on a processor."""

    def argv(self, words: "dict[str, str]") -> "list[str]":
        """Return the command with its words put in."""
        more = self.cuda if words["device"] == "cuda" else self.cpu
        return [sys.executable, *shlex.split(self.command.format(**words, more=more))]

    def refusal(self, device: str, case: Path) -> str:
        """Say why it cannot run; empty if it can."""
        if self.gpus and device != "cuda":
            return "it needs a GPU"
        if self.needs and not (case / self.needs).exists():
            return f"there is no {case / self.needs}"
        return ""


def _tests(name: str, seconds: int, *paths: str, gpus: int = 0) -> Step:
    return Step(name, seconds, f"{LEAN} --junit-xml {{out}}/{name}.xml {' '.join(paths)}", gpus=gpus)


CHANGED = (
    "guard_overrun_cuda side_stream_cuda batch_ahead_cuda thread_after_cuda host_callback_cuda first_gate_cuda "
    "busy_gpu_cuda plain_cuda own_stream_joined_cuda"
)
"""A short list of `cheats`: one for each kind of check, and two honest ones."""
JUDGE = "benchmarks/judge"
PYTHON = "--judge-python {torch}"

PARTS: "dict[str, tuple[Step, ...]]" = {
    "verdicts": (
        Step("changed_cheats", 130, f"{JUDGE}/cheats.py --device {{device}} --json {{out}}/cheats.jsonl "
             "--seconds {seconds} {more}", cuda=CHANGED, cpu="static_scratch judge_patched plain"),
        Step("seconds", 150, f"{JUDGE}/verdict_seconds.py --device {{device}} --times {{more}} --seconds {{seconds}} "
             f"{PYTHON} --json {{out}}/seconds.json", cuda="3", cpu="1"),
        Step("clock", 150, f"{JUDGE}/clock.py --json {{out}}/clock.json", gpus=1),
    ),
    "tests": (
        _tests("judge", 300, "tests/real/test_judge_cuda.py", "tests/real/test_judge_time_cuda.py",
               "tests/real/test_machine_cuda.py", "tests/real/test_gpu.py"),
        _tests("python", 240, "tests/real/test_python_cuda.py", "tests/real/test_models_cuda.py",
               "tests/real/test_judge_kinds_cuda.py"),
    ),
    "cheats": (
        Step("cheats", 540, f"{JUDGE}/cheats.py --device {{device}} --part {{shard}} --json {{out}}/cheats.jsonl "
             "--seconds {seconds}"),
    ),
    "honest": (
        Step("honest", 240, f"{JUDGE}/honest_kernels.py --part {{shard}} --json {{out}}/honest.jsonl {PYTHON} "
             "--seconds {seconds}", gpus=1),
    ),
    "ablation": (
        Step("ablation", 540, f"{JUDGE}/check_ablation.py --device {{device}} --part {{shard}} "
             "--json {out}/ablation.json --table {out}/ablation.md --seconds {seconds}"),
    ),
    "queue": (
        Step("verdicts_an_hour", 270, f"benchmarks/team/verdicts.py {{more}} {PYTHON} --markdown {{out}}/verdicts.md",
             cuda="--language triton --agents 1,4,16 --seconds 40", cpu="--language c --agents 1,4 --seconds 10"),
        _tests("turns", 120, "tests/real/test_gpu.py", "tests/real/test_machine_cuda.py", "-k",
               "'holder or told or leased'"),
    ),
    "compare": (
        Step("planted", 540, f"{JUDGE}/planted_slowdowns.py --device {{device}} {PYTHON} --deadline-s {{seconds}} "
             "--json {out}/planted.json {more}", cpu="--planted 1 --null 1"),
    ),
    "nccl2": (
        Step("programs", 300, "benchmarks/nccl/ranks.py 2 --parts programs,faults --out {out} --budget-s {seconds} "
             "{more}", cpu="--until static"),
        _tests("tests", 180, "tests/real/test_nccl_gpu.py", "tests/real/test_rank_hosts.py", gpus=2),
        Step("times", 100, "benchmarks/nccl/ranks.py 2 --parts measure --out {out}/measure --budget-s {seconds}",
             gpus=2),
    ),
    "nccl4": (
        Step("programs", 420, "benchmarks/nccl/ranks.py 4 --each 2 --parts programs,faults --out {out} "
             "--budget-s {seconds} {more}", cpu="--until static"),
        Step("more", 150, "benchmarks/nccl/ranks.py 4 --parts more,kernels --out {out}/more --budget-s {seconds} "
             "{more}", cpu="--until static"),
    ),
    "program": (
        Step("in_place", 360, "benchmarks/programs/in_place.py --device {device} --part {shard} "
             f"{PYTHON} --json {{out}}/in_place.json"),
    ),
    "languages": (
        Step("launchers", 240, "benchmarks/languages/launchers.py --device {device} --json {out}/launchers.json"),
        Step("compilers", 120, "benchmarks/toolchains/languages.py"),
    ),
    "suites": (
        Step("import", 160, "benchmarks/suites/import_suites.py {case}/suites --out {out}/import.json --task-s 40 "
             "{more}", needs="suites", cpu="--max-bytes 20000000"),
        Step("answers", 30, "benchmarks/suites/make_answers.py {case}/suites {out}/answers --tasks 14", needs="suites"),
        Step("judged", 310, "-m gpu_mcp_server recipe suite folder {case}/suites --candidates {out}/answers --json "
             "{more}", needs="suites", cpu="--max-bytes 20000000 --tier correctness"),
    ),
    "kernelbench": (
        Step("kernelbench", 500, f"{JUDGE}/kernelbench.py --kernelbench {{case}}/kernelbench --json "
             "{out}/kernelbench.json --problems 1,19 --languages cuda,triton --deadline-s {seconds}",
             needs="kernelbench", gpus=1),
    ),
    "public": (
        Step("candidates", 500, f"{JUDGE}/public_candidates.py {{case}}/candidates.jsonl --judge-only "
             f"{PYTHON} --device {{device}} --ids {{more}} --part {{shard}} --json {{out}}/candidates.jsonl "
             "--table {out}/candidates.md --at-once 6 --shard-seconds {seconds}",
             needs="candidates.jsonl", cuda="all", cpu="drawn:1"),
    ),
    "repeats": (
        Step("gated", 500, f"{JUDGE}/gated_repeats.py {{case}}/candidates.jsonl --ids drawn:15 {PYTHON} "
             "--json {out}/gated.jsonl --shard-seconds {seconds}", needs="candidates.jsonl", gpus=1),
    ),
    "profilers": (
        Step("ceilings", 30, "gpu_mcp_server/workers/measure_ceilings.py"),
        Step("tools", 200, "benchmarks/toolchains/profiling.py --into {out}/profiling", gpus=1),
        _tests("tests", 200, "tests/real/test_profiling.py", "tests/real/test_seccomp_gpu.py"),
    ),
}  # fmt: skip
"""Each part by its name. A program that has its own limit is told {seconds}, a little less than the step's."""
