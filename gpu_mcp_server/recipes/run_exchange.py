"""Messages between a run at a team's server and the machine of its user, where its agent is called."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.recipe import RunState
from gpu_mcp_server.models.run_plan import AgentCommand, RunPlan
from gpu_mcp_server.recipes.agents.agent_jobs import Answer
from gpu_mcp_server.services.workspaces.local_files import IN_WORKSPACE, read_local

FILE_BYTES = 1 << 20
"""Of a file that a plan names beside its problem, as prompts read them."""
MOST_WORKING = 64
"""Calls of an agent at once."""
TEXT = 24 << 20
"""Characters of an answer; a request has fewer bytes."""
GIVEN = "given"
"""Folder of a run with the files that came with its plan."""


class GivenFile(BaseModel):
    """A file that a plan names beside its problem."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[^/\x00-\x1f]{1,200}$")
    data: Base64Bytes


Given = Annotated[list[GivenFile], Field(max_length=20)]


class SentRun(BaseModel):
    """A run as it is begun from elsewhere: the plan without paths of its user's machine."""

    model_config = ConfigDict(extra="forbid")

    plan: RunPlan
    reference_code: Given = []
    documents: Given = []
    seed: Given = []
    source: Given = []


class Heard(BaseModel):
    """One request of the machine that attends a run."""

    model_config = ConfigDict(extra="forbid")

    visitor: str = Field(pattern=r"^[a-z0-9]{16,64}$")
    """Of the process, which is another one after a kill."""
    said: int = Field(default=0, ge=0)
    """Lines that it has."""
    working: list[str] = Field(default=[], max_length=MOST_WORKING)
    """Questions that it is at."""
    jobs: int = Field(default=1, ge=1, le=MOST_WORKING)


class AgentQuestion(BaseModel):
    """A call of the agent that the run waits for."""

    job_id: str
    """The same after the server or the other machine was killed."""
    step: str
    prompt: str
    tools: bool
    """Whether the agent gets our tools."""


class RunNews(BaseModel):
    """The answer to `Heard`."""

    questions: list[AgentQuestion] = []
    lines: list[str] = []
    said: int = 0
    state: RunState | None = None
    """Once it has ended."""
    error: str = ""
    """Why it does not go on."""
    refused: bool = False
    """Whether that is what it was given, and no machine's fault."""


class SentAnswer(BaseModel):
    """An agent's answer, or why its call has to be made again."""

    model_config = ConfigDict(extra="forbid")

    status: str = Field(max_length=40)
    why: str = Field(default="", max_length=4000)
    text: str = Field(default="", max_length=TEXT)
    handoff: str | None = Field(default=None, max_length=TEXT)
    cost_usd: float | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    calls: int | None = Field(default=None, ge=0)
    characters: int | None = Field(default=None, ge=0)
    interrupted: bool = False

    def answer(self) -> Answer:
        """Return it as a run takes it."""
        return Answer(**self.model_dump(exclude={"interrupted"}))


class HeardCall(BaseModel):
    """A call of our tools that an agent made."""

    model_config = ConfigDict(extra="forbid")

    number: int = Field(ge=0)
    name: str = Field(max_length=200)
    characters: int = Field(ge=0)
    is_error: bool
    attempt_ids: tuple[str, ...] = Field(default=(), max_length=100)


def sent_run(plan: RunPlan, problem: str) -> SentRun:
    """Return a plan as it travels, with the files that it names and without what calls its agent.

    Args:
        plan: With absolute paths, as `read_plan` leaves it.
        problem: Its problem's id, workspace:ID/PATH, or in mode program the program's workspace.

    Raises:
        NotFound, PathRefused, LimitExceeded: If a file cannot be read.
    """
    named = {
        "reference_code": plan.reference_code, "documents": plan.documents,
        "seed": [plan.population.seed] if plan.population.seed else [],
        "source": [plan.tuning.source] if plan.tuning.source else [],
    }  # fmt: skip
    files: dict[str, Any] = {
        name: [
            GivenFile.model_construct(name=Path(each).name, data=read_local(Path(each), FILE_BYTES)) for each in each_of
        ]
        for name, each_of in named.items()
    }
    changed = plan.model_copy(
        update={
            "problem": problem, "agent": without_command(plan.agent), "reference_code": [], "documents": [],
            "population": plan.population.model_copy(update={"seed": None}),
            "tuning": plan.tuning.model_copy(update={"source": plan.tuning.source and Path(plan.tuning.source).name}),
        }
    )  # fmt: skip
    return SentRun.model_construct(plan=changed, **files)


def without_command(agent: AgentCommand) -> AgentCommand:
    """Return what a run needs to know of its agent: neither how it is called nor files and values of its machine."""
    own = AgentCommand(client=agent.client, command=[] if agent.client else ["agent"], stdin="")
    kept = {name: getattr(agent, name) for name in ("toolsets", "timeout_s", "model", "turns", "decoding", "steps")}
    return own.model_copy(update=kept)


def lay_plan(sent: SentRun, folder: Path) -> RunPlan:
    """Write the files of a run below its folder, and return its plan with their paths: no other path is left in it.

    Raises:
        BadRequest: If its problem is a path.
    """
    plan = sent.plan
    by_path = plan.mode != "program" and plan.problem.startswith(IN_WORKSPACE)
    if plan.problem and not by_path and not plan.names_known_problem():
        raise BadRequest(
            f"{plan.problem!r} is no problem of this server.",
            hint="Name a problem_id, or workspace:ID/PATH; in mode program a workspace_id.",
        )

    def laid(kind: str, files: list[GivenFile]) -> list[str]:
        found: list[str] = []
        for number, file in enumerate(files):
            path = folder / GIVEN / f"{kind}-{number}" / (file.name.lstrip(".") or "file")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(file.data)
            found.append(str(path))
        return found

    if plan.tuning.source and not sent.source:
        raise BadRequest("The file of tuning.source did not come.", hint="Send it as source.")
    seed, source = laid("seed", sent.seed[:1]), laid("source", sent.source[:1])
    return plan.model_copy(
        update={
            "agent": without_command(plan.agent),
            "reference_code": laid("reference", sent.reference_code), "documents": laid("document", sent.documents),
            "population": plan.population.model_copy(update={"seed": seed[0] if seed else None}),
            "tuning": plan.tuning.model_copy(update={"source": source[0] if source else None}),
        }
    )  # fmt: skip
