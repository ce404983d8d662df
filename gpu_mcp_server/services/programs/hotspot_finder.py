"""Runs a user's Python program under torch's profiler and ranks operators by time."""

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.profile import HotspotOptions, HotspotReport
from gpu_mcp_server.package_files import WORKERS
from gpu_mcp_server.profilers.hotspots import (
    MissingTorch,
    RecordedProgram,
    parse_recording,
    rank_hotspots,
    rank_modules,
    read_second_run,
)
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.hosts.device_specs import spec_of
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.command_checks import NOT_FOUND
from gpu_mcp_server.services.jobs.job_runner import FinishedJob
from gpu_mcp_server.services.jobs.job_table import JobRow
from gpu_mcp_server.services.jobs.output_text import shown_lines
from gpu_mcp_server.services.profiles.profile_targets import FOLDER as OURS
from gpu_mcp_server.services.profiles.profile_targets import PYTHON, Targets
from gpu_mcp_server.services.profiles.tool_jobs import FinishedToolJob, ToolJob, ToolJobs
from gpu_mcp_server.services.programs.overlay_builder import FOLDER as OVERLAY
from gpu_mcp_server.services.programs.overlay_builder import PLAN
from gpu_mcp_server.time_format import format_duration

PURPOSE = "hotspots"
FOLDER = f"{OURS}/hotspots"
ABOUT, WRITTEN, COLLECTED = f"{FOLDER}/about.json", f"{FOLDER}/recording.json", f"{FOLDER}/out-0.json"
WRITTEN_SECOND, COLLECTED_SECOND = f"{FOLDER}/second.json", f"{FOLDER}/out-1.json"
"""The second run's: collected in the order of names."""
NO_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|No address associated with hostname"
    r"|Network is unreachable|couldn't connect to|Max retries exceeded"
)
"""Source: messages of glibc's getaddrinfo, of errno ENETUNREACH, of huggingface_hub and of requests."""
NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
NO_DRIVER = re.compile(r"\b0 active drivers\b")
"""Source: triton/runtime/driver.py of Triton 3."""
NOT_THERE = re.compile(r"^(\S*python\S*): No such file or directory$", re.MULTILINE)
"""Line of run_profiler.py about a command that cannot be started."""
VALUED, PROGRAM, CUT = "WX", "mc", "EI"
"""Letters of options: with a value, naming the program to run, ignoring PYTHONPATH."""
COMPILING_SHARE = 0.01
"""Least part of the recorded time that is worth a note."""
SLOW_EVENTS = 100_000
"""Operators and modules a second. Above, the profiler's own time is a tenth or more: it took 0.6 to 1.3 us for each."""


class HotspotFinder:
    """Programs in, hot spots out."""

    def __init__(self, tools: ToolJobs, targets: Targets) -> None:
        self._tools, self._targets = tools, targets

    async def find(
        self,
        command: Sequence[str],
        workspace_id: str | None = None,
        host: str | None = None,
        options: HotspotOptions | None = None,
        *,
        progress: Progress | None = None,
        wait_s: float | None = None,
    ) -> HotspotReport:
        """Run a program, record a part of it, and rank what took its time.

        Args:
            command: A Python interpreter, its options, and a script, -m or -c.
            workspace_id: The program's files.
            host: Where; the default host unless given. A GPU is leased where the host has one.
            options: Which part is recorded.
            progress: Told what happens meanwhile.
            wait_s: Seconds to wait for the end; options.wait_s unless given.

        Raises:
            BadRequest: If the command is no Python program.
            NotFound: If a handle names nothing.
        """
        options = options or HotspotOptions()
        python, rest = split_command(command)
        target = await self._targets.program(command, workspace_id, host)
        script = f"{OURS}/hotspot_trace.py"
        part = options.model_dump(include={"warm_s", "record_s", "steps"})
        argv = [*python, script, json.dumps(part), WRITTEN, *rest]
        again = [*python, script, json.dumps({**part, "beside": WRITTEN}), WRITTEN_SECOND, *rest]
        modules = ("hotspot_trace.py", "python_profile.py")
        has_kernel = any(file.path == PLAN for file in target.files)
        job = ToolJob(
            kind="run",
            purpose=PURPOSE,
            worker="run_profiler",
            plan={
                "argv": argv,
                "folder": FOLDER,
                "collect": [WRITTEN, WRITTEN_SECOND],
                "second": again if target.probe.gpus else [],
                "limit_s": options.timeout_s,
            },
            outputs=(ABOUT, COLLECTED, COLLECTED_SECOND),
            limit_s=options.timeout_s,
            env={"PYTHONPATH": OVERLAY} if has_kernel else {},
            tool=None,
            extra_files={f"{OURS}/{name}": (WORKERS / name).read_bytes() for name in modules},
            context={
                "options": options.model_dump(),
                "torch_python": torch_python(target.probe),
                "has_kernel": has_kernel,
                "ignores_environment": ignores_environment(python),
            },
            gpus=min(1, len(target.probe.gpus)),
        )
        job_id, attempt_id = await self._tools.start(job, target)
        if progress is not None:
            await progress(f"program under torch's profiler, job {job_id} on {target.host}")
        done = await self._tools.wait(job_id, target.host, options.wait_s if wait_s is None else wait_s, progress)
        if done is None:
            return HotspotReport(status="running", host=target.host, job_id=job_id, attempt_id=attempt_id)
        return await self.finish(done, await self._tools.row(job_id))

    async def finish_and_describe(self, done: FinishedJob, row: JobRow) -> str:
        """Return the report of a job that a later call asks about."""
        return (await self.finish(done, row)).summary()

    async def finish(self, done: FinishedJob, row: JobRow) -> HotspotReport:
        """Turn a finished job into its report; may be done twice."""
        ended = await self._tools.fetch_results(done, row, ABOUT)
        found = parse_recording(ended.files.get(COLLECTED, b""))
        report = HotspotReport(
            status="ok",
            host=done.host,
            job_id=row.job_id,
            attempt_id=row.attempt_id,
            seconds=ended.seconds,
            sandbox=done.record.level,
        )
        if isinstance(found, RecordedProgram):
            report = report.model_copy(update=_ranked(found, HotspotOptions(**row.context["options"]), ended))
            if not found.operators and ended.about.get("code"):
                report = report.model_copy(update={"status": "failed", "output": "\n".join(shown_lines(ended.output))})
        else:
            report = report.model_copy(update=_not_recorded(found, ended, row))
        evidence = {"hotspots": [[h.name, h.share] for h in report.hotspots[:5]], "profiler": report.profiler}
        reason = report.summary().partition("\n")[0][:300]
        await self._tools.experience.finish(
            row.attempt_id or "", status=report.status, reason=reason, evidence=evidence, median_us=None
        )
        return report


def split_command(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the interpreter with its options, and what it runs.

    Raises:
        BadRequest: If it is no Python interpreter with a script, -m or -c.
    """
    hint = 'Give an interpreter and a script: ["python3", "train.py"]; profile_kernel times the kernels of others.'
    if command and command[0].rpartition("/")[2] == "env":
        hint = "Begin with the interpreter; set variables in the program, before it imports torch."
    if not command or not PYTHON.match(command[0].rpartition("/")[2]):
        raise BadRequest(
            "The command is no Python program: only programs that use torch can be profiled here.", hint=hint
        )
    python, rest = [command[0]], [*command[1:]]
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-m", "-c"):
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            python += [word, rest.pop(0)] if word == "--check-hash-based-pycs" and rest else [word]
            continue
        at = next((i for i, letter in enumerate(word) if letter in VALUED + PROGRAM), None)
        if at is None:
            python.append(word)
        elif word[at] in VALUED:
            python += [word, *([rest.pop(0)] if at == len(word) - 1 and rest else [])]
        else:  # -um module, -mmodule
            python += [word[:at]] if at > 1 else []
            rest = [f"-{word[at]}", *([word[at + 1 :]] if word[at + 1 :] else []), *rest]
    if not rest or rest[0] == "-" or (rest[0] in ("-m", "-c") and len(rest) < 2):
        raise BadRequest("The command names an interpreter, but no script, -m or -c.", hint=hint)
    return python, rest


def ignores_environment(python: Sequence[str]) -> bool:
    """Say whether an interpreter's options leave PYTHONPATH out."""
    options = [word for before, word in itertools.pairwise(python) if before[-1:] not in VALUED]
    letters = "".join(re.split("[WX]", word)[0] for word in options if not word.startswith("--"))
    return any(letter in CUT for letter in letters)


def _ranked(found: RecordedProgram, options: HotspotOptions, ended: FinishedToolJob) -> dict[str, Any]:
    second, missing = read_second_run(found, ended.about, ended.files.get(COLLECTED_SECOND, b""))
    spots, left_out = rank_hotspots(found, spec_of(found.device) if found.device else None, second)
    wall_us = found.wall_s * 1e6
    return {
        "device": found.device if found.on_gpu else None,
        "profiler": f"torch {found.torch}",
        "wall_s": found.wall_s,
        "steps": found.steps or None,
        "device_busy": found.device_busy if found.on_gpu else None,
        "second": second,
        "second_missing": missing,
        "elsewhere": None if found.on_gpu else max(0.0, 1 - found.covered_us / wall_us),
        "hotspots": spots,
        "operators": len(spots) + len(left_out),
        "operators_us": sum(h.total_us for h in (*spots, *left_out)),
        "modules": rank_modules(found),
        "notes": _notes(found, options, ended),
    }


def _notes(found: RecordedProgram, options: HotspotOptions, ended: FinishedToolJob) -> list[str]:
    notes: list[str] = []
    if ended.row.context.get("has_kernel"):
        notes.append(
            "the kernels that apply_attempt put in were off: the interpreter's options -E and -I ignore PYTHONPATH"
            if ended.row.context.get("ignores_environment")
            else f"the kernels that apply_attempt put in were switched on: PYTHONPATH={OVERLAY}"
        )
    if code := ended.about.get("code"):
        notes.append(f"the program ended with {code}; times until then are shown. {last_words(ended)}")
    if found.wall_s >= options.record_s:
        asked = f" ({found.steps} of {options.steps} steps were done: raise record_s)" if options.steps else ""
        notes.append(f"the program was ended after record_s, {options.record_s:g} s; the rest was not run{asked}")
    elif options.steps and found.steps >= options.steps:
        notes.append(f"the program was ended after {found.steps} steps; the rest was not run")
    if found.compiling_us >= COMPILING_SHARE * found.wall_s * 1e6:
        took = format_duration(found.compiling_us / 1e6)
        notes.append(f"torch.compile was compiling for {took} of it, in no row above: leave that out with warm_s")
    if found.compiled:
        notes.append("torch.compile was used: each compiled region counts as one operator; modules inside are unknown")
    if found.forks:
        notes.append(f"{found.forks} child processes (workers that load data) were not recorded")
    if found.device and not found.on_gpu and found.events_left_out:
        notes.append(f"use of {found.device} is unknown: the recorded part has no kernel; raise record_s")
    elif found.device and not found.on_gpu:
        notes.append(f"the program used no GPU, though {found.device} was there")
    if found.events_left_out:
        notes.append("the recording is longer than 2,000,000 events; the others are left out: lower record_s")
    if not found.on_gpu and found.events > SLOW_EVENTS * found.wall_s:
        notes.append(
            "operators are very short: the profiler's own time, about 1 us each, is part of theirs; large ones may "
            "have more of the whole than is said here"
        )
    if not found.operators and not ended.about.get("code"):
        notes.append("no operator of torch ran in the recorded time: lower warm_s or raise record_s")
    return notes + without_module(ended) + without_network(ended) + without_driver(ended.output)


def _not_recorded(found: MissingTorch | None, ended: FinishedToolJob, row: JobRow) -> dict[str, Any]:
    if found is not None:
        return {
            "status": "failed",
            "notes": [without_torch(found.python, found.missing, row.context.get("torch_python"))],
        }
    status = ended.status if ended.status != "ok" else "failed"
    notes = [n for n in (ended.done.record.note,) if n]
    if status == "timeout":
        notes.append("nothing was recorded before the limit: lower warm_s, or raise timeout_s")
    notes += without_interpreter(ended) + without_network(ended) + without_driver(ended.output)
    return {"status": status, "notes": notes, "output": "\n".join(shown_lines(ended.output))}


def without_interpreter(ended: FinishedToolJob) -> list[str]:
    """Return advice for a command whose interpreter is not in the sandbox; nothing for any other."""
    found = NOT_THERE.search(ended.output) if ended.about.get("code") == NOT_FOUND else None
    if found is None:
        return []
    return [
        f"there is no {found[1]} in the sandbox, which shows system folders, those of the host's judge_python and "
        "`roots`: begin the command with judge_python's path, or set it to this one; `gpu-mcp-server doctor` says "
        "whether it starts"
    ]


def without_torch(python: str, missing: str, known: str | None) -> str:
    """Return advice for an interpreter without torch; `known` is the judge's interpreter, where that has it."""
    if known:
        return f"{python} cannot import torch ({missing}); the host's judge_python can: begin the command with {known}"
    return (
        f"{python} cannot import torch ({missing}): give the interpreter that has it as command's "
        "first word, and name it as judge_python of the host so that jobs may read its folder"
    )


def torch_python(probe: HostProbe) -> str | None:
    """Return the path of a host's judge_python, if that has torch."""
    return probe.judge.path if probe.judge and probe.judge.torch else None


def without_network(ended: FinishedToolJob) -> list[str]:
    """Return advice for a program that failed because it wanted the network; nothing for any other."""
    failed = bool(ended.about.get("code")) or ended.status != "ok"
    if not failed or NO_NETWORK.search(ended.output) is None:
        return []
    return [
        "the program wanted the network, and a job has none: put the files that it loads into the workspace "
        "(write_files, gpu-mcp-server push) and have it read them there"
    ]


def without_module(ended: FinishedToolJob) -> list[str]:
    """Return advice for a program that ended as it found no module; nothing for any other."""
    missing = NO_MODULE.findall(ended.output) if ended.about.get("code") else []
    if not missing:
        return []
    return [
        f"{missing[-1]} is neither beside the script nor installed for this Python: install it there; if it lies at "
        'the workspace\'s top, start the script as a module: ["python3", "-m", "folder.script"]'
    ]


def without_driver(output: str) -> list[str]:
    """Return advice for a program whose Triton kernels found no GPU; nothing for any other."""
    if NO_DRIVER.search(output) is None:
        return []
    return [
        "Triton found no GPU; it interprets kernels on a processor where the program sets "
        "os.environ['TRITON_INTERPRET'] = '1' before it imports triton"
    ]


def last_words(ended: FinishedToolJob) -> str:
    """Return the last two lines that a program printed, of which errors come last."""
    lines = [line for line in shown_lines(ended.output) if line.strip(" ^~")]  # marks below a line of a traceback
    return "; ".join(line.strip() for line in lines[-2:])[:400]
