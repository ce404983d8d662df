"""A definition of flashinfer-trace or SOL-ExecBench, with the workloads that lie beside it or in its data set."""

import ast
import asyncio
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.problems.formats.base import MAX_FILE_BYTES, ProblemSource
from gpu_mcp_server.services.problems.formats.stored_tensors import StoredTensors
from gpu_mcp_server.services.problems.suite_problems import suite_problem
from gpu_mcp_server.services.workspaces.local_files import read_local

TITLE = "definition.json (flashinfer-trace, SOL-ExecBench: workload.jsonl beside it)"
MAIN_FILES = ("definition.json",)
TELLING = ("axes", "inputs", "outputs")
DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", "float4_e2m1fn_x2",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
Case = dict[str, Any]
KINDS = ("random", "scalar", "custom", "safetensors")
RTOL, ATOL, MATCHED = 1e-2, 1e-2, 0.99
"""Where a workload says nothing else. Source: flashinfer-bench's and SOL-ExecBench's documents, `tolerance`."""


RULE = ("max_rtol", "max_atol", "required_matched_ratio", "required_match_ratio", "max_error_cap")
"""Names of which a workload's tolerance has some."""


def recognizes(source: ProblemSource) -> bool:
    """Say whether it is a definition."""
    found = _read(source.text) if source.text.lstrip().startswith("{") else {}
    return all(name in found for name in TELLING) and ("reference" in found or "reference_file" in found)


def _read(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


async def problem(source: ProblemSource) -> Problem:
    """Return the problem; each workload is a case.

    Raises:
        BadRequest: If the definition or a workload is not right, or every workload needs stored tensors.
        NotFound: If there are no workloads.
    """
    definition = await _definition(source)
    tensors = StoredTensors(source.folder or Path())
    found = [await _case(definition, each, tensors) for each in await read_workloads(source, definition)]
    cases = [each for each in found if not isinstance(each, str)]
    left_out = [each for each in found if isinstance(each, str)]
    if not cases:
        raise BadRequest(
            f"None of the {len(left_out)} workloads has all its inputs: {(left_out or ['the file is empty'])[0]}.",
            hint="Put the data set's files at the workloads' paths; a problem's stored tensors may have 2 MiB.",
        )
    plain = {name: definition[name] for name in ("inputs", "outputs", "custom_inputs_entrypoint") if name in definition}
    rules = [each.get("tolerance", {"rtol": RTOL, "atol": ATOL}) for each in cases]
    rtol, atol = (min(each[side] for each in rules) for side in ("rtol", "atol"))
    about = str(definition.get("description") or "")
    if left_out:
        about += f" ({len(left_out)} workloads are left out; the first because {left_out[0]}.)"
    return suite_problem(
        name_of(source), str(definition["reference"]), kind="trace", cases=cases, wish=source.wish, description=about,
        files={"definition.json": json.dumps(plain), **tensors.files}, rtol=rtol, atol=atol,
        device="cuda" if "cuda" in str(definition["reference"]) else "cpu",
    )  # fmt: skip


def name_of(source: ProblemSource) -> str:
    """Return the definition's name, or its folder's where it has none."""
    return str(_read(source.text).get("name") or (source.folder.name if source.folder else "") or "definition")


async def _definition(source: ProblemSource) -> dict[str, Any]:
    """Return the definition with its reference's text; an older form of SOL-ExecBench names a file beside it."""
    definition = _read(source.text)
    if "reference" not in definition:
        definition["reference"] = await source.sibling_text(str(definition["reference_file"]))
    _check(definition)
    return definition


def _check(definition: Mapping[str, Any]) -> None:
    for side in ("inputs", "outputs"):
        specs = definition[side]
        if not isinstance(specs, dict) or not specs:
            raise BadRequest(f"{side} of the definition is no mapping of names to tensors.", hint="Correct it.")
        for name, spec in cast("Mapping[str, Any]", specs).items():
            dtype = cast("Mapping[str, Any]", spec).get("dtype") if isinstance(spec, dict) else None
            if dtype not in DTYPES:
                raise BadRequest(f"{name} is {str(dtype)[:40]!r}.", hint=f"Known types are {', '.join(DTYPES)}.")


async def read_workloads(source: ProblemSource, definition: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the workloads: workload.jsonl beside the definition, or workloads/OP_TYPE/NAME.jsonl of its data set."""
    if source.folder is None:
        raise BadRequest("A definition that is sent as text has no workloads.", hint="Give the path of its file.")
    name = str(definition.get("name") or source.name.removesuffix(".json"))
    kind = str(definition.get("op_type") or "")
    near = [source.folder / "workload.jsonl", source.folder / "workloads.jsonl"]
    if source.name != MAIN_FILES[0]:  # the data set's: definitions/OP_TYPE/NAME.json, OP_TYPE absent in some
        parents = list(source.folder.parents)[:2]
        near += [
            each / "workloads" / sub / f"{name}.jsonl" for each in parents for sub in (kind, "", source.folder.name)
        ]
    path = next((each for each in near if each.is_file() and "/" not in name), None)
    if path is None:
        raise NotFound(
            "workloads",
            str(source.folder),
            hint="Put workload.jsonl beside the definition, or in a data set, beside definitions/, "
            f"workloads/{kind or 'OP_TYPE'}/{name[:80]}.jsonl.",
        )
    text = (await asyncio.to_thread(read_local, Path(path), 16 * MAX_FILE_BYTES)).decode("utf-8", "replace")
    found = [_read(line) for line in text.splitlines() if line.strip()]
    listed: list[Any] = [each.get("workload", each) for each in found]
    if not all(isinstance(each, dict) for each in listed):
        raise BadRequest(f"A line of {path.name} is no workload.", hint="Each line is one workload in JSON.")
    return cast("list[dict[str, Any]]", listed)


async def _case(definition: Mapping[str, Any], workload: Mapping[str, Any], tensors: StoredTensors) -> Case | str:
    """Return a workload as a case with all axes as numbers, or why it is left out."""
    how = workload.get("inputs")
    if not isinstance(how, dict) or not isinstance(workload.get("axes"), dict):
        raise BadRequest("A workload has no axes and inputs.", hint="Each line is one workload in JSON.")
    inputs = {name: cast("Mapping[str, Any]", how).get(name) or {"type": "random"} for name in definition["inputs"]}
    if not all(isinstance(each, dict) for each in inputs.values()):
        raise BadRequest("An input of a workload is no mapping.", hint='{"type": "random"}, for instance.')
    kinds = {str(cast("Mapping[str, Any]", each).get("type")) for each in inputs.values()}
    if odd := sorted(kinds - set(KINDS)):
        return f"an input is {odd[0][:40]!r}, and known kinds are {', '.join(KINDS)}"
    plain = {name: {k: each[k] for k in ("type", "value") if k in each} for name, each in inputs.items()}
    for name, each in inputs.items():
        if each.get("type") == "safetensors":
            kept = await tensors.keep(each, str(definition["inputs"][name]["dtype"]))
            plain[name] = kept or {"type": "absent"}
    if {"type": "absent"} in plain.values():
        return f"the stored tensor {tensors.lacking[-1]}"
    axes = _sizes(definition, cast("Mapping[str, Any]", workload["axes"]))
    rule = _tolerance(workload)
    return {"axes": axes, "inputs": plain, **({"tolerance": rule} if rule else {})}


async def cases_by_workload(source: ProblemSource) -> list[tuple[dict[str, Any], Case]]:
    """Return each workload of a definition as its file has it, with its case; those left out are absent.

    Raises:
        BadRequest, NotFound: As for `problem`.
    """
    definition = await _definition(source)
    tensors = StoredTensors(source.folder or Path())
    pairs = [(each, await _case(definition, each, tensors)) for each in await read_workloads(source, definition)]
    return [(each, case) for each, case in pairs if not isinstance(case, str)]


def _tolerance(workload: Mapping[str, Any]) -> dict[str, float]:
    """Return the suite's rule for a workload, of several for its outputs the strictest; empty where it says none."""
    given: Any = workload.get("tolerance") or workload.get("checks") or []
    text = str(given)[:100]
    listed: list[Any] = cast("list[Any]", given) if isinstance(given, list) else [given]
    rules = [cast("Mapping[str, Any]", each) for each in listed if isinstance(each, dict)]
    if not any(name in rule for rule in rules for name in RULE):
        return {}
    said: list[dict[str, Any]] = [
        {"rtol": each.get("max_rtol", RTOL), "atol": each.get("max_atol", ATOL), "matched": _matched(each)}
        | ({} if each.get("max_error_cap") is None else {"cap": each["max_error_cap"]})
        for each in rules
    ]
    values: list[Any] = [value for rule in said for value in rule.values()]
    if not all(_is_amount(value) for value in values) or any(rule["matched"] > 1 for rule in said):
        raise BadRequest(
            f"A workload's tolerance is {text}.",
            hint="max_rtol, max_atol and max_error_cap are numbers of 0 or more, required_matched_ratio is at most 1.",
        )
    strict = {name: min(float(rule[name]) for rule in said) for name in ("rtol", "atol")}
    caps = [float(rule["cap"]) for rule in said if "cap" in rule]
    return {**strict, "matched": max(float(rule["matched"]) for rule in said), **({"cap": min(caps)} if caps else {})}


def _matched(rule: Mapping[str, Any]) -> Any:
    """Return the share of elements that must match; both spellings are published."""
    return rule.get("required_matched_ratio", rule.get("required_match_ratio", MATCHED))


def _is_amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _sizes(definition: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Return every axis as a number: constants, the workload's, then expressions over those."""
    axes = cast("Mapping[str, Mapping[str, Any]]", definition["axes"])
    sizes: dict[str, int] = {}
    for name, axis in axes.items():
        value = axis.get("value") if axis.get("type") == "const" else given.get(name)
        if axis.get("type") != "expr":
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise BadRequest(f"The axis {name} has the size {str(value)[:40]!r}.", hint="Sizes are whole numbers.")
            sizes[name] = value
    for _ in axes:  # an expression may use another one
        for name, axis in axes.items():
            if axis.get("type") == "expr" and name not in sizes:
                found = _value(str(axis.get("expression")), sizes)
                if found is not None:
                    sizes[name] = found
    if missing := sorted(set(axes) - set(sizes)):
        raise BadRequest(f"The axis {missing[0]} has no value.", hint="Expressions use + - * // % and other axes.")
    return sizes


def _value(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return an expression's value, None if it uses what is not known yet; it is never run as Python."""
    if len(text) > 400:
        return None

    def evaluate_node(node: ast.expr) -> float:
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                return _operated(op, evaluate_node(left), evaluate_node(right))
            case ast.UnaryOp(op=ast.USub(), operand=one):
                return -evaluate_node(one)
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name) if name in sizes:
                return sizes[name]
            case ast.Call(func=ast.Name(id=("min" | "max") as name), args=args, keywords=[]) if args:
                values = [evaluate_node(each) for each in args]
                return min(values) if name == "min" else max(values)
            case _:
                raise ValueError(ast.unparse(node)[:40])

    try:
        return int(evaluate_node(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _operated(op: ast.operator, left: float, right: float) -> float:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv():
            return left // right
        case ast.Div():
            return left / right
        case ast.Mod():
            return left % right
        case _:
            raise ValueError(type(op).__name__)
