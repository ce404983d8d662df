"""Our own format: `problem.toml` has the arguments of register_problem, its reference inside or beside it."""

import tomllib
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models._base import Model, describe_faults
from gpu_mcp_server.models.build import CandidateLanguage
from gpu_mcp_server.models.problem import Implementation, Problem, TensorSpec, TrialOptions
from gpu_mcp_server.services.problems import reference_source
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.problem_table import Problems

TITLE = "problem.toml (the arguments of register_problem)"
MAIN_FILES = ("problem.toml",)
TELLING = ("inputs", "outputs", "shapes")


class ImplementationToml(Model):
    """A named implementation; its source inside or beside the problem's file."""

    language: CandidateLanguage
    source: str | None = None
    path: str | None = None
    entry: str = "launch"
    flags: tuple[str, ...] = ()

    async def read(self, source: ProblemSource, name: str) -> Implementation:
        """Return it with its text.

        Raises:
            BadRequest: If it has no source, or two.
        """
        if (self.source is None) == (self.path is None):
            raise BadRequest(f"implementations.{name} needs either source or path.", hint="Give one of them.")
        text = self.source if self.source is not None else await source.sibling_text(self.path or "")
        return Implementation(language=self.language, source=text, entry=self.entry, flags=self.flags)


class ProblemToml(Model):
    """Schema of a `problem.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str = ""
    framework: str | None = None
    """Its reference's, if absent."""
    entry: str | None = None
    """`reference`, or the only public function, if absent."""
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    shapes: list[dict[str, int]]
    rtol: float
    atol: float
    reference: str | None = None
    """Python text."""
    reference_path: str | None = None
    """File beside it; `reference.py` if neither is given."""
    trials: TrialOptions = TrialOptions()
    implementations: Mapping[str, ImplementationToml] = Field(default={})
    """Named candidates that come with the problem: naive, triton, cute ..."""


def _table(text: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def recognizes(source: ProblemSource) -> bool:
    """Say whether it is TOML with tensors, or has our name."""
    return source.name in MAIN_FILES or all(name in _table(source.text) for name in TELLING)


def why_not_toml(source: ProblemSource) -> str:
    """Return why a file that looks like TOML is none; empty for any other."""
    if not source.name.endswith(".toml") and not all(name in source.text for name in TELLING):
        return ""
    try:
        tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        return f"it is not TOML: {error}"
    return ""


async def problem(source: ProblemSource) -> Problem:
    """Return the problem.

    Raises:
        BadRequest: If it is no TOML, a field is missing, unknown or wrong, or the reference is given twice.
    """
    try:
        given = ProblemToml.model_validate(tomllib.loads(source.text))
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{source.name or 'The text'} is no TOML: {error}.", hint="Correct it.") from error
    except ValidationError as error:
        faults = error.errors(include_url=False)
        text, hint = describe_faults(ProblemToml, faults)
        names = dict.fromkeys(str(each["loc"][-1]) for each in faults if len(each["loc"]) == 1)
        inside = "".join(f" {name} is a key of [trials]." for name in names if name in TrialOptions.model_fields)
        raise BadRequest(f"{source.name or 'The problem'}: {text}.", hint=hint + inside) from error
    if given.reference is not None and given.reference_path is not None:
        raise BadRequest("reference and reference_path are both given.", hint="Leave one of them out.")
    reference = given.reference
    if reference is None:
        reference = await source.sibling_text(given.reference_path or "reference.py")
    framework = given.framework or reference_source.framework_of(reference)
    entry = given.entry or reference_source.read(reference).entry
    return Problems.make_problem(
        given.name, given.description, framework, entry, given.inputs, given.outputs, given.shapes,
        given.rtol, given.atol, reference, **given.trials.model_dump(),
        implementations={name: await each.read(source, name) for name, each in given.implementations.items()},
    )  # fmt: skip
