"""Problems: what is to be computed, checked once and then known by the hash of its content."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import ValidationError

from gpu_mcp_server.errors import BadRequest, LimitExceeded, NotFound
from gpu_mcp_server.models.problem import (
    DEGENERATE,
    Implementation,
    ImplementationChange,
    Problem,
    ProblemInfo,
    TensorSpec,
)
from gpu_mcp_server.models.program import ProgramProblem
from gpu_mcp_server.services.problems.implementation_table import Implementations
from gpu_mcp_server.services.problems.launcher_signatures import (
    C_TYPES,
    c_launcher,
    candidate_rules,
    cuda_launcher,
    python_launcher,
    tensors_of,
    with_gradients,
)
from gpu_mcp_server.services.problems.problem_identity import RULE, name_by_content
from gpu_mcp_server.services.problems.program_problems import check_program, info_of
from gpu_mcp_server.services.problems.reference_source import check_reference
from gpu_mcp_server.services.problems.shape_expressions import check_constraints, check_formula
from gpu_mcp_server.services.problems.tensor_sizes import FOREIGN, MAX_SHAPE_BYTES, shape_bytes
from gpu_mcp_server.store.database import LARGEST_INTEGER, Database
from gpu_mcp_server.store.ownership import claim, visibility_condition
from gpu_mcp_server.store.problem_aliases import current_problem_id

MADE = ("made", "weights")
"""Inputs that a module problem's own code makes."""
WIDENED = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
"""Types that strict precision compares against double precision; of inputs all but float64 have less than that."""
MAX_SHAPES = 500
MAX_TENSORS = 16

BASES = {
    "call": "a GPU's time is that of a call in a loop, with launching",
    "kernelbench": "a GPU's time is that of each call by itself, by events around it",
}
"""What is said of a basis that is not the usual one."""
C_WORDS = frozenset(
    """alignas alignof and asm auto bitand bitor bool break case catch char class compl concept const continue decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int
    launch long mutable namespace new noexcept not nullptr operator or private protected public register requires
    restrict return short signed sizeof static stream struct switch template this throw true try typedef typeid
    typename union unsigned using virtual void volatile wchar_t while xor""".split()  # noqa: SIM905 - a table of words
)


class Problems:
    """Registered problems."""

    def __init__(self, db: Database) -> None:
        self._db, self.implementations = db, Implementations(db)

    async def add(self, problem: Problem) -> Literal["new", "already"]:
        """Keep a problem; the same content is kept once, under its first name, and gets the implementations too."""
        stored = problem.model_copy(update={"implementations": {}})
        changed = await self._db.execute(
            "INSERT INTO problems (problem_id, content_hash, created_at, json, rule) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (problem.problem_id, problem.content_hash, datetime.now(UTC).isoformat(), stored.model_dump_json(), RULE),
        )
        await claim(self._db, problem.problem_id)
        for name, implementation in problem.implementations.items():
            await self.implementations.put(problem.problem_id, name, implementation)
        return "new" if changed else "already"

    async def get(self, problem_id: str) -> Problem:
        """Return a problem with the implementations that the current user sees, by its id or one that it had before.

        Raises:
            NotFound: If no problem has this id.
        """
        problem_id = await current_problem_id(self._db, problem_id)
        seen, values = visibility_condition("problem_id")
        sql = f"SELECT json FROM problems WHERE problem_id = ? AND {seen}"  # noqa: S608
        row = await self._db.fetch_one(sql, (problem_id, *values))
        if row is None:
            raise NotFound(
                "problem", problem_id, hint="list_problems shows those there are; register_problem makes one."
            )
        problem = Problem.model_validate_json(row["json"])
        return problem.model_copy(update={"implementations": await self.implementations.list_visible(problem_id)})

    async def change_implementation(
        self, problem_id: str, name: str, given: Implementation | None
    ) -> ImplementationChange:
        """Add an implementation to a problem, replace the current user's own of this name, or with None remove it.

        Raises:
            NotFound: If there is no such problem, or nothing to remove.
            BadRequest, LimitExceeded: As `Implementations.put` does.
        """
        problem_id, done = (await self.get(problem_id)).problem_id, "removed"
        if given is None:
            await self.implementations.remove(problem_id, name)
        else:
            done = "replaced" if await self.implementations.put(problem_id, name, given) else "added"
        left = list(await self.implementations.list_visible(problem_id))
        return ImplementationChange.model_validate(
            {"problem_id": problem_id, "name": name, "done": done, "implementations": left}
        )

    async def list(self, limit: int = 50, offset: int = 0) -> Sequence[Problem]:
        """Return the newest problems, newest first, behind the first `offset`."""
        seen, values = visibility_condition("problem_id")
        sql = f"SELECT json FROM problems WHERE {seen} ORDER BY seq DESC LIMIT ? OFFSET ?"  # noqa: S608
        rows = await self._db.fetch_all(sql, (*values, limit, min(offset, LARGEST_INTEGER)))
        return [Problem.model_validate_json(row["json"]) for row in rows]

    async def count(self) -> int:
        """Return how many there are."""
        seen, values = visibility_condition("problem_id")
        row = await self._db.fetch_one(f"SELECT count(*) AS problems FROM problems WHERE {seen}", values)  # noqa: S608
        return row["problems"] if row else 0

    @staticmethod
    def make_problem(
        name: str,
        description: str,
        framework: str,
        entry: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        shapes: Sequence[Mapping[str, int]],
        rtol: float,
        atol: float,
        reference: str,
        constraints: Sequence[str] = (),
        fixed_shapes: bool = False,
        distributions: str = "all",
        precision: str = "tolerance",
        libraries: str = "allowed",
        backward: bool = False,
        flops: str | None = None,
        bytes: str | None = None,
        implementations: Mapping[str, Implementation] | None = None,
        robust: str = "reported",
        basis: str = "device",
        requires: Sequence[str] = (),
        ties: str = "any",
    ) -> Problem:
        """Check what was given and name it by its content; nothing is run.

        Raises:
            BadRequest: If anything does not fit together; says which.
            LimitExceeded: If the reference has more than 1 MiB or a shape more than 1 GiB.
        """
        forward = len(inputs)
        if backward:
            inputs, outputs = with_gradients(framework, inputs, outputs)
        content = {
            "name": name.strip(),
            "description": description.strip(),
            "framework": framework,
            "entry": entry,
            "inputs": list(inputs),
            "outputs": list(outputs),
            "shapes": [dict(shape) for shape in shapes],
            "rtol": rtol,
            "atol": atol,
            "reference": reference,
            "constraints": [" ".join(text.split()) for text in constraints],
            "fixed_shapes": fixed_shapes,
            "distributions": distributions,
            "robust": robust,
            "precision": precision,
            "ties": ties,
            "libraries": libraries,
            "requires": list(requires),
            "backward": forward if backward else 0,
            "flops": flops,
            "bytes": bytes,
            "basis": basis,
            "implementations": dict(implementations or {}),
        }
        draft = _drafted(content)
        _check(draft)
        return name_by_content(draft)

    @staticmethod
    def make_program(name: str, description: str, program: ProgramProblem, rtol: float, atol: float) -> Problem:
        """Check a program problem and name it by its content; nothing is built or run.

        Raises:
            BadRequest, LimitExceeded: As `make_problem` does.
        """
        draft = Problem(
            problem_id="p-", content_hash="", name=name.strip(), description=description.strip(), kind="program",
            framework="program", entry="", inputs=[], outputs=[], shapes=[], rtol=rtol, atol=atol, reference="",
            program=program,
        )  # fmt: skip
        _check_numbers(draft)
        check_program(program)
        return name_by_content(draft)

    @staticmethod
    def info(problem: Problem) -> ProblemInfo:
        """Return what a candidate must define, and what it is judged by."""
        if problem.program is not None:
            return _program_info(problem, problem.program)
        return ProblemInfo(
            problem_id=problem.problem_id,
            name=problem.name,
            description=problem.description,
            content_hash=problem.content_hash,
            framework=problem.framework,
            launcher_c=c_launcher(problem),
            launcher_cuda=cuda_launcher(problem),
            launcher_python=python_launcher(problem),
            tensors=tensors_of(problem),
            rules=candidate_rules(problem),
            shapes=problem.shapes,
            rtol=problem.rtol,
            atol=problem.atol,
            conditions=_conditions(problem),
            implementations=list(problem.implementations),
        )


def _program_info(problem: Problem, program: ProgramProblem) -> ProblemInfo:
    return ProblemInfo(
        problem_id=problem.problem_id,
        name=problem.name,
        description=problem.description,
        content_hash=problem.content_hash,
        framework=problem.framework,
        program=info_of(program),
        shapes=program.cases,
        rtol=problem.rtol,
        atol=problem.atol,
    )


def _drafted(content: Mapping[str, object]) -> Problem:
    """Return a problem that has no name by its content yet; its fields have their types."""
    try:
        return Problem.model_validate({**content, "problem_id": "p-", "content_hash": ""})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadRequest(f"{where}: {first['msg']}.", hint="Correct it and register the problem again.") from error


def degenerate_problem(problem: Problem, degenerate: str) -> Problem:
    """Return a problem of which an answer without work is right, named as such."""
    return name_by_content(_drafted({**problem.model_dump(), "degenerate": degenerate}))


def _conditions(problem: Problem) -> list[str]:
    said = [DEGENERATE[problem.degenerate]] if problem.degenerate else []
    said += ["right is what the problem's own check takes"] if problem.adapter.get("checker") else []
    if any("tolerance" in case for case in problem.cases):
        said += [
            "every element within the strictest of its tolerances; a wrong answer's reason has the suite's own rule"
        ]
    said += problem.constraints
    said += [f"argument {i} of forward is {value!r}" for i, value in problem.constants.items()]
    said += ["the last inputs are weights"] if problem.state else []
    laid = [problem.inputs[int(at)].name for at, layout in problem.layouts.items() if layout.strides is not None]
    said += (
        [f"not in row-major order, see tensors: {', '.join(laid)}; a launcher gets the first element"] if laid else []
    )
    said += ["a ModelNew is given the problem's weights"] if problem.copy_state else []
    said += ["no hidden shapes"] if problem.fixed_shapes else []
    said += ["declared distributions only"] if problem.distributions == "declared" else []
    said += ["gradients are answers too: d_ are cotangents, grad_ gradients"] if problem.backward else []
    said += ["no fall-back to libraries"] if problem.libraries == "forbidden" else []
    said += [f"machine code with instructions of: {', '.join(problem.requires)}"] if problem.requires else []
    said += ["right with every distribution, not the declared one alone"] if problem.robust == "required" else []
    said += ["strict precision"] if problem.precision == "strict" else []
    said += ["among equals the reference's choice"] if problem.ties == "reference" else []
    said += [BASES[problem.basis]] if problem.basis in BASES else []
    said += [f"at least {problem.flops} operations"] if problem.flops else []
    return [*said, f"at least {problem.bytes} bytes moved"] if problem.bytes else said


def _check(problem: Problem) -> None:
    """Check what types do not say: that everything fits together."""
    _check_numbers(problem)
    _check_tensors(problem)
    _check_shapes(problem)
    check_constraints(problem)
    _check_precision(problem)
    for what, formula in (("flops", problem.flops), ("bytes", problem.bytes)):
        if formula is not None:
            check_formula(formula, what, problem.shapes)
    check_reference(problem)


def _check_numbers(problem: Problem) -> None:
    if not problem.name or len(problem.name) > 200 or len(problem.description) > 8000:
        raise BadRequest(
            "A problem needs a name of 1 to 200 characters and a description of at most 8,000.", hint="Change it."
        )
    for name, value in (("rtol", problem.rtol), ("atol", problem.atol)):
        if not math.isfinite(value) or value < 0:
            raise BadRequest(f"{name} is {value}; it must be a finite number, 0 or more.", hint="1e-5 suits float32.")


def _check_tensors(problem: Problem) -> None:
    for what, tensors in (("inputs", problem.inputs), ("outputs", problem.outputs)):
        if not 1 <= len(tensors) <= MAX_TENSORS:
            raise BadRequest(f"{what} has {len(tensors)} tensors.", hint=f"Give 1 to {MAX_TENSORS}.")
    if any(tensor.distribution in MADE for tensor in problem.inputs):
        raise BadRequest("An input is drawn as made or weights.", hint="Only a KernelBench problem makes its inputs.")
    if any(tensor.distribution == "full" and tensor.dtype.startswith(("float", "bfloat")) for tensor in problem.inputs):
        raise BadRequest("An input of floats is drawn as full.", hint="full is for whole numbers; large goes far.")
    foreign = next((tensor for tensor in [*problem.inputs, *problem.outputs] if tensor.dtype in FOREIGN), None)
    if foreign is not None:
        pairs = "Declare it as float32 with a last dimension of 2, real and imaginary parts"
        own = "Only the own code of a suite's or KernelBench problem makes such inputs"
        raise BadRequest(
            f"{foreign.name} is {foreign.dtype}, which the judge neither draws nor compares.",
            hint=f"{pairs if foreign.dtype == 'complex64' else own}.",
        )
    names = [tensor.name for tensor in [*problem.inputs, *problem.outputs]] + problem.symbols()
    for name in names:
        if names.count(name) > 1:
            raise BadRequest(
                f"{name!r} names more than one tensor or dimension.",
                hint="Rename one: each is a parameter in C.",
            )
        if name in C_WORDS or name in {*C_TYPES.values(), "cudaStream_t", "NULL", "NAN", "INFINITY", "EOF"}:
            raise BadRequest(f"{name!r} cannot name a parameter in C++.", hint="Choose another name.")


def _check_precision(problem: Problem) -> None:
    """Refuse strict precision where nothing can judge it (`available` of judge/correctness/fp64_reference.py)."""
    if problem.precision != "strict":
        return
    given, answered = ({tensor.dtype for tensor in side} for side in (problem.inputs, problem.outputs))
    without = "Leave precision out: the tolerance alone holds then"
    if not answered & set(WIDENED):
        raise BadRequest("precision is strict, and no output is of floats.", hint=f"{without}.")
    if not given & set(WIDENED) - {"float64"}:
        raise BadRequest(
            "precision is strict, and no input is of floats below float64: nothing is more exact than those.",
            hint=f"{without} and may be tight, or declare inputs as float32.",
        )
    short = sorted(kind for kind in given & set(WIDENED) if kind.startswith(("bfloat", "float8")))
    if problem.framework == "numpy" and short:
        raise BadRequest(
            f"precision is strict, and NumPy has no {', '.join(short)}: it cannot be given double precision.",
            hint=f"Write the reference with torch. {without}.",
        )


def _check_shapes(problem: Problem) -> None:
    if not 1 <= len(problem.shapes) <= MAX_SHAPES:
        raise BadRequest(f"There are {len(problem.shapes)} shapes.", hint=f"Give 1 to {MAX_SHAPES}.")
    symbols = set(problem.symbols())
    if any(isinstance(d, int) and d < 1 for t in [*problem.inputs, *problem.outputs] for d in t.shape):
        raise BadRequest("A dimension of a tensor is below 1.", hint="Dimensions are 1 or more.")
    for dims in problem.shapes:
        if missing := sorted(symbols - set(dims)):
            raise BadRequest(
                f"The shape {dims} gives {', '.join(missing)} no value.",
                hint="Give each symbol a size.",
            )
        if extra := sorted(set(dims) - symbols):
            raise BadRequest(
                f"The shape {dims} names {', '.join(extra)}, which no tensor uses.",
                hint=f"The tensors use {', '.join(problem.symbols()) or 'no symbols'}.",
            )
        if any(size < 1 for size in dims.values()):
            raise BadRequest(f"The shape {dims} has a size below 1.", hint="Sizes are 1 or more.")
        if (size := shape_bytes(problem, dims)) > MAX_SHAPE_BYTES:
            raise LimitExceeded(
                f"The tensors of shape {dims} take {size} bytes; the limit is {MAX_SHAPE_BYTES}.",
                hint="Give smaller sizes.",
            )
        if problem.shapes.count(dims) > 1:
            raise BadRequest(f"The shape {dims} is given twice.", hint="Give each once.")
