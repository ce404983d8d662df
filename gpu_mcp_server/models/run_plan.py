"""Plan of a headless run: one TOML file."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from gpu_mcp_server.models._base import Model
from gpu_mcp_server.models.build import CandidateLanguage
from gpu_mcp_server.models.evaluation import Tier
from gpu_mcp_server.models.nccl_pipeline import NcclPipelineOptions
from gpu_mcp_server.models.problem import Basis

Mode = Literal["structured", "population", "agent", "nccl", "tune", "project", "program"]
WITHOUT_PROBLEM: tuple[Mode, ...] = ("nccl", "project", "program")
"""Modes that begin with a program or a sentence; mode program makes a problem on its way."""
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
    """Model of these steps."""
    turns: int | None = Field(default=None, ge=1, le=1000)
    """Turns of one call in these steps."""
    timeout_s: float | None = Field(default=None, gt=0, le=6 * 3600)
    """Seconds after which the server ends one call in these steps."""
    decoding: Decoding = {}
    """Decoding settings such as temperature, added to those of all steps."""


class AgentCommand(Model):
    """Command that calls an agent, once a step: any command that reads a prompt and answers.

    `{prompt}`, `{prompt_file}`, `{model}`, `{turns}`, `{step}`, `{address}`, `{python}`, `{gate}` and the names in
    `decoding` stand for their values.
    """

    client: ClientName | None = None
    """Agent that the server knows: it sets the arguments, the settings and the tools, and turns the agent's own shell
    off. `chat` is the server's own loop around any model behind an OpenAI-compatible `address`, with `decoding`."""
    command: list[str] = []
    """Program and arguments as the sandbox has them: /usr, `roots`, and the workspace at /job. With `client`, the
    path of the program alone, if PATH does not have it."""
    address: str = ""
    """URL of the model. The agent reaches it through a tunnel, and no other address."""
    toolsets: list[str] = ["default"]
    """Toolsets of the server that the agent may call in agent mode."""
    stdin: str = "{prompt}"
    """Text that the agent reads on standard input."""
    environment: dict[str, str] = {}
    """Environment variables of the agent."""
    pass_environment: list[str] = []
    """Names of your own variables that the agent gets, such as a key; the server keeps no value."""
    files: dict[str, str] = {}
    """Files that the server copies into the workspace: path there, and path here relative to the TOML."""
    roots: list[str] = []
    """Folders that the sandbox shows read-only; your home folder and its parents are refused."""
    network: bool = False
    """Give the agent this machine's whole network; the setting allow_fetch must permit it. `address` needs none."""
    timeout_s: float = Field(default=600.0, gt=0, le=6 * 3600)
    """Seconds after which the server ends one call."""
    output_bytes: int = Field(default=1 << 20, ge=1 << 10, le=16 << 20)
    """Largest output of one call."""
    memory_bytes: int = Field(default=4 << 30, ge=64 << 20)
    """Memory limit of the agent's sandbox."""
    model: str = ""
    """Model that the agent is told to use; empty: its own default."""
    turns: int = Field(default=30, ge=1, le=1000)
    """Model requests of one call (`{turns}`), if the command takes such a limit. In agent mode also the tool calls of
    one call, after which the tools tell the agent to end."""
    decoding: Decoding = {}
    """Settings such as temperature, top_p and max_tokens, each a placeholder of its name. Client chat sends them to its
    model; client claude takes max_tokens alone."""
    steps: dict[str, StepSettings] = {}
    """Settings of single steps, by the beginning of their names: specification, build-plan, test-plan, code, session,
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
    """Failed answers of each role that writes before the first candidate."""
    compile: int = Field(default=4, ge=1, le=1000)
    """Candidates that do not compile."""
    correctness: int = Field(default=4, ge=1, le=1000)
    """Candidates that are incorrect."""
    performance: int = Field(default=4, ge=1, le=1000)
    """Correct candidates that miss the target."""
    session: int = Field(default=1, ge=1, le=100)
    """Calls of the agent in agent mode; each prompt has the verdicts so far."""


class PlanTarget(Model):
    """Target at which a run stops, which the worse end of a 95 % interval must reach.

    Without a target a run uses its iterations up.
    """

    speedup: float | None = Field(default=None, gt=0)
    """Speed-up against the reference, geometric mean over the shapes; in mode nccl of the whole program, in mode
    program of the kernel alone."""
    median_us: float | None = Field(default=None, gt=0)
    """Median time of one call at the last shape."""


class Budget(Model):
    """Limits of what a run may cost in all."""

    wall_s: float | None = Field(default=None, gt=0)
    """Seconds of all steps, over all resumptions."""
    agent_calls: int = Field(default=200, ge=1)
    """Calls of the agent."""
    cost_usd: float | None = Field(default=None, gt=0)
    """US dollars that the agent reports; an agent that reports none has no limit."""


class SuiteBudget(Model):
    """Limits for all runs of a suite together: no further problem is begun once one of these is spent."""

    agent_calls: int | None = Field(default=None, ge=1)
    """Calls of agents."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens that agents report; an agent that reports none has no limit."""
    cost_usd: float | None = Field(default=None, gt=0)
    """US dollars that agents report; an agent that reports none has no limit."""
    gpu_s: float | None = Field(default=None, gt=0)
    """GPU seconds of the jobs that judge and profile."""


class Population(Model):
    """Options of population mode, with GEAK's names."""

    ancestor_num: int = Field(default=3, ge=1, le=20)
    """Ancestors in a prompt, in ascending latency."""
    descendant_num: int = Field(default=4, ge=1, le=32)
    """Offspring of one round."""
    rounds: int = Field(default=3, ge=1, le=1000)
    """Rounds of the run."""
    seed: str | None = None
    """File of the first ancestor. If it has EVOLVE-BLOCKs, only their lines may change."""


class Tuning(Model):
    """Options of sweeping the parameters of `[tune]`."""

    source: str | None = None
    """File whose parameters mode tune sweeps, relative to the TOML."""
    constraints: list[Annotated[str, Field(min_length=1, max_length=400)]] = Field(default=[], max_length=32)
    """Conditions that a point must meet, over the parameters' names: `BLOCK_M * BLOCK_N <= 16384`."""
    trials: int = Field(default=64, ge=1, le=10_000)
    """Points to try at most; optuna's TPE samples a larger space."""


class ProgramSpeedup(Model):
    """Options of mode program: the command to make faster, the part to replace, the measurement."""

    command: Annotated[list[str], Field(max_length=1000)] = []
    """The program's benchmark as its folder has it: a Python interpreter, then a script, -m or -c, with arguments."""
    target: Annotated[str, Field(max_length=200)] = ""
    """Operator, function or module to replace, as capture_problem takes it. Absent: the agent chooses by hot spots."""
    outputs: Annotated[list[str], Field(max_length=8)] = []
    """Output files whose numbers must stay; stdout if absent."""
    warm_s: float = Field(default=0.0, ge=0, le=1700)
    """Seconds of the program that find_hotspots leaves out first."""
    sets: int = Field(default=8, ge=1, le=32)
    """Most sets of shapes and values that become cases of the problem."""
    pairs: int = Field(default=8, ge=6, le=60)
    """Pairs of runs of one measurement, without and with the kernel."""
    run_s: float = Field(default=300.0, gt=0, le=1700)
    """Limit of one run."""
    rtol: float = Field(default=1e-3, ge=0)
    """Relative tolerance of the program's outputs."""
    atol: float = Field(default=1e-6, ge=0)
    skip_unsteady: bool = False
    """Leave out numbers that differ between runs without the kernel, such as times."""


class RunPlan(Model):
    """The whole plan of one run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$")]
    """Name of the run and of its report."""
    mode: Mode = "structured"
    """Loop that the run follows (docs/how-to/headless-runs.md)."""
    problem: Annotated[str, Field(max_length=200)] = ""
    """Problem_id, or a problem's file relative to the TOML. Mode nccl takes the program's main file, mode project a
    folder to start from, or nothing, mode program the program's folder or a workspace_id."""
    accept_degenerate: bool = False
    """Take problems whose answer needs no work; verdicts say so, and no score counts them."""
    basis: Basis = "device"
    """Time that ranks, of a problem's file: as a problem's own. Suites of KernelBench's problems take `kernelbench`."""
    language: CandidateLanguage = "cuda"
    """Language of the candidates."""
    recipe: Short | None = None
    """Role or procedure of agent_recipes that begins the prompts. Default: coder; optimize-kernel in agent mode;
    nccl-device-transform in mode nccl."""
    request: str = Field(default="", max_length=20_000)
    """Task for the analyst, such as "a matrix product in CUDA C++ with tests"."""
    host: str | None = None
    """Host that judges; absent: the server chooses one."""
    flags: list[str] = []
    """Compiler flags of every candidate."""
    tier: Tier | Literal["compile"] = "performance"
    """Below `performance` nothing is timed, and the run ends with the first correct candidate. `compile` runs nothing,
    for devices that no host has, and ends with the first candidate that compiles."""
    fresh: bool = False
    """Judge an identical request again; else the server answers it with the kept verdict."""
    accept_provisional: bool = False
    """Count unconfirmed times for the target; else the run confirms its best and each candidate that reaches it."""
    entry: str = "launch"
    """Function that a candidate defines."""
    roles: list[Literal["builder", "tester"]] = []
    """Roles that structured mode asks after the analyst. The builder gives flags and launcher for every candidate,
    which the server checks; the tester gives cases for the coder."""
    agent: AgentCommand = AgentCommand()
    """Command that calls the agent; every mode but tune needs it."""
    iterations: Iterations = Iterations()
    """Failures at each stage after which the run ends."""
    target: PlanTarget = PlanTarget()
    """Target at which the run stops."""
    budget: Budget = Budget()
    """Limits of the run's cost."""
    suite: SuiteBudget = SuiteBudget()
    """Limits for all runs of a suite together."""
    population: Population = Population()
    """Options of population mode."""
    tune: dict[ParameterName, Values] = Field(default={}, max_length=20)
    """Values of macros, or of a Python module's constants. The server judges every combination without the agent. Mode
    tune does nothing else; modes structured and population sweep their best if the target is missed."""
    tuning: Tuning = Tuning()
    """Options of the sweep over `tune`."""
    nccl: NcclPipelineOptions = NcclPipelineOptions()
    """Start of the program, and depth of each stage's verification."""
    program: ProgramSpeedup = ProgramSpeedup()
    """Command to make faster in mode program, and how the whole is measured."""
    hints: dict[HintKind, list[str]] = {}
    """Hints for prompts: `research` when an error repeats, `diversity` one for each candidate in turn, others at their
    stage."""
    reference_code: list[str] = []
    """Files to start from, shown in the first prompt."""
    documents: list[str] = []
    """Files of API documentation, shown in the first prompt."""
    pass_string: str = ""
    """Text that the seed's own test prints when it passes. The agent is told it; the server does not believe it."""
    history: int = Field(default=6, ge=0, le=50)
    """Number of earlier candidates in a prompt, with their parameters."""

    @property
    def procedure(self) -> str:
        """The recipe, or the one of this mode."""
        own = {"agent": "optimize-kernel", "nccl": "nccl-device-transform"}
        return self.recipe or own.get(self.mode, "coder")

    def names_known_problem(self) -> bool:
        """Say whether `problem` is an id of the store, not a path."""
        known = {"program": "w-"}.get(self.mode, "" if self.mode in WITHOUT_PROBLEM else "p-")
        return bool(known) and self.problem.startswith(known)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.mode != "project" and not self.problem:
            raise ValueError(f"mode {self.mode} needs a problem")
        if self.mode == "project" and not self.request:
            raise ValueError("mode project needs a request: describe in words the program to build")
        if self.mode == "program" and not self.program.command:
            raise ValueError("mode program needs program.command: how the program's benchmark is started")
        if self.mode == "program" and self.tier != "performance":
            raise ValueError(f"mode program needs tier performance: tier {self.tier} times nothing")
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
