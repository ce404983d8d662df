"""Problems of public suites: modules with cases, which a host is asked about once."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import yaml

from gpu_mcp_server.errors import BadRequest, LimitExceeded
from gpu_mcp_server.models.problem import ImportOverrides, Problem
from gpu_mcp_server.services.problems.kernelbench_problems import BY_TYPE
from gpu_mcp_server.services.problems.reference_source import parse_reference

MAX_CASES = 500
MAX_FILES_BYTES = 4 << 20
MAX_LIST = 4096
"""Values of a case that is a list."""
MAX_YAML_VALUES = 100_000


def suite_problem(
    name: str,
    reference: str,
    *,
    kind: str,
    cases: Sequence[Mapping[str, Any]],
    wish: ImportOverrides,
    files: Mapping[str, str] | None = None,
    description: str = "",
    rtol: float | None = None,
    atol: float | None = None,
    **adapter: Any,
) -> Problem:
    """Return a suite's problem before it is known what its cases take.

    Args:
        name: As the suite has it.
        reference: Python source, unchanged.
        kind: The adapter of judge/adapters that reads it.
        cases: Each a shape; equal ones count once.
        wish: What shall be otherwise.
        files: Texts that the reference imports or the adapter reads, by name.
        description: What is computed.
        rtol: Of the suite; absent where its own check says it, or its type.
        atol: Likewise.
        adapter: What else the adapter is told.

    Raises:
        BadRequest: If the reference is no Python, or a case is not values by name.
        LimitExceeded: If there are too many cases, or too much text.
    """
    parse_reference(reference)
    plain = [_checked_case(case) for case in cases]
    distinct = [case for i, case in enumerate(plain) if case not in plain[:i]]
    if not distinct:
        raise BadRequest(f"{name!r} has no cases.", hint="A suite's problem says at which sizes it is judged.")
    if len(distinct) > MAX_CASES:
        raise LimitExceeded(f"{name!r} has {len(distinct)} cases; the limit is {MAX_CASES}.", hint="Leave some out.")
    size = sum(len(text.encode()) for text in (files or {}).values())
    if size > MAX_FILES_BYTES:
        raise LimitExceeded(f"The files beside the problem have {size} bytes; the limit is {MAX_FILES_BYTES}.")
    given = [wished if wished is not None else said for wished, said in ((wish.rtol, rtol), (wish.atol, atol))]
    return Problem(
        problem_id="p-",
        content_hash="",
        name=(name.strip() or kind)[:200],
        description=description.strip()[:8000],
        kind="module",
        framework="torch",
        entry="Model",
        inputs=[],
        outputs=[],
        shapes=[{}],
        rtol=BY_TYPE if given[0] is None else given[0],
        atol=BY_TYPE if given[1] is None else given[1],
        reference=reference,
        fixed_shapes=True,
        adapter={"kind": kind, "cuda": "cuda" in reference, **adapter},
        files=dict(files or {}),
        cases=distinct,
        **wish.model_dump(include={"libraries", "distributions", "robust", "basis", "requires", "ties"}),
    )


def read_yaml(text: str, name: str) -> dict[str, Any]:
    """Return a YAML file's mapping.

    Raises:
        BadRequest: If it is none.
        LimitExceeded: If its aliases stand for too much. A kilobyte may stand for gigabytes, and each of its values
            may be what somebody puts into words.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        count = _count_nodes(node, {})
        whole = node if count <= MAX_YAML_VALUES else None
        found = cast("object", loader.construct_document(whole)) if whole else None  # pyright: ignore[reportUnknownMemberType]
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:
        # The last two are what PyYAML makes of a value that is not what its tag says, as of `!!bool x`.
        raise BadRequest(f"{name} is no YAML: {str(error)[:200]}.", hint="Correct it.") from error
    if count > MAX_YAML_VALUES:
        raise LimitExceeded(
            f"{name} has more than {MAX_YAML_VALUES} values, with its aliases put in.", hint="Leave aliases out."
        )
    if not isinstance(found, dict):
        raise BadRequest(f"{name} is no mapping of names to values.", hint="Correct it.")
    return cast("dict[str, Any]", found)


def _count_nodes(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Return how many values a node stands for, an alias for as many as what it repeats; each is looked at once."""
    if id(node) not in known:
        value: Any = node.value if isinstance(node, yaml.CollectionNode) else ()  # pyright: ignore[reportUnknownMemberType]
        inner: Iterable[yaml.Node] = chain(*value) if isinstance(node, yaml.MappingNode) else value
        known[id(node)] = 1 + sum(_count_nodes(each, known) for each in inner)
    return known[id(node)]


def _checked_case(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case with plain values alone."""
    try:
        text = json.dumps(case, allow_nan=False) if _count(case, MAX_LIST) > 0 else ""
    except (TypeError, ValueError, RecursionError):
        text = ""
    if not text:
        raise BadRequest(
            f"The case {str(dict(list(case.items())[:5]))[:200]} has values that are no numbers, texts or short lists.",
            hint="A case gives plain values by name.",
        )
    return cast("dict[str, Any]", json.loads(text))


def _count(value: Any, left: int) -> int:
    """Return how many values may still come; 0 or less where there are too many."""
    if isinstance(value, dict):
        value = list(cast("dict[Any, Any]", value).values())
    if not isinstance(value, (list, tuple)):
        return left - 1
    for each in cast("Sequence[Any]", value):
        left = _count(each, left)
        if left <= 0:
            return 0
    return left
