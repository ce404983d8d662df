"""Plan of a headless run: one TOML file."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from gpu_mcp_server.models._base import Model
from gpu_mcp_server.models.build import CandidateLanguage
from gpu_mcp_server.models.evaluation import Tier
from gpu_mcp_server.models.nccl_pipeline import NcclPipelineOptions

Mode = Literal["structured", "population", "agent", "nccl", "tune", "project"]
UNJUDGED: tuple[Mode, ...] = ("nccl", "project")
"""Modes whose programs are verified or tested, not judged as a problem's candidates."""
Preparer = Literal["analyst", "builder", "tester"]
ClientName = Literal["claude", "codex", "gemini", "chat"]
HintKind = Literal["compile", "correctness", "performance", "research", "diversity"]
Short = Annotated[str, Field(min_length=1, max_length=200)]
ParameterName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,60}$")]
ParameterValue = StrictBool | StrictInt | StrictFloat | StrictStr
Values = Annotated[list[ParameterValue], Field(min_length=1, max_length=1000)]
Point = dict[str, ParameterValue]


Decoding = dict[str, float | int | str | bool]


class StepSettings(Model):
    """Changes to the agent's calls of some steps; absent keys are as in all steps."""

    model: str | None = None
    turns: int | None = Field(default=None, ge=1, le=1000)
    timeout_s: float | None = Field(default=None, gt=0, le=6 * 3600)
    decoding: Decoding = {}
    """temperature, max_tokens ...: added to those of all steps."""


class AgentCommand(Model):
    """Command that calls an agent, once a step: any command that reads a prompt and answers.

    `{prompt}`, `{prompt_file}`, `{model}`, `{turns}`, `{step}`, `{address}`, `{python}`, `{gate}` and the names in
    `decoding` stand for their values.
    """

    client: ClientName | None = None
    """An agent that is known by name: its arguments, settings and our tools are put together for it, its own shell is
    off. chat: a loop of ours around any model behind an OpenAI-compatible `address`, with `decoding`."""
    command: list[str] = []
    """Program and arguments, as seen inside its sandbox: /usr, `roots`, and its workspace at /job. With `client` the
    program alone, where it is not found by its name."""
    address: str = ""
    """URL of its model, the one place that it reaches: by a tunnel, without any network of its own."""
    toolsets: list[str] = ["default"]
    """Of our tools, in agent mode."""
    stdin: str = "{prompt}"
    """What it reads."""
    environment: dict[str, str] = {}
    pass_environment: list[str] = []
    """Names of variables of yours that it gets, such as a key; their values are kept nowhere."""
    files: dict[str, str] = {}
    """Files laid into its workspace: path there, and path here relative to the TOML."""
    roots: list[str] = []
    """Folders shown to it read-only; never your home or what holds it."""
    network: bool = False
    """Whether it needs an address. The setting allow_fetch must permit it, and it is then told nothing less than the
    network of this machine."""
    timeout_s: float = Field(default=600.0, gt=0, le=6 * 3600)
    output_bytes: int = Field(default=1 << 20, ge=1 << 10, le=16 << 20)
    memory_bytes: int = Field(default=4 << 30, ge=64 << 20)
    model: str = ""
    turns: int = Field(default=30, ge=1, le=1000)
    """For `{turns}`: how often one call may ask its model, where the command can be told so; in agent mode also how
    often it may call our tools, which then tell it to end."""
    decoding: Decoding = {}
    """temperature, top_p, max_tokens ...: placeholders of their names; client chat sends them to its model, client
    claude takes max_tokens alone."""
    steps: dict[str, StepSettings] = {}
    """Other settings by the beginning of a step's name: specification, build-plan, test-plan, code, session,
    reflect; in mode project also build-files and test-files."""

    def for_step(self, step: str) -> "AgentCommand":
        """Return the command with the settings of a step, by the longest name with which the step's begins."""
        names = [name for name in self.steps if step.startswith(name)]
        if not names:
            return self
        own = self.steps[max(names, key=len)]
        changes = own.model_dump(exclude_none=True, exclude={"decoding"})
        return self.model_copy(update={**changes, "decoding": {**self.decoding, **own.decoding}})


class Iterations(Model):
    """Failed candidates of the whole run at each stage, at which it ends with the best it has."""

    specification: int = Field(default=2, ge=1, le=100)
    """Answers of each role that is asked before the first candidate."""
    compile: int = Field(default=4, ge=1, le=1000)
    correctness: int = Field(default=4, ge=1, le=1000)
    performance: int = Field(default=4, ge=1, le=1000)
    """Correct candidates that miss the target."""
    session: int = Field(default=1, ge=1, le=100)
    """In agent mode: how often the agent is called, each time told what was judged so far."""


class PlanTarget(Model):
    """Target at which a run stops; without one it uses its iterations up."""

    speedup: float | None = Field(default=None, gt=0)
    """Over the reference, geometric mean over the shapes; in mode nccl of the whole program over its original."""
    median_us: float | None = Field(default=None, gt=0)
    """At the last shape."""


class Budget(Model):
    """Limits of what a run may cost in all."""

    wall_s: float | None = Field(default=None, gt=0)
    """Of steps, over all resumptions."""
    agent_calls: int = Field(default=200, ge=1)
    cost_usd: float | None = Field(default=None, gt=0)
    """As agents report it; one that reports nothing counts as nothing."""


class SuiteBudget(Model):
    """Limits for all runs of a suite together: no further problem is begun once one of these is spent."""

    agent_calls: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    """As agents report them; one that reports nothing counts as nothing."""
    cost_usd: float | None = Field(default=None, gt=0)
    """Likewise."""
    gpu_s: float | None = Field(default=None, gt=0)
    """Seconds times GPUs of the jobs that judge and profile."""


class Population(Model):
    """Of population mode, with GEAK's names."""

    ancestor_num: int = Field(default=3, ge=1, le=20)
    """References in the prompt, in ascending latency."""
    descendant_num: int = Field(default=4, ge=1, le=32)
    """Offspring a round."""
    rounds: int = Field(default=3, ge=1, le=1000)
    seed: str | None = None
    """File of the first ancestor; where it has EVOLVE-BLOCKs only their lines may change."""


class Tuning(Model):
    """Options of sweeping the parameters of `[tune]`."""

    source: str | None = None
    """In mode tune: the file whose parameters are swept, relative to the TOML."""
    constraints: list[Annotated[str, Field(min_length=1, max_length=400)]] = Field(default=[], max_length=32)
    """Which points are tried, over the parameters' names: `BLOCK_M * BLOCK_N <= 16384`."""
    trials: int = Field(default=64, ge=1, le=10_000)
    """A space with more points is sampled by optuna's TPE, this many points in all."""


class RunPlan(Model):
    """The whole plan of one run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$")]
    mode: Mode = "structured"
    problem: Annotated[str, Field(max_length=200)] = ""
    """A problem_id, or a problem's file relative to the TOML; in mode nccl the program's main file; in mode project a
    folder to start from, or nothing."""
    accept_degenerate: bool = False
    """Run problems too of which an answer without work is right; their verdicts say so, and no score counts them."""
    language: CandidateLanguage = "cuda"
    recipe: Short | None = None
    """Role or procedure of agent_recipes whose text begins the prompts: coder, in agent mode optimize-kernel, in mode
    nccl nccl-device-transform."""
    request: str = Field(default="", max_length=20_000)
    """Request in words."""
    host: str | None = None
    flags: list[str] = []
    tier: Tier | Literal["compile"] = "performance"
    """Below performance nothing is timed: the first correct candidate is what the run is for. compile: nothing is run
    either, for devices that are not here; the first candidate that compiles is."""
    fresh: bool = False
    """Judge again what was judged before; else an identical request is answered by the verdict that it got."""
    accept_provisional: bool = False
    """Let unconfirmed times count for the target; else the run confirms candidates that reach it, and its best."""
    entry: str = "launch"
    """The launcher that a candidate defines."""
    roles: list[Literal["builder", "tester"]] = []
    """In structured mode, asked after the analyst: the builder for flags and launcher, which are checked and used for
    every candidate; the tester for the cases that the coder is told of."""
    agent: AgentCommand = AgentCommand()
    """Needed in every mode but tune."""
    iterations: Iterations = Iterations()
    target: PlanTarget = PlanTarget()
    budget: Budget = Budget()
    suite: SuiteBudget = SuiteBudget()
    population: Population = Population()
    tune: dict[ParameterName, Values] = Field(default={}, max_length=20)
    """Values of macros, or of constants of a Python module: every combination is judged, without the agent. Mode tune
    does nothing else; modes structured and population sweep their best before they end below the target."""
    tuning: Tuning = Tuning()
    nccl: NcclPipelineOptions = NcclPipelineOptions()
    """How the program is started and how far each stage is verified."""
    hints: dict[HintKind, list[str]] = {}
    """research: told when an error repeats; diversity: one each candidate in turn; the others at their stage."""
    reference_code: list[str] = []
    """Files to start from, shown in the first prompt."""
    documents: list[str] = []
    """Files of API documentation, likewise."""
    pass_string: str = ""
    """What the seed's own test prints when it passes: told to the agent, never believed."""
    history: int = Field(default=6, ge=0, le=50)
    """Earlier candidates in a prompt, with their parameters."""

    @property
    def procedure(self) -> str:
        """The recipe, or the one of this mode."""
        own = {"agent": "optimize-kernel", "nccl": "nccl-device-transform"}
        return self.recipe or own.get(self.mode, "coder")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.mode != "project" and not self.problem:
            raise ValueError(f"mode {self.mode} needs a problem")
        if self.mode == "project" and not self.request:
            raise ValueError("mode project needs a request: describe in words the program to build")
        if self.mode != "tune" and self.agent.client is None and not self.agent.command:
            raise ValueError("agent: command or client says which agent is called")
        if self.mode == "tune" and not (self.tune and self.tuning.source):
            raise ValueError("mode tune needs [tune] and tuning.source")
        if self.mode == "nccl" and self.target.median_us is not None:
            raise ValueError("mode nccl measures whole programs: target.speedup, not target.median_us")
        if self.tune and self.mode not in ("tune", "structured", "population"):
            raise ValueError(f"mode {self.mode} does not use [tune]")
        if self.tune and self.tier != "performance":
            raise ValueError(f"[tune] needs tier performance: tier {self.tier} times nothing")
        if self.language == "program":
            raise ValueError("language program: a program of several files cannot be answered in one file")
        if self.mode != "structured" and self.tier == "compile":
            raise ValueError(f"mode {self.mode} needs verdicts, and tier compile has none")
        return self
