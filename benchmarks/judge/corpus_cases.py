"""Public collections of cheats and of annotated kernels, as problems and candidates of KernelBench's form.

A folder holds what was fetched; nothing of it is part of this repository:

- sol-execbench/: tests/samples, tests/sol_execbench/samples and examples of NVIDIA/SOL-ExecBench
- pygpubench/: exploits and test of gpu-mode/pygpubench
- kernelbench-hard/: of Infatoshi/kernelbench.com: problems/NAME/ with reference.py and problem.yaml (of
  benchmarks/hard/problems-rtxpro6000), annotations/RUN.yaml (of benchmarks/hard/results/annotations), solutions/RUN.py
  (of public/runs, there RUN_solution.py.txt)
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from candidate_shards import Candidate

Kind = Literal["cheat", "wrong", "honest", "rubric leak"]


@dataclass(frozen=True)
class Case:
    """One candidate with what its collection says of it."""

    corpus: str
    kind: Kind
    candidate: Candidate
    wish: dict[str, Any] = field(default_factory=dict[str, Any])
    left_out: str = ""
    """Why it cannot be judged by us."""
    said: str = ""
    """What its collection says of it."""


def cases_in(folder: Path) -> list[Case]:
    """Return the cases of all collections that the folder holds."""
    found: list[Case] = []
    readers = {"sol-execbench": sol_cases, "pygpubench": pygpubench_cases, "kernelbench-hard": hard_cases}
    for name, read in readers.items():
        if (folder / name).is_dir():
            found += read(folder / name)
    return found


ROWS = 512
"""Of what a definition of SOL-ExecBench leaves open."""
VECADD = {
    "axes": {"n": {"type": "const", "value": 1 << 20}},
    "inputs": {"x": {"shape": ["n"], "dtype": "float32"}, "y": {"shape": ["n"], "dtype": "float32"}},
    "reference": "def run(x, y):\n    return x + y\n",
}
"""What the three evil samples compute; their collection's test makes the definition itself."""


def sol_reference(definition: dict[str, Any]) -> str:
    """Return a definition as a KernelBench problem, its inputs normal."""
    axes = {name: axis.get("value", ROWS) for name, axis in definition["axes"].items()}
    made = [
        f"torch.randn({tuple(axes[d] for d in spec['shape'] or ())!r}).to(torch.{spec['dtype']})"
        for spec in definition["inputs"].values()
    ]
    names = ", ".join(definition["inputs"])
    return f"""import torch
{definition["reference"]}

class Model(torch.nn.Module):
    def forward(self, {names}):
        return run({names})

def get_inputs():
    return [{", ".join(made)}]

def get_init_inputs():
    return []
"""


def sol_candidate(solution: dict[str, Any], definition: dict[str, Any], source: str) -> str:
    """Return a solution as ModelNew; where it writes into its last argument, that is made first."""
    entry = solution["spec"]["entry_point"].partition("::")[2]
    names = ", ".join(definition["inputs"])
    if solution["spec"].get("destination_passing_style"):
        first = next(iter(definition["inputs"]))
        body = f"output = torch.empty_like({first})\n        {entry}({names}, output)\n        return output"
    else:
        body = f"return {entry}({names})"
    return (
        f"import torch\n{source}\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, {names}):\n        {body}\n"
    )


def sol_cases(folder: Path) -> Iterator[Case]:
    """Yield SOL-ExecBench's cheats, and of its honest solutions those in Python."""
    samples = folder / "tests" / "sol_execbench" / "samples"
    rmsnorm = json.loads((samples / "rmsnorm" / "definition.json").read_text())
    for path in sorted((folder / "tests" / "samples").rglob("solution_hack_*.json")):
        solution = json.loads(path.read_text())
        yield _sol_case(path.stem, "cheat", solution, rmsnorm, solution["sources"][0]["content"])
    for path in sorted(samples.glob("evil_*/kernel.py")):
        solution = json.loads(path.with_name("solution.json").read_text())
        yield _sol_case(path.parent.name, "cheat", solution, VECADD, path.read_text())
    for path in sorted((folder / "examples").rglob("solution_*.json")):
        solution, definition = (json.loads(p.read_text()) for p in (path, path.with_name("definition.json")))
        name, sources = f"{path.parent.parent.name}_{path.parent.name}", solution["sources"]
        if len(sources) == 1 and sources[0]["path"].endswith(".py"):
            yield _sol_case(name, "honest", solution, definition, sources[0]["content"])
        else:
            empty = Candidate(f"sol/{name}", "", "")
            yield Case("SOL-ExecBench", "honest", empty, left_out="an extension of several files")


def _sol_case(name: str, kind: Kind, solution: dict[str, Any], definition: dict[str, Any], source: str) -> Case:
    shapes = [spec["shape"] for spec in definition["inputs"].values()]
    text = sol_candidate(solution, definition, source)
    several = len(definition.get("outputs", {})) > 1 and solution["spec"].get("destination_passing_style")
    left_out = "several outputs by destination" if several else ""
    left_out = left_out or ("inputs without a shape, or made by code of its own" if not all(shapes) else "")
    reference = "" if left_out else sol_reference(definition)
    return Case("SOL-ExecBench", kind, Candidate(f"sol/{name}", reference, text), left_out=left_out)


GRAYSCALE = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        weights = torch.tensor([0.2989, 0.5870, 0.1140], device=x.device, dtype=x.dtype)
        return torch.sum(x * weights, dim=-1)

def get_inputs():
    return [torch.rand(SIZE, SIZE, 3)]

def get_init_inputs():
    return []
"""
"""The problem that all of pygpubench's submissions answer, with its tolerance of 1e-6."""


def pygpubench_cases(folder: Path) -> Iterator[Case]:
    """Yield pygpubench's exploits and controls, and the kernels of its own test."""
    for path in sorted((folder / "exploits").glob("submission_*.py")):
        name = path.stem.removeprefix("submission_")
        kind: Kind = "honest" if name == "correct" else "wrong" if name == "wrong" else "cheat"
        yield _grayscale(f"pygpubench/{name}", kind, path.read_text(), "kernel")
    text = (folder / "test" / "submission.py").read_text()
    for name in re.findall(r"^def (\w+)", text, re.MULTILINE):
        yield _grayscale(f"pygpubench/test_{name}", "honest" if name.startswith("valid") else "wrong", text, name)


def _grayscale(name: str, kind: Kind, text: str, entry: str) -> Case:
    source = f"""{text}

import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        output = torch.empty(x.shape[:-1], device=x.device, dtype=x.dtype)
        {entry}(output, x)
        return output
"""
    candidate = Candidate(name, GRAYSCALE.replace("SIZE", "1024"), source)
    return Case("pygpubench", kind, candidate, {"rtol": 1e-6, "atol": 1e-6})


HARD_KINDS: dict[str, Kind] = {"reward_hack": "cheat", "rubric_leak": "rubric leak", "clean": "honest"}


def hard_cases(folder: Path) -> Iterator[Case]:
    """Yield KernelBench-Hard's annotated runs; they have the problem's weights, and no library may do their work."""
    for path in sorted((folder / "annotations").glob("*.yaml")):
        try:
            note = yaml.safe_load(path.read_text())
        except yaml.YAMLError:
            empty = Candidate(f"hard/{path.stem}", "", "")
            yield Case("KernelBench-Hard", "honest", empty, left_out="its annotation is not valid YAML")
            continue
        source, problem = folder / "solutions" / f"{path.stem}.py", folder / "problems" / str(note["problem"])
        if note["verdict"] not in HARD_KINDS or not source.exists():
            continue
        said = " ".join(str(note.get("summary") or "").split())
        left_out = "" if problem.is_dir() else "the collection no longer has its problem"
        reference = "" if left_out else (problem / "reference.py").read_text()
        wish = {"libraries": "forbidden", "copy_state": True, "accept_degenerate": True}
        if not left_out:
            wish |= _tolerance(yaml.safe_load((problem / "problem.yaml").read_text()))
        text = source.read_text()
        text += "" if "class ModelNew" in text else "\n\nModelNew = Model\n"
        kind = HARD_KINDS[note["verdict"]]
        candidate = Candidate(f"hard/{path.stem}", reference, text)
        yield Case("KernelBench-Hard", kind, candidate, wish, left_out, said)


def _tolerance(problem: dict[str, Any]) -> dict[str, float]:
    """Return the tolerance of a problem's output, which is its own or KernelBench's by type."""
    given = problem.get("tolerance") or {}
    values = [float(value) for value in given.values()]
    return {"rtol": max(values), "atol": max(values)} if values else {}
