"""Write a right and a wrong answer to tasks of public suites, from the suites' own files.

    python benchmarks/suites/make_answers.py SUITE OUT [--tasks N] [--only WORD...]
    gpu-mcp-server recipe suite folder SUITE --candidates OUT --tier correctness

The right one is the task's naive submission or its reference, the wrong one the same with one element of its first
answer moved by one and a half. SUITE is a copy of the suite's repository; what is written to OUT is not kept here.
"""

import argparse
import ast
import json
from pathlib import Path

from gpu_mcp_server.recipes.suite_candidates import suite_tasks

SPOIL = """

def _spoil(found):
    import torch
    if torch.is_tensor(found):
        found = found.clone()
        flat = found.view(torch.uint8) if found.element_size() == 1 else found
        where = tuple(0 for _ in flat.shape)
        moved = 1.5 if flat.is_floating_point() else 77
        flat[where] = not flat[where] if flat.dtype == torch.bool else flat[where] + moved
        return found
    if isinstance(found, (tuple, list)):
        return type(found)([_spoil(found[0]), *found[1:]])
    return {name: _spoil(each) if not i else each for i, (name, each) in enumerate(found.items())}
"""


def wrapped(text: str, function: str) -> str:
    """Return a source whose function answers wrongly."""
    return f"{text}\n{SPOIL}\n_right = {function}\n\ndef {function}(*given):\n    return _spoil(_right(*given))\n"


def wrapped_module(text: str, name: str) -> str:
    """Return a source whose module answers wrongly."""
    wrong = f"{name}.forward = lambda self, *given: _spoil(_right(self, *given))\n"
    return f"{text}\n{SPOIL}\n_right = {name}.forward\n{wrong}"


def answers_to(main: Path) -> tuple[str, str] | None:
    """Return the right and the wrong answer to a task; None if it has neither submission nor reference."""
    folder = main.parent
    match main.name:
        case "task.yml":
            path = folder / "submission.py"
            text = path.read_text() if path.is_file() else "from reference import ref_kernel as custom_kernel\n"
            return text, wrapped(text, "custom_kernel")
        case "definition.json":
            text = str(json.loads(main.read_text())["reference"])
            said = '\nSOLUTION = {"function": "run", "destination_passing_style": False}\n'
            return text + said, wrapped(text, "run") + said
        case "problem.yaml" if (folder / "reference.py").is_file():
            text = (folder / "reference.py").read_text()
            return text, wrapped_module(text, "Model")
        case "config.yaml":
            return module_answers(folder)
        case name if name.endswith(".py"):
            text = main.read_text() + "\n\nModelNew = Model\n"
            return text, wrapped_module(text, "ModelNew")
        case _:
            return None


def module_answers(folder: Path) -> tuple[str, str] | None:
    """Return the answers to a task of AgentKernelArena that has a PyTorch module: Model, or its last class by name."""
    found = sorted([*folder.glob("pytorch_code_module/*.py"), *folder.glob("model.py")])
    texts = [text for text in (path.read_text() for path in found) if "def get_init_inputs" in text]
    if not texts:
        return None
    names = [each.name for each in ast.parse(texts[0]).body if isinstance(each, ast.ClassDef)]
    name = "Model" if "Model" in names else max(names)
    return texts[0], wrapped_module(texts[0], name)


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    written = 0
    for name, path in suite_tasks(given.suite).items():
        found = answers_to(path)
        if found is None or written == given.tasks or (given.only and not any(word in name for word in given.only)):
            continue
        (given.out / name).mkdir(parents=True, exist_ok=True)
        for which, text in zip(("right", "wrong"), found, strict=True):
            (given.out / name / f"candidate_{which}.py").write_text(text)
        written += 1
        print(name)


if __name__ == "__main__":
    main()
