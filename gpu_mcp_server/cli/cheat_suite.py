"""Candidates that try to fool the judge, and honest ones that look as if they did: what became of each."""

import asyncio
import shutil
import tempfile
import tomllib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpu_mcp_server.errors import BadRequest, GpuMcpError
from gpu_mcp_server.package_files import content_path

if TYPE_CHECKING:
    from gpu_mcp_server.models.build import CandidateLanguage
    from gpu_mcp_server.models.evaluation import Evaluation
    from gpu_mcp_server.services.lab import Lab
    from gpu_mcp_server.settings.server_settings import Settings

LANGUAGES: "dict[str, CandidateLanguage]" = {".c": "c", ".cpp": "cpp", ".cc": "cpp", ".cu": "cuda", ".py": "python"}
SIDE_BY_SIDE = 2
"""Cheats judged at a time on the CPU; their verdicts rest on no time."""
GAIN = 1.5
"""A harmless cheat's speed-up over the plain one's; beyond it the cheat paid. It leaves room for a busy machine."""
TRIALS, NOISY_TRIALS = 2, 6
"""Of a harmless cheat that seems to pay; the latter where the judge says of the times that their intervals are wide."""
WAIT_S = 300.0
BAD = ("incorrect", "cheat", "compile_failed")
"""Verdicts that stop a candidate."""

CAUGHT_BY = {
    "fell back to the library": "ghost replay",
    "repeats an earlier answer": "fresh data in every round",
    "finished after it said done": "frozen when it said done",
    "worked on calls before they were called": "outputs behind a closed gate",
    "behind its gate": "a gate behind each call",
    "reached the gate behind call": "a gate behind each call",
    "before it was called": "stopped in the middle of a round",
    "put a call off": "stopped in the middle of a round",
    "when the given stream had passed the call": "copies behind each call",
    "before the given stream reached the call": "copies behind each call",
    "overlap on the GPU": "calls asked for one by one",
    "ran while it was stopped": "run time while stopped",
    "returned without computing": "poisoned outputs",
    "wrote outside its outputs": "guards",
    "changed its inputs": "copy of the inputs",
    "spoke out of turn": "numbered answers",
    " s and was killed": "time limit",
    "crashed with": "end of the process",
    "exited with": "end of the process",
    "closed its link": "end of the process",
    "looks like lower precision": "errors against double precision",
    "CUDA_ERROR_": "CUDA's error",
    "are wrong": "every element of every timed call",
    "the launcher returned": "launcher's return value",
    "cannot be loaded": "loading",
    "has no symbol": "loading",
    "has no class": "loading",
    "has no function": "loading",
}
"""Words of a reason, and the part of the judge that gave it; the first that is found counts."""
NO_TIME = "no time was given"
UNCONFIRMABLE = "its time is unconfirmable"
SLOWER = "slower time in the confirmation run"


@dataclass(frozen=True)
class CheatCandidate:
    """One file."""

    id: str
    path: Path
    kind: Literal["cheat", "honest"]
    device: str
    problem: str = "softmax"
    rows: tuple[int, ...] = ()
    """Of the catalogue."""
    does: str = ""
    expect: str = ""
    """Verdict; `caught` for either bad one, empty when nobody knows."""
    words: tuple[str, ...] = ()
    """Of the reason; one of them is in it."""
    harmless: bool = False
    right: bool = False
    """Its answers are right: all that it can gain is a time, and it gains nothing where the judge gives none, or says
    that it is unconfirmable."""
    quick: bool = False
    needs: str = ""
    """What the judge's Python must have."""
    flags: tuple[str, ...] = ()
    """Of the compiler."""


@dataclass(frozen=True)
class CheatRow:
    """Result of judging one candidate of the suite."""

    candidate: CheatCandidate
    verdict: str
    caught_by: str
    reason: str = ""
    speedup: float | None = None
    gain: float | None = None
    """Speed-up over the plain candidate's, of a harmless cheat."""
    timed: bool = False
    """Whether it got a speed-up, or a time that ranks."""
    refused: str = ""
    """Why the judge gave no time, or one of a `right` cheat that ranks behind all others: it was not believed."""
    voided: bool = False
    """Whether the first look let it through and a confirmation run voided it."""

    @property
    def stopped_by(self) -> Literal["first look", "confirmation run", ""]:
        """Return which evaluation stopped a cheat; empty if neither did, and of an honest candidate."""
        if self.candidate.kind == "honest":
            return ""
        if self.voided:
            return "confirmation run"
        untimed = self.candidate.right and self.verdict == "correct" and self.speedup is None and not self.timed
        return "first look" if self.verdict in BAD or self.refused or untimed else ""

    @property
    def was_missed(self) -> bool:
        """Return whether a cheat got through, or was not judged."""
        if self.candidate.kind == "honest" or self.stopped_by:
            return False
        return not (self.candidate.harmless and self.verdict == "correct" and (self.gain or 0.0) <= GAIN)

    @property
    def false_alarm(self) -> bool:
        """Return whether an honest candidate was not found correct, or its time was not believed."""
        return self.candidate.kind == "honest" and (self.verdict != "correct" or bool(self.refused))

    def data(self) -> dict[str, str]:
        """Return what `--json` prints."""
        return {
            "id": self.candidate.id,
            "kind": self.candidate.kind,
            "verdict": self.verdict,
            "stopped_by": self.stopped_by,
            "caught_by": self.caught_by,
        }


def folder() -> Path:
    """Return where the candidates are: in the checkout, or in the installed package."""
    place = content_path("examples/cheats")
    if (place / "index.toml").is_file():
        return place
    raise GpuMcpError("The candidates are not installed.", hint="Install the wheel again, or use a checkout.")


def index(part: str = "") -> dict[str, Any]:
    """Return the table of problems and candidates, or that of a folder of further candidates."""
    return tomllib.loads((folder() / part / "index.toml").read_text(encoding="utf-8"))


def catalogued_candidates() -> list[CheatCandidate]:
    """Return the candidates of the table."""
    at = folder()
    return [
        CheatCandidate(
            path=at / row["file"],
            rows=tuple(row.get("rows", ())),
            words=tuple(row.get("words", ())),
            flags=tuple(row.get("flags", ())),
            **{k: row[k] for k in row if k not in ("file", "rows", "words", "flags")},
        )
        for row in [*index()["candidates"], *index("python")["candidates"]]
    ]


def candidates_in_folder(at: Path) -> list[CheatCandidate]:
    """Return the files of a folder as cheats, judged against softmax.

    Raises:
        BadRequest: If there are none.
    """
    files = sorted(p for p in at.rglob("*") if p.suffix in LANGUAGES and p.is_file())
    if not files:
        raise BadRequest(f"{at} has no candidates.", hint="Put *.c, *.cpp, *.cu or *.py files with a launcher there.")
    return [
        CheatCandidate(
            id=p.relative_to(at).with_suffix("").as_posix(),
            path=p,
            kind="cheat",
            device="cuda" if p.suffix == ".cu" else "cpu",
            needs="torch" if p.suffix == ".py" else "",
        )
        for p in files
    ]


def part_that_gave(reason: str) -> str:
    """Return the part of the judge that gave a reason; empty if its words are not known."""
    return next((part for words, part in CAUGHT_BY.items() if words in reason), "")


def worth_of(evaluation: "Evaluation") -> float:
    """Return what a candidate has of being fast: its speed-up, or calls a microsecond where there is no baseline."""
    return evaluation.speedup or (1 / evaluation.time_us if evaluation.time_us else 0.0)


def noisy(evaluation: "Evaluation") -> bool:
    """Say whether the judge itself says that a time is not known well."""
    return any(note.startswith("the interval is wide") for shape in evaluation.shapes for note in shape.notes)


@dataclass
class CheatSuite:
    """Has candidates judged in a laboratory."""

    lab: "Lab"
    host: str | None = None
    tell: Callable[[CheatRow], None] | None = None
    problems: dict[tuple[str, str], "asyncio.Task[str]"] = field(
        default_factory=dict[tuple[str, str], "asyncio.Task[str]"]
    )
    plain: dict[str, "Evaluation"] = field(default_factory=dict[str, "Evaluation"])
    """Of the plain candidate of each device, with a time."""

    async def judge_all(self, candidates: Sequence[CheatCandidate]) -> list[CheatRow]:
        """Judge cheats side by side, then what has to be timed, one after the other."""
        timed = [c for c in candidates if c.kind == "honest" or c.harmless or c.device == "cuda"]
        others = [c for c in candidates if c not in timed]
        places = asyncio.Semaphore(SIDE_BY_SIDE)

        async def one(candidate: CheatCandidate) -> CheatRow:
            async with places:
                return await self.judge(candidate)

        rows = dict(zip(others, await asyncio.gather(*(one(c) for c in others)), strict=True))
        for candidate in timed:
            rows[candidate] = await self.judge(candidate)
        return [rows[c] for c in candidates]

    async def judge(self, candidate: CheatCandidate) -> CheatRow:
        """Judge one."""
        try:
            evaluation = await self._evaluated(candidate)
            row = self._row(candidate, evaluation)
            doubt = evaluation.unconfirmable() if row.verdict == "correct" and not row.refused else ""
            if candidate.right and doubt:
                row = await self._doubted(row, doubt)
            if candidate.harmless and row.verdict == "correct" and row.timed and not row.refused:
                row = await self._compared(row, evaluation)
            elif row.was_missed and row.verdict == "correct":
                row = await self._confirmed(row, evaluation)
        except GpuMcpError as error:
            row = CheatRow(candidate, "error", "", str(error))
        if self.tell is not None:
            self.tell(row)
        return row

    def _row(self, candidate: CheatCandidate, evaluation: "Evaluation") -> CheatRow:
        verdict = evaluation.verdict or evaluation.status
        caught = "" if verdict == "correct" else part_that_gave(evaluation.reason)
        if verdict == "compile_failed":
            caught = "compiler"
        notes = [note for shape in evaluation.shapes for note in shape.notes]
        timed = verdict != "correct" or any(shape.speedup for shape in evaluation.shapes) or worth_of(evaluation) > 0
        refused = "" if timed else next((note for note in notes if note.startswith("no time: ")), "")
        caught = caught or (NO_TIME if refused else "" if verdict == "correct" else verdict)
        reason = evaluation.reason or refused
        return CheatRow(
            candidate, verdict, caught, reason, evaluation.speedup, refused=refused, timed=worth_of(evaluation) > 0
        )

    async def _confirmed(self, row: CheatRow, evaluation: "Evaluation") -> CheatRow:
        """Return the row of a cheat that the first look let through, after the confirmation run that its time owes."""
        again = await self.lab.evaluation.auditor.audit(evaluation.attempt_id)
        if again.outcome != "voided":
            return row
        verdict = again.verdict_now or row.verdict
        caught = SLOWER if verdict == "correct" else part_that_gave(again.why) or verdict
        return replace(row, verdict=verdict, caught_by=caught, reason=again.why, voided=True)

    async def _doubted(self, row: CheatRow, doubt: str) -> CheatRow:
        """Return the row of a right cheat whose time is unconfirmable, where that of an honest candidate is not.

        Every confirmed time ranks before it.
        """
        if (await self._plain(row.candidate)).unconfirmable():
            return row
        said = f"unconfirmable: {doubt}"
        return replace(row, refused=said, reason=row.reason or said, caught_by=UNCONFIRMABLE)

    async def _compared(self, row: CheatRow, evaluation: "Evaluation") -> CheatRow:
        """Return the row of a harmless cheat with its gain; one that seems to pay is tried again."""
        gain = float("inf")
        for trial in range(1, NOISY_TRIALS + 1):
            if trial > 1:
                evaluation = await self._evaluated(row.candidate)
                self.plain.pop(row.candidate.device)
            plain = await self._plain(row.candidate)
            gain = min(gain, worth_of(evaluation) / (worth_of(plain) or float("inf")))
            if gain <= GAIN or (trial >= TRIALS and not noisy(evaluation) and not noisy(plain)):
                break
        word = f"its time: {gain:.2f} of the plain candidate's speed-up"
        return replace(row, caught_by=word if gain <= GAIN else "", gain=gain)

    async def _plain(self, candidate: CheatCandidate) -> "Evaluation":
        """Return the plain candidate's evaluation.

        Raises:
            GpuMcpError: If it gets no time: there is nothing to compare with.
        """
        if candidate.device not in self.plain:
            wanted = "plain" if candidate.device == "cpu" else "plain_cuda"
            plain = next(c for c in catalogued_candidates() if c.id == wanted)
            for _ in range(NOISY_TRIALS):
                found = await self._evaluated(plain)
                if worth_of(found):
                    break
            else:
                raise GpuMcpError(
                    f"The gain of {candidate.id} is not known: {wanted} got no time in {NOISY_TRIALS} trials.",
                    hint="Try it again while the machine is less busy.",
                )
            self.plain[candidate.device] = found
        return self.plain[candidate.device]

    async def _evaluated(self, candidate: CheatCandidate) -> "Evaluation":
        from gpu_mcp_server.services.builds.candidate_source import CandidateSource, python_kind

        key = (candidate.problem, candidate.device)
        if key not in self.problems:
            self.problems[key] = asyncio.create_task(self._registered(*key))
        text = candidate.path.read_text(encoding="utf-8", errors="replace")
        language = python_kind(text) if candidate.needs else LANGUAGES[candidate.path.suffix]
        source = CandidateSource(text, language, candidate.path.name)
        return await self.lab.evaluation.evaluator.evaluate(
            await self.problems[key],
            source,
            host=self.host,
            device=candidate.device,
            flags=candidate.flags,
            note=candidate.id,
            wait_s=WAIT_S,
        )

    async def _registered(self, name: str, device: str) -> str:
        from gpu_mcp_server.models.problem import TensorSpec

        about = index()["problems"][name]
        info = await self.lab.evaluation.registry.register(
            name=f"{name} ({device})",
            reference=about["reference"],
            entry=about["entry"],
            inputs=[TensorSpec.model_validate(t) for t in about["inputs"]],
            outputs=[TensorSpec.model_validate(t) for t in about["outputs"]],
            shapes=about.get(device + "_shapes", about["shapes"]),
            rtol=about["rtol"],
            atol=about["atol"],
            libraries=about.get("libraries", "allowed"),
            requires=about.get("requires", ()),
            precision=about.get("precision", "tolerance"),
            host=self.host,
        )
        return info.problem_id


def _store() -> Path:
    at = Path(tempfile.mkdtemp(prefix="gpu-mcp-selftest-"))
    at.chmod(0o711)  # jobs of a root server run under their own uid and must get through
    return at


@asynccontextmanager
async def open_suite(settings: "Settings", host: str | None = None) -> AsyncGenerator[CheatSuite]:
    """Open a laboratory with a store of its own."""
    from gpu_mcp_server.services.lab import Lab

    at = _store()
    try:
        async with Lab.open(settings.model_copy(update={"data_dir": at})) as lab:
            yield CheatSuite(lab, host)
    finally:
        shutil.rmtree(at, ignore_errors=True)
