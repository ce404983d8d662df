"""Problems: a reference, its shapes, its tolerance."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from gpu_mcp_server.models._base import Model, PagedModel, ResultModel
from gpu_mcp_server.models.build import CandidateLanguage
from gpu_mcp_server.models.program import ProgramInfo, ProgramProblem
from gpu_mcp_server.text_safety import join_lines

DType = Literal[
    "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool",
    "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "int16", "uint16", "uint32", "complex64",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip
"""By torch's names; of float4 an element is a byte of two codes. complex64 and the last three are inputs' alone."""
Basis = Literal["device", "call", "kernelbench"]
"""What a GPU's times are: on the GPU alone, of calls in a loop of the host's, with what launching takes, or of each
call by itself behind a sweep of the cache, as by KernelBench's events around it."""
Requirement = Literal[
    "fp4 tensor core", "fp8 tensor core", "fp16 tensor core", "bf16 tensor core", "tf32 tensor core",
    "int8 tensor core", "fp64 tensor core",
]  # fmt: skip
"""Kinds of instructions that a problem may require, by the type of their operands."""
Requirements = Annotated[list[Requirement], WithJsonSchema({"type": "array"})]
"""The schema leaves its words out, for every conversation would pay; a wrong one is refused with those there are."""
Ties = Annotated[Literal["any", "reference"], WithJsonSchema({})]
"""Likewise."""
Symbol = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")]


class TensorSpec(Model):
    """A tensor in row-major order."""

    name: Symbol
    dtype: DType
    shape: list[Symbol | int]
    """Each dimension a symbol that the shapes give a value, or a number."""
    distribution: Literal[
        "normal", "uniform", "offset", "outliers", "zeros", "large", "integers", "full", "made", "weights"
    ] = "normal"
    """How inputs are drawn: normal(0,1), uniform[0,1), offset = normal+3, outliers = normal with 1 in 1000 times 100,
    large = normal*1e3, integers = 0..99; made and weights: by a module problem's own code. Ignored for outputs.
    Whole numbers go by their type, unless they are zeros: int8 and uint8 have all its values, int32 and int64 0..99, or
    with full all of theirs."""


class ImportOverrides(Model):
    """Values that replace those of an imported file."""

    rtol: float | None = Field(default=None, ge=0)
    atol: float | None = Field(default=None, ge=0)
    distribution: Literal["normal", "uniform", "offset", "outliers", "large"] | None = None
    """Of all inputs of floats."""
    distributions: Literal["all", "declared"] = "all"
    """Which inputs candidates are tried with; of lower precision, `atol` is too narrow where values are large."""
    robust: Literal["reported", "required"] = "reported"
    """required: what is wrong with inputs of another distribution than declared is incorrect."""
    libraries: Literal["allowed", "forbidden"] = "allowed"
    """Whether a candidate may leave the work to torch's own kernels."""
    ties: Ties = "any"
    """As `Problem.ties`."""
    requires: Requirements = []
    """As `Problem.requires`."""
    basis: Basis = "device"
    """As `Problem.basis`."""
    tolerance: Literal["by type", "first release"] = "by type"
    """Of a KernelBench problem, where atol and rtol do not say it: by type, as KernelBench has it since 2025 (1e-4 for
    float32, 1e-2 for float16 and bfloat16), or 1e-2 for all types, as in its first release; each absolute and relative.

    Source:
        https://github.com/ScalingIntelligence/KernelBench, src/kernelbench/eval.py: get_tolerance_for_precision, and
        the comment of run_and_check_correctness on v0 and v0.1 (at 423217d).
    """
    accept_degenerate: bool = False
    """Take a problem of which an answer without work is right; its verdicts say so, and no score counts them."""
    max_bytes: int | None = Field(default=None, ge=1)
    """Of a suite's problem: leave out cases whose tensors take more, where the host has no room or time for them."""
    copy_state: bool = False
    """Of a KernelBench file: whether a ModelNew gets the problem's weights where names and shapes match. Otherwise
    they are what its own `__init__` makes after the common seed."""


class TrialOptions(Model):
    """Options of untimed trials of a candidate, besides the declared shapes."""

    constraints: list[str] = []
    """What secretly tried shapes must comply with: `cols % 4 == 0`, `k <= n`, `oh == (h - 3) // 2 + 1`."""
    fixed_shapes: bool = False
    """Try the declared shapes alone."""
    distributions: Literal["all", "declared"] = "all"
    """Inputs tried besides."""
    robust: Literal["reported", "required"] = "reported"
    """required: what is wrong with these is incorrect; else it is told beside the verdict."""
    precision: Literal["tolerance", "strict"] = "tolerance"
    """strict: errors coarser than the type's own fail."""
    ties: Ties = "any"
    """reference: among equals its choice alone is right, as of a stable sort."""
    backward: bool = False
    """Gradients are answers too: for each output y of floats there is an input d_y, for each input x an output grad_x.
    torch only."""
    libraries: Literal["allowed", "forbidden"] = "allowed"
    """forbidden: an answer that stays right while the candidate's own kernels do nothing fails."""
    requires: Requirements = []
    """As `Problem.requires`."""
    flops: str | None = None
    """Operations that no right answer can do without, over the symbols: `2 * m * n * k`; a faster clock is void."""
    bytes: str | None = None
    """Bytes that every right answer must move, likewise; else the outputs' own count."""
    basis: Basis = "device"
    """As `Problem.basis`."""


class RegistrationOptions(TrialOptions):
    """Options of a registration besides the problem itself."""

    accept_degenerate: bool = False
    """Take a problem of which an answer without work is right; its verdicts say so, and no score counts them."""


class Implementation(Model):
    """A candidate that comes with its problem."""

    language: CandidateLanguage
    source: str = Field(min_length=1, max_length=2**20)
    entry: str = "launch"
    flags: tuple[str, ...] = ()


class ImplementationChange(ResultModel):
    """Result of changing a problem's implementation."""

    problem_id: str
    name: str
    done: Literal["added", "replaced", "removed"]
    implementations: list[str]
    """All that the problem has now."""

    def summary(self) -> str:
        """Say so."""
        left = ", ".join(self.implementations) or "none"
        return f"{self.done} {self.name}; {self.problem_id} has {left}; evaluate_kernels judges them by name"


class InputLayout(Model):
    """Layout of an input by a module problem's own code, where that is not row-major order in memory of its own."""

    strides: list[int] | None = None
    """In elements."""
    offset: int = 0
    """Of the first element from the start of the memory, in elements."""
    elements: int | None = None
    """Of the memory; None where another input owns it."""
    of: int | None = None
    """Position of the first input in the same memory, if that is another one."""
    requires_grad: bool = False


class Problem(Model):
    """A problem as it is stored; its id is the hash of its content."""

    problem_id: str
    content_hash: str
    """sha256 over what is asked for, not name, description and implementations; stands in every verdict."""
    name: str
    description: str = ""
    kind: Literal["function", "module", "program"] = "function"
    """function: `entry` takes the inputs and returns the outputs. module: KernelBench's `Model`. program: `program`."""
    framework: Literal["numpy", "torch", "program"]
    entry: str
    """Function of the reference source; takes the inputs in order, returns the outputs (one, or a tuple)."""
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    shapes: list[dict[str, int]]
    """Each gives every symbol a value."""
    rtol: float
    atol: float
    reference: str
    """Python source."""
    constraints: list[str] = []
    """What every shape complies with, the hidden ones too: `cols % 4 == 0`, `rows >= 2`, `k <= n`."""
    fixed_shapes: bool = False
    """Candidates are tried at the declared shapes alone."""
    distributions: Literal["all", "declared"] = "all"
    """With which inputs candidates are tried, besides the timed calls."""
    robust: Literal["reported", "required"] = "reported"
    """Whether what is wrong with inputs that are not as declared is incorrect; strict precision requires it too."""
    precision: Literal["tolerance", "strict"] = "tolerance"
    """Whether errors like those of a lower precision fail even within the tolerance."""
    ties: Ties = "any"
    """Whether any of equal elements may be chosen, and a value on the edge of rounding fall to either side of it."""
    libraries: Literal["allowed", "forbidden"] = "allowed"
    """Whether a candidate may fall back to torch's own kernels, cuBLAS and the like."""
    requires: Requirements = []
    """Kinds of instructions of which a correct candidate's machine code must have at least one each."""
    backward: int = 0
    """How many inputs the reference's function takes, where its gradients are answers too: behind them are cotangents,
    and behind its outputs the gradients."""
    implementations: dict[str, Implementation] = {}
    """Known candidates by name, such as naive, triton or cute; evaluate_kernels judges them."""
    program: ProgramProblem | None = None
    """Where the reference is a whole program; it has no tensors and no shapes then."""
    flops: str | None = None
    """Operations that no right answer can do without, over the symbols; a multiply-add is two."""
    bytes: str | None = None
    """Bytes that every right answer must move; without it the outputs' own."""
    basis: Basis = "device"
    """Which time of a call ranks on a GPU. device: on the GPU alone, where it can be had. call: in a loop of the
    host's, with what launching takes. kernelbench: by events around each call. On a processor all are the same; a
    program's time is that of its process."""

    degenerate: Literal["", "constant", "copy"] = ""
    """Which answer without work is right, where the problem was accepted although one is."""
    state: list[str] = []
    """Of a module: names of the weights, which are the last inputs."""
    constants: dict[str, float | int | bool | str | None] = {}
    """Of a module: arguments that are no tensors, by their position."""
    layouts: dict[str, InputLayout] = {}
    """Of a module: inputs that are laid out otherwise, by their position among the tensors."""
    copy_state: bool = False
    """Of a module: whether a ModelNew is given the problem's weights."""
    adapter: dict[str, Any] = {}
    """Of a module that a suite publishes in a form of its own: `kind` says which, the rest was found out of it."""
    files: dict[str, str] = {}
    """Texts beside the reference, by name."""
    cases: list[dict[str, Any]] = []
    """What each shape is to the suite; a shape's `case` counts them from 1."""
    case_layouts: list[dict[str, InputLayout]] = []
    """`layouts` of each case."""
    case_constants: list[dict[str, float | int | bool | str | None]] = []
    """`constants` of each case."""
    scalars: list[str] = []
    """Whole numbers beside the tensors that differ from case to case: symbols, which launchers get last."""

    def symbols(self) -> list[str]:
        """Return the dimension symbols in order of first use, inputs first."""
        seen: dict[str, None] = {}
        for tensor in [*self.inputs, *self.outputs]:
            for dimension in tensor.shape:
                if isinstance(dimension, str):
                    seen[dimension] = None
        return list({**seen, **dict.fromkeys(self.scalars)})


DEGENERATE = {
    "constant": "degenerate problem: the answer is constant",
    "copy": "degenerate problem: a copy of an input is right",
}
"""What every verdict on such a problem says."""


REGISTERED = {"new": "new", "already": "registered before"}
"""Words for how a problem came to be registered."""


class ProblemInfo(ResultModel):
    """A problem as an agent sees it."""

    problem_id: str
    name: str
    description: str = ""
    content_hash: str
    framework: str
    launcher_c: str = ""
    """What a C candidate must define; C++ puts extern "C" before it. float16 and bfloat16 are passed as their bits."""
    launcher_cuda: str = ""
    """What a CUDA candidate must define."""
    launcher_python: str = ""
    """What a Python candidate must define."""
    tensors: str = ""
    """Inputs and outputs with their types and shapes."""
    rules: list[str] = []
    """What holds for a candidate besides its signature."""
    program: ProgramInfo | None = None
    """Where a candidate is a program."""
    shapes: Sequence[Mapping[str, int | float | str]]
    """Or a program's cases."""
    rtol: float
    atol: float
    conditions: list[str] = []
    """Constraints on shapes, and what is tried otherwise than usual."""
    registered: Literal["new", "already"] | None = None
    trivial_answers_tried: list[str] | None = None
    """Answers that must fail, and did."""
    notes: list[str] = []
    """Notes from the trial of the reference."""
    implementations: list[str] = []
    """Named ones that come with the problem, for evaluate_kernels."""
    attempts: int | None = None
    best: str | None = None
    """Best attempt so far, a device each."""

    def _candidate(self) -> list[str]:
        if self.program is not None:
            return [self.program.summary()]
        return [
            f'C candidate: {self.launcher_c}  (C++: extern "C" before it)',
            f"CUDA candidate: {self.launcher_cuda}",
            f"Python candidate: {self.launcher_python}",
        ]

    def summary(self, *, whole: bool = True) -> str:
        """Say what a candidate must define; `whole` with all that holds for it besides."""
        return join_lines(
            [
                f"problem {self.problem_id} {self.name}"
                + (f" ({REGISTERED[self.registered]})" if self.registered else ""),
                *([self.description] if self.description else []),
                *self._candidate(),
                *(self.rules if whole else []),
                *([f"tensors: {self.tensors}"] if self.tensors else []),
                f"shapes: {_shapes_text(self.shapes)}; rtol {self.rtol:g}, atol {self.atol:g}; "
                f"reference in {self.framework}",
                *([f"conditions: {'; '.join(self.conditions)}"] if self.conditions else []),
                *(
                    [f"trivial answers that fail, as they must: {', '.join(self.trivial_answers_tried)}"]
                    if self.trivial_answers_tried
                    else []
                ),
                *([f"implementations: {', '.join(self.implementations)}"] if self.implementations else []),
                *(f"note: {note}" for note in self.notes),
                *([f"attempts: {self.attempts}"] if self.attempts is not None else []),
                *([f"best: {self.best}"] if self.best else []),
            ]
        )


class ProblemList(PagedModel, ResultModel):
    """Registered problems."""

    problems: list[ProblemInfo]

    def summary(self) -> str:
        """List them."""
        if self.offset and not self.problems:
            return f"no problems behind {self.offset}"
        if not self.problems:
            return "no problems yet; register_problem makes one"
        whole = len(self.problems) == 1 and self.total in (None, 1)
        said = [p.summary(whole=whole) for p in self.problems]
        said += [] if whole else ["More rules for candidates: list_problems with a problem_id."]
        page = self.page_text(len(self.problems))
        return "\n\n".join(said) + (f"\n{page}" if page else "")


def _shapes_text(shapes: Sequence[Mapping[str, int | float | str]]) -> str:
    return "; ".join(", ".join(f"{name}={size}" for name, size in dims.items()) or "the only one" for dims in shapes)
