"""Turns the file of a capture's job into a problem: cases with calls, named inputs, the program's code."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from gpu_mcp_server.models.problem import ImportOverrides, Problem
from gpu_mcp_server.models.program_speed import CapturedSet, CaptureOptions
from gpu_mcp_server.services.problems.suite_problems import suite_problem
from gpu_mcp_server.services.programs.program_text import import_text

MAIN = "program_main"
"""Module name of the script's definitions. The judge's call_records has the same name."""
UNCOMPILED = """import torch

_compile = torch.compile
torch.compile = lambda model=None, *_, **__: (lambda each: each) if model is None else model
{}
torch.compile = _compile
"""
"""Imports what the program compiles as it is written: so it was recorded, and the judge compiles it for a baseline."""
Count = Annotated[int, Field(ge=0, le=10**12)]
Text = Annotated[str, Field(max_length=1000)]
Target = Literal["operator", "function", "module", "launch"]
GRID = "[grid]"
"""End of a target that is a Triton kernel."""


class RecordedTensor(BaseModel):
    """A tensor of a recorded call, and how it is made again."""

    dtype: Text
    shape: list[Count] = Field(max_length=16)
    strides: list[Count] = Field(max_length=16)
    stored: Text | None = None
    quantiles: list[float] | None = Field(default=None, max_length=200)
    fixed: bool = False

    @model_validator(mode="after")
    def _has_steps(self) -> "RecordedTensor":
        if len(self.shape) != len(self.strides):
            raise ValueError(f"{len(self.shape)} sizes, {len(self.strides)} steps")
        return self

    def order(self) -> str:
        """Say in which order dimensions lie in memory, and whether without gaps: a launcher is not told steps."""
        long = [(step, -at, size) for at, (step, size) in enumerate(zip(self.strides, self.shape, strict=True))]
        long = sorted(each for each in long if each[2] > 1)
        reach, dense = 1, True
        for step, _, size in long:
            dense, reach = dense and step == reach, step * size
        return f"{[-at for _, at, _ in long]} {dense}"

    def text(self) -> str:
        """Say type, sizes, and steps where they are not row-major."""
        step, usual = 1, list[int]()
        for size in reversed(self.shape):
            usual.insert(0, step)
            step *= size
        plain = all(a == b or size == 1 for a, b, size in zip(self.strides, usual, self.shape, strict=False))
        return f"{self.dtype}{self.shape}" + ("" if plain else f" strides {self.strides}")


class RecordedSet(BaseModel):
    """Calls with inputs of the same types, sizes, steps and plain values."""

    skeleton: dict[str, Any]
    leaves: list[bool | int | float | str | None] = Field(max_length=2000)
    tensors: list[RecordedTensor] = Field(max_length=500)
    names: list[Text] = Field(max_length=500)
    calls: Count
    bytes: Count
    answers: float | None = None
    """Usual size of the answers' values: the least root mean square of them."""
    answer: dict[str, Any] | None = None
    """Around the tensors of an answer; none where it holds values of other kinds."""
    answer_leaves: list[bool | int | float | str | None] = Field(default=[], max_length=2000)
    module: Count = 0
    """Number of the module's build, where calls of a module are recorded."""
    why: Text = ""
    """Reason that excludes it from the cases."""

    @model_validator(mode="after")
    def _is_whole(self) -> "RecordedSet":
        if not self.calls:
            raise ValueError("a set of inputs without a call")
        if not self.why and len(self.names) != len(self.tensors):
            raise ValueError(f"{len(self.names)} names, {len(self.tensors)} tensors")
        return self


class CallRecording(BaseModel):
    """A capture's file."""

    sets: list[RecordedSet] = Field(max_length=64)
    seen: dict[Text, Count] = Field(max_length=500)
    modules: list[dict[str, Any]] = Field(default=[], max_length=8)
    """Of a module: its builds, as the judge makes it again; training mode and evaluation are two."""
    others: Count
    graphs: Count
    compiled: Count
    forks: Count = 0
    cut: bool = False
    """Whether the program was ended at record_s."""
    differing: Count
    wrong: Text
    overload: Text
    device: Text
    written: list[Text] = Field(default=[], max_length=100)
    """Of a Triton kernel: arguments that it writes, by place or name."""
    pure: list[Text] = Field(default=[], max_length=100)
    """Of these, arguments whose values before the launch do not count."""
    loaded: dict[Text, Text] = Field(max_length=20_000)
    torch: Text
    interpreted: bool = False
    """Whether the program has Triton interpret its kernels."""

    @model_validator(mode="after")
    def _has_its_modules(self) -> "CallRecording":
        if any(s.module >= max(1, len(self.modules)) for s in self.sets):
            raise ValueError("a set of inputs names a module that is not there")
        return self


class NoTorch(BaseModel):
    """File of a worker that cannot begin."""

    missing: Text
    python: Text


def parse_calls(data: bytes) -> CallRecording | NoTorch | str:
    """Read the file; of one that was tampered with say why it is refused, of none nothing."""
    if not data:
        return ""
    try:
        return NoTorch.model_validate_json(data)
    except ValidationError:
        pass
    try:
        return CallRecording.model_validate_json(data)
    except ValidationError as error:
        why = error.errors()[0]
        where = ".".join(map(str, why["loc"]))
        return f"the record of calls is not as it was written, so no problem is made: {where[:80]}: {why['msg'][:200]}"


def chosen_sets(found: CallRecording, most: int) -> tuple[list[RecordedSet], list[str]]:
    """Return the sets that become cases, and notes on the sets left out.

    Those whose arguments have one form are alike; the form with the most data is taken, of it the sets with the most.
    """
    sets = [s if s.why or s.tensors else s.model_copy(update={"why": "it takes no tensor"}) for s in found.sets]
    notes = [f"{s.calls} calls are left out: {s.why}" for s in sets if s.why][:6]
    weights: dict[str, int] = {}
    forms: dict[str, list[RecordedSet]] = {}
    for one in sets:
        if not one.why:
            order = [(t.dtype, t.order()) for t in one.tensors]
            form = json.dumps([one.module, one.skeleton, one.names, order, len(one.leaves)])
            forms.setdefault(form, []).append(one)
            weights[form] = weights.get(form, 0) + one.calls * (one.bytes + 1)
    if not forms:
        return [], notes
    best = max(forms, key=lambda form: weights[form])
    build = forms[best][0].module
    others = [s for form, listed in forms.items() if form != best for s in listed]
    for at in sorted({s.module for s in others} - {build}):
        calls = sum(s.calls for s in others if s.module == at)
        notes.append(f"{calls} calls of {describe_build(found.modules, at, build)} are left out: they have less data")
    other = sum(s.calls for s in others if s.module == build)
    notes += [f"{other} calls have arguments of another form and are left out"] if other else []
    ranked = sorted(forms[best], key=lambda s: -s.calls * (s.bytes + 1))
    left = sum(s.calls for s in ranked[most:])
    notes += [f"{left} calls with less data are left out: options.sets is {most}"] if left else []
    return ranked[:most], notes


def describe_build(modules: Sequence[Mapping[str, Any]], at: int, taken: int) -> str:
    """Say how a module's build differs from the one whose calls are taken."""
    one, other = (json.dumps(modules[n], sort_keys=True) for n in (at, taken))
    for mode, word in (("true", "training"), ("false", "evaluation")):
        said = f'"training": {{"value": {mode}}}'
        if said in one and said not in other:
            return f"modules in {word} mode"
    return "modules built otherwise"


def captured_problem(
    target: str,
    kind: Target,
    found: CallRecording,
    sets: Sequence[RecordedSet],
    samples: bytes,
    files: Mapping[str, str],
    script: str,
    options: CaptureOptions,
) -> Problem:
    """Return the problem of recorded calls, before a host was asked about it.

    Args:
        target: As the call gave it.
        kind: Its kind.
        found: The recording.
        sets: The sets that become cases.
        samples: The safetensors file.
        files: The program's modules by the name that an import finds them by.
        script: The word behind the interpreter: a path, -m or -c.
        options: Tolerances.

    Raises:
        LimitExceeded: If the texts are too large.
    """
    passed = differing_leaves(sets)
    record = {
        "skeleton": sets[0].skeleton,
        "names": sets[0].names,
        "passed": passed,
        "module": found.modules[sets[0].module] if kind == "module" else None,
        **({"written": found.written, "pure": found.pure} if kind == "launch" else {}),
        "sets": [_set_record(s) for s in sets],
    }
    said = f"{kind} {target} of a program, as it was called {sum(s.calls for s in sets)} times"
    constants = [v for at, v in enumerate(sets[0].leaves) if at not in passed]
    said += f"; values beside the tensors, in order: {constants}" if constants else ""
    problem = suite_problem(
        target, reference_text(target, kind, found, sets[0].module), kind="captured",
        cases=[{"recorded": {"at": at, "calls": s.calls}} for at, s in enumerate(sets)],
        wish=ImportOverrides(rtol=options.rtol, atol=options.atol), atol=usual_atol(sets),
        files={**files, "capture.json": json.dumps(record), "inputs.safetensors": base64.b64encode(samples).decode()},
        description=said, of=kind, target=target, overload=found.overload, replayable=replayable_inputs(sets),
        script=script, runs_on=found.device,
    )  # fmt: skip
    return problem.model_copy(update={"copy_state": kind == "module"})


def reads_script(target: str, kind: Target, found: CallRecording, build: int) -> bool:
    """Say whether what is captured is defined in the script: a function of it, or a module with a part of its class."""
    return f"{MAIN}:" in json.dumps(found.modules[build]) if kind == "module" else target.startswith("__main__:")


def _set_record(one: RecordedSet) -> dict[str, Any]:
    tensors = [t.model_dump(exclude_none=True) for t in one.tensors]
    return {"tensors": tensors, "leaves": one.leaves, "answer": one.answer, "answer_leaves": one.answer_leaves}


def usual_atol(sets: Sequence[RecordedSet]) -> float | None:
    """Return the tolerance of a type, narrower where answers are small; None where they are of no floats."""
    sizes = [s.answers for s in sets if s.answers]
    wide = any(t.dtype in ("float16", "bfloat16") for s in sets for t in s.tensors)
    return (1e-2 if wide else 1e-4) * min(1.0, *sizes) if sizes else None


def reference_text(target: str, kind: Target, found: CallRecording, build: int = 0) -> str:
    """Return the problem's file, which imports the target by its name in torch or in the program."""
    if kind == "operator":
        return (
            f'"""The operator {target} of torch, as a program calls it."""\n\nimport torch\n\n\n'
            f"def call(*args, **kwargs):\n    return torch.ops.{found.overload}(*args, **kwargs)\n"
        )
    called = target.removesuffix(GRID).replace("__main__:", f"{MAIN}:")
    name = str(found.modules[build].get("class")) if kind == "module" else called
    is_compiled = found.compiled and kind != "launch"
    imported = UNCOMPILED.format(import_text(name)) if is_compiled else import_text(name)
    said = f"{target} of a program; its own code lies beside this file"
    if found.device == "cpu" and (kind == "launch" or found.interpreted):
        said += ", and Triton interprets it"
        imported = f'import os\n\nos.environ["TRITON_INTERPRET"] = "1"\n\n{imported}'
    return f'''"""{said}."""\n\n{imported}'''


def differing_leaves(sets: Sequence[RecordedSet]) -> list[int]:
    """Return which plain values are not the same in all sets: a candidate gets them."""
    first = sets[0].leaves
    return [at for at in range(len(first)) if any(repr(s.leaves[at]) != repr(first[at]) for s in sets)]


def replayable_inputs(sets: Sequence[RecordedSet]) -> list[str]:
    """Return the inputs that come as they were recorded."""
    return list(dict.fromkeys(n for s in sets for n, t in zip(s.names, s.tensors, strict=True) if t.fixed))


def told_set(one: RecordedSet) -> CapturedSet:
    """Return a set in words."""
    texts = [f"{name} {tensor.text()}" for name, tensor in zip(one.names, one.tensors, strict=True)]
    return CapturedSet(inputs=texts[:12], calls=one.calls)
