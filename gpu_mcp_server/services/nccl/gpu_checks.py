"""The part of a verification that needs GPUs: builds under stress, runs, and what follows from what they print."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_mcp_server.models.nccl_check import NcclCheck, NcclCheckStatus
from gpu_mcp_server.nccl.checks import buffer_dumps, kernels, run_output
from gpu_mcp_server.nccl.checks.communication import sites_of
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.nccl.host_support import NcclHost
from gpu_mcp_server.services.nccl.rank_jobs import (
    DUMPS,
    FOUND_CODE,
    NcclJobs,
    NcclRunResult,
    Run,
)
from gpu_mcp_server.services.nccl.trial_programs import VerifiedProgram, blocking_is_safe, devices_of_a_process

MODES = "check,check,silent,time"
"""Of the differential program, in one communicator: two seeds, the negative control, times. A start costs seconds."""
CHECKED_CONTEXTS = 2
"""GPUs of one process that memcheck got through: it patches NCCL's kernels for one after another."""
SUMS = frozenset({"ncclAllReduce", "ncclReduceScatter", "ncclReduce"})
WORST_FIRST = ("failed", "passed", "noted", "skipped")
"""Of several parts of one check: a part that passed counts more than one that could not judge."""
SILENT = {"GMCP_SILENT": "1"}
STRESS = {"GMCP_STRESS": "1"}
SANITIZER = "compute-sanitizer"
MEMCHECK = (
    *("--tool", "memcheck", "--target-processes", "all", "--report-api-errors", "no"),
    *("--error-exitcode", str(FOUND_CODE), "--print-limit", "20"),
)
"""Without --report-api-errors no NCCL's own probing counts as 20 errors. initcheck is never used: it does not see what
peers write, and breaks such programs."""


class NcclGpuChecks:
    """Runs of one subject on one host."""

    def __init__(self, jobs: NcclJobs, host: NcclHost, subject: VerifiedProgram, progress: Progress | None) -> None:
        self._jobs, self._host, self._subject, self._progress = jobs, host, subject, progress
        self._kept: dict[str, NcclRunResult | None] = {}
        self._locks = {name: asyncio.Lock() for name in ("differential", "stress", "original")}

    async def plain(self) -> list[NcclCheck]:
        """Run the program as it is: it ends well, says PASS and not FAIL, and communicates on the device."""
        ran = await self._run("plain")
        if ran is None:
            return [_check("run", "skipped", "it was not built")]
        return [await self._plain(ran), self._counters(ran)]

    async def _plain(self, ran: NcclRunResult) -> NcclCheck:
        if not ran.ok:
            hangs = ran.status == "timeout"
            said = await self._hang(ran) if hangs else failure(ran, self._subject.program)
            again = await self._diagnosis() if ran.status == "failed" else ""
            return _check("run", "failed", said + again)
        if run_output.SAYS_FAIL.search(ran.text):
            text = "it ended with 0 and printed that its own verification failed"
            return _check("run", "failed", text + await self._diagnosis())
        said = (
            "its own verification passed"
            if run_output.SAYS_PASS.search(ran.text)
            else "it prints no verdict of its own"
        )
        return _check("run", "passed", f"{len(ran.ranks)} processes ended with 0 in {ran.seconds or 0:.1f} s; {said}")

    async def _hang(self, ran: NcclRunResult) -> str:
        """Say where each rank of a run without end stands: the build that says it is run once, unstressed."""
        recorded, program = await self._run("stress"), self._subject.program
        if recorded is None or recorded.status == "timeout":
            return failure(recorded or ran, program)
        how = "ends well" if recorded.ok else f"ends otherwise: {failure(recorded, program)}"
        return f"{failure(ran, program)}; the build that records it {how}"

    async def _diagnosis(self) -> str:
        """Run the program again with a wait after each launch, and say what that tells."""
        if not blocking_is_safe(self._subject.program):
            return "; no second run with a wait after each launch: a thread that drives several GPUs would hang"
        again = await self._run("plain", {"CUDA_LAUNCH_BLOCKING": "1"})
        if again is None:
            return ""
        if not again.ok:
            return f"; with a wait after each launch: {failure(again, self._subject.program)}"
        if run_output.SAYS_FAIL.search(again.text):
            return "; with a wait after each launch it fails too"
        return "; with a wait after each launch it does not fail: look for a missing order between launches or streams"

    def _counters(self, ran: NcclRunResult) -> NcclCheck:
        counted = run_output.counters(ran.texts)
        sites = sites_of(self._subject.program, kernels.communicating(self._subject.program))
        if not any(s.kind == "wrapper" for s in sites):
            return _check(
                "counters", "noted", "no call goes through the generated block, which counts; its launches are its own"
            )
        if counted is None:
            return _check("counters", "failed", "no process said how many collectives ran on the device")
        text = (
            f"{counted.device} device collectives, {counted.fallbacks} host fallbacks in {counted.processes} processes"
        )
        text += f" ({'; '.join(counted.reasons[:3])})" if counted.reasons else ""
        return _check("counters", "passed" if counted.device and not counted.fallbacks else "failed", text)

    async def differential(self) -> list[NcclCheck]:
        """Hold the generated collectives, and the buffers of the whole program, against host NCCL."""
        found = [await self._buffers()]
        if "differential" in self._subject.built:
            found += self._cases("differential", await self._collectives(), "check")
        return [_joined("differential", found)]

    async def stress(self) -> list[NcclCheck]:
        """Run with poison, guards, ranks that come late at each iteration, and kernels that are late inside."""
        ran = await self._stress()
        if ran is None:
            return [_check("stress", "skipped", "the stress build failed: " + self._first("stress"))]
        found = [self._stressed(ran)]
        if ran.ok and self._subject.original is not None:
            found.append(await self._compared(ran, "stress"))
        if "late" in self._subject.built:
            late = self._cases("late", await self._run("late", arguments=("check", _seed())), "check")
            found += [c.model_copy(update={"name": "stress"}) for c in late]
        return [_joined("stress", found)]

    async def _stress(self) -> NcclRunResult | None:
        """Run the program under stress, once for all that ask."""
        dumps = self._subject.original is not None
        async with self._locks["stress"]:
            if "stress" not in self._kept:
                self._kept["stress"] = await self._run("stress", STRESS, dumps=dumps)
            return self._kept["stress"]

    async def _collectives(self) -> NcclRunResult | None:
        """Run the differential program with all its parts, once for all that ask."""
        async with self._locks["differential"]:
            if "differential" not in self._kept:
                self._kept["differential"] = await self._run("differential", arguments=(MODES, _seed()))
            return self._kept["differential"]

    def _stressed(self, ran: NcclRunResult) -> NcclCheck:
        if not ran.ok:
            return _check("stress", "failed", failure(ran, self._subject.program))
        if run_output.SAYS_FAIL.search(ran.text):
            return _check("stress", "failed", "under skew and poison its own verification failed")
        seen = run_output.stress(ran.texts)
        if seen is None:
            return _check("stress", "noted", "the stress build said nothing at its end")
        if seen.guards_broken:
            return _check("stress", "failed", f"{seen.guards_broken} buffers were written past their end")
        text = f"{seen.ranks} ranks, {seen.poisoned} poisoned, {seen.skewed} times late, guards whole"
        left = f"; left out: {'; '.join(self._subject.left_out[:3])}" if self._subject.left_out else ""
        return _check("stress", "passed" if seen.poisoned or seen.skewed else "noted", text + left)

    async def negative(self) -> list[NcclCheck]:
        """Leave the communication out: whoever verifies must notice."""
        found: list[NcclCheck] = []
        ran = await self._run("stress", {**STRESS, **SILENT})
        if ran is not None:
            passed = ran.ok and not run_output.SAYS_FAIL.search(ran.text)
            claims = passed and run_output.SAYS_PASS.search(ran.text)
            text = "without communication the program itself " + (
                "still says PASS: its verification proves nothing"
                if claims
                else "ends with 0"
                if passed
                else "fails, as it must"
            )
            found.append(_check("negative control", "failed" if claims else "noted" if passed else "passed", text))
        if "differential" in self._subject.built:
            cases = [c for text in _texts_of(await self._collectives(), "silent") for c in run_output.cases(text)]
            missed = [c.title for c in cases if not c.bad]
            # a case of one rank or of one element that stays in place needs no communication at all
            text = f"{len(cases) - len(missed)} of {len(cases)} cases of the differential program are bad without it"
            found.append(_check("negative control", "passed" if cases and not missed else "failed", text))
        return [_joined("negative control", found)]

    async def memcheck(self) -> list[NcclCheck]:
        """Run under compute-sanitizer's memcheck with the flags that NCCL needs.

        It makes launches block. Where one thread drives several GPUs the first launch would wait for ever, so the
        differential program, one process a rank, stands in for such a program and runs the same collectives. So it does
        for a process that drives more than two GPUs: on four H100s memcheck came to no end there in 120 s.
        """
        tool = self._host.probe.toolchains.tools.get(SANITIZER)
        if tool is None:
            why = "compute-sanitizer is not on this host; it comes with the CUDA toolkit"
            return [_check("memcheck", "skipped", why)]
        name, arguments, stands_in = "plain", tuple[str, ...](), ""
        safe = blocking_is_safe(self._subject.program)
        many = devices_of_a_process(self._subject.program, self._subject.launch) > CHECKED_CONTEXTS
        if (not safe or many) and "differential" in self._subject.built:
            name, arguments, stands_in = "differential", ("few", _seed()), " in the differential program"
        elif not safe:
            why = "not run: it makes launches block, and one thread that drives several GPUs would wait for ever"
            return [_check("memcheck", "noted", why + "; no collective of the generated block is used either")]
        ran = await self._run(name, arguments=arguments, before=(tool.path, *MEMCHECK), roots=tool.roots)
        if ran is None:
            return [_check("memcheck", "skipped", "it was not built")]
        invalid = [
            line.strip()
            for line in ran.text.splitlines()
            if "Invalid __" in line or (" at " in line and "========" in line)
        ]
        if invalid:
            return [_check("memcheck", "failed", " ".join(invalid[:3])[:400])]
        if ran.status == "timeout":
            limit = f"no error seen, and no end: {self._subject.launch.timeout_s:.0f} s were too short"
            return [_check("memcheck", "skipped", limit + " under it; give a longer timeout_s")]
        if "ERROR SUMMARY: 0 errors" not in ran.text:
            return [_check("memcheck", "failed", "it did not come to its summary: " + ran.ending())]
        return [_check("memcheck", "passed", "0 errors" + stands_in)]

    async def timing(self) -> list[NcclCheck]:
        """Time host NCCL on plain memory, on windows, and the device's collectives, per size, warmed."""
        if "differential" not in self._subject.built:
            return [
                _check(
                    "timing",
                    "noted",
                    "no collective of the generated block is used: there is nothing to time beside the host's",
                )
            ]
        ran = await self._collectives()
        found = [t for text in _texts_of(ran, "time") for t in run_output.timings(text)]
        if ran is None or not found or not run_output.ended_well(ran.text):
            return [_check("timing", "failed", ran.ending() if ran is not None else "it was not built")]
        self._subject.timings = found
        slower = [t for t in found if t.device_us > 1.4 * min(t.original_us, t.stage_a_us)]
        worst = max(found, key=lambda t: t.device_us / min(t.original_us, t.stage_a_us))
        text = f"{len(found)} sizes, medians of 25 after 3 to warm up"
        text += (
            f"; slower than host NCCL by more than 1.4 at {len(slower)}, worst {worst.collective} {worst.size_bytes} B"
            if slower
            else ""
        )
        return [_check("timing", "noted" if slower else "passed", text)]

    # Parts

    def _cases(self, name: str, ran: NcclRunResult | None, mode: str) -> list[NcclCheck]:
        """Return a check for each part of that mode, and one for a run that ended before its last."""
        if ran is None:
            return [_check("differential", "failed", f"the {name} program was not built: {self._first(name)}")]
        found: list[NcclCheck] = []
        parts = [p for p in run_output.parts(ran.text) if p.mode == mode]
        for part in parts:
            cases = run_output.cases(part.text)
            wrong = [c for c in cases if c.bad or c.guard]
            if wrong:
                first = wrong[0]
                what = f"{first.bad} elements wrong" if first.bad else f"{first.guard} bytes written outside"
                text = f"{name}: {len(wrong)} of {len(cases)} cases, first {first.title}: {what}"
                found.append(_check("differential", "failed", text))
            elif not part.complete:
                text = f"{name}: after {len(cases)} cases: {failure(ran, self._subject.program)}"
                found.append(_check("differential", "failed", text))
            else:
                found.append(_check("differential", "passed", f"{name}: {len(cases)} cases equal to host NCCL"))
        if not parts:
            found.append(_check("differential", "failed", f"{name}: {failure(ran, self._subject.program)}"))
        return found

    async def _buffers(self) -> NcclCheck:
        """Compare the buffers after the run under stress; only where that shows a fault, also without stress."""
        if self._subject.original is None:
            return _check("differential", "noted", "no original was given to compare buffers with")
        stressed = await self._stress()
        if stressed is None:
            return _check("differential", "skipped", "the instrumented build failed: " + self._first("stress"))
        if stressed.ok:
            found = await self._compared(stressed, "differential")
            if found.status != "failed":
                return found
        ran = await self._run("stress", dumps=True)
        if ran is None or not ran.ok:
            return _check("differential", "failed", failure(ran or stressed, self._subject.program))
        return await self._compared(ran, "differential")

    async def _compared(self, ran: NcclRunResult, check: str) -> NcclCheck:
        want = await self._originals()
        if want is None:
            return _check(check, "skipped", "the original did not run: " + self._first("original"))
        if not want:
            return _check(check, "noted", "the original frees no buffer that it communicated, so none can be compared")
        got = _dumped(ran)
        different = buffer_dumps.compare(want, got, reduces=self._reduces())
        if not different:
            return _check(check, "passed", f"{len(want)} buffers as the original leaves them")
        again = await self._run("original", dumps=True)
        if again is not None and buffer_dumps.compare(want, _dumped(again), reduces=self._reduces()):
            return _check(check, "noted", "the original itself leaves other data each time: buffers cannot be compared")
        first = different[0]
        return _check(check, "failed", f"{len(different)} of {len(want)} buffers differ: {first.name} {first.text}")

    async def _originals(self) -> dict[str, bytes] | None:
        known = self._subject.original_run
        async with self._locks["original"]:
            if known.dumps is None:
                ran = await self._run("original", dumps=True)
                if ran is None or not ran.ok:
                    return None
                known.dumps = _dumped(ran)
        return known.dumps

    def _reduces(self) -> bool:
        original = self._subject.original or self._subject.program
        return any(s.collective in SUMS for s in sites_of(original, {}))

    def _first(self, name: str) -> str:
        built = self._subject.built.get(name)
        return built.first if built is not None else "not asked for"

    async def _run(
        self,
        name: str,
        env: Mapping[str, str] | None = None,
        *,
        arguments: Sequence[str] = (),
        before: Sequence[str] = (),
        roots: Sequence[str] = (),
        dumps: bool = False,
    ) -> NcclRunResult | None:
        """Run one of the builds; None if it was not built. `arguments` are the differential program's."""
        built = self._subject.built.get(name)
        if built is None or built.binary is None:
            return None
        launch = self._subject.launch
        if arguments:
            launch = replace(launch, arguments=(str(launch.ranks), *arguments), launcher="self")
        if self._progress is not None:
            await self._progress(f"{name} {' '.join(arguments)}".strip())
        run = Run(built.binary, launch, self._gpus(), env or {}, before, roots, dumps)
        ran = await self._jobs.run(self._host, run)
        said = f"{name} {' '.join(arguments)} {dict(env or {})}: {ran.status} (job {ran.job_id})"
        self._subject.log.append(f"=== {said}\n{ran.text[-20_000:]}")
        return ran

    def _gpus(self) -> int:
        return min(self._subject.launch.ranks, self._host.gpus)


def failure(ran: NcclRunResult, program: ProgramModel) -> str:
    """Say how a run failed: a hang by kernel, barrier and rank, otherwise NCCL's and CUDA's own words."""
    hosts = [f"the host's NCCL did {reason}" for reason in run_output.fallback_reasons(ran.texts)[:2]]
    words = "; ".join([*run_output.error_lines(ran.texts)[:3], *hosts])
    if ran.status != "timeout":
        return "; ".join(w for w in (ran.ending(), words) if w)[:900]
    stood = run_output.hang_locations(ran.texts)
    where = (
        "; ".join(s.line_text() for s in stood[:8]) or "which rank waits is not known: this build does not record it"
    )
    barriers = ", ".join(kernels.communicating(program)) or "none"
    return f"it did not end in time; {where}; kernels with barriers: {barriers}; {words}".rstrip("; ")[:900]


def _joined(name: str, found: Sequence[NcclCheck]) -> NcclCheck:
    """Make one check of several: the worst decides, all are told."""
    ordered = sorted(found, key=lambda c: WORST_FIRST.index(c.status))
    evidence = "; ".join(dict.fromkeys(c.evidence for c in ordered))
    return _check(name, ordered[0].status if ordered else "skipped", evidence or "nothing of it could run")


def _check(name: str, status: NcclCheckStatus, evidence: str) -> NcclCheck:
    return NcclCheck(name=name, status=status, evidence=evidence[:1000])


def _texts_of(ran: NcclRunResult | None, mode: str) -> list[str]:
    """Return what each part of that mode printed."""
    return [p.text for p in run_output.parts(ran.text) if p.mode == mode] if ran is not None else []


def _dumped(ran: NcclRunResult) -> dict[str, bytes]:
    return {p.rpartition("/")[2]: d for p, d in ran.files.items() if p.startswith(f"{DUMPS}/") and p.endswith(".bin")}


def _seed() -> str:
    return str(1 + secrets.randbelow(2**20))
