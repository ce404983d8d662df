"""KernelBench's problems in small: run by a Python with torch.

`python kernelbench_shrink.py OPERATIONS ELEMENTS` reads a line of JSON for each file, {"text": its text}, and answers
each by one: the text, what was changed, what is wrong. The numbers that a file sets at module level (batch sizes,
widths, image sizes) are divided by two, the largest first, alone or with all others that are as large, while Model
still answers get_inputs() and until a call takes at most so many operations and its tensors have at most so many
elements. Counted on torch's meta device, without data; a file that does not run there keeps its sizes. Runs what the
files contain.
"""

import ast
import json
import sys
from itertools import zip_longest
from typing import Any

LEAST = 8
"""No number is made smaller."""
Place = tuple[str, int]
"""A module-level name and, of a tuple, which element; -1 of a plain number."""


def constants(text: str) -> dict[Place, int]:
    """Return the whole numbers that a file sets at module level."""
    space: dict[str, Any] = {}
    exec(compile(text, "problem.py", "exec"), space)
    names = {t.id for s in ast.parse(text).body if isinstance(s, ast.Assign) for t in s.targets if type(t) is ast.Name}
    found: dict[Place, int] = {}
    for name in sorted(names):
        value = space[name]
        parts = enumerate(value) if isinstance(value, (tuple, list)) else [(-1, value)]
        found.update({(name, at): part for at, part in parts if type(part) is int and part > LEAST})
    return found


def rewritten(text: str, values: dict[Place, int]) -> str:
    """Return a file with other numbers at module level."""
    tree = ast.parse(text)
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or type(statement.targets[0]) is not ast.Name:
            continue
        name = statement.targets[0].id
        if (name, -1) in values:
            statement.value = ast.Constant(values[name, -1])
        elif isinstance(statement.value, (ast.Tuple, ast.List)):
            for at, part in enumerate(statement.value.elts):
                if (name, at) in values:
                    statement.value.elts[at] = ast.copy_location(ast.Constant(values[name, at]), part)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def cost(text: str) -> tuple[float, float]:
    """Return the operations of a call and the elements of its tensors, weights included."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    space: dict[str, Any] = {"__name__": "problem"}
    exec(compile(text, "problem.py", "exec"), space)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model = space["Model"](*space["get_init_inputs"]())
        given = space["get_inputs"]()
        answer = model(*[x.to("meta") if torch.is_tensor(x) else x for x in given])
    answers = answer if isinstance(answer, (tuple, list)) else (answer,)
    tensors = [x for x in [*given, *answers, *model.state_dict().values()] if torch.is_tensor(x)]
    return float(counter.get_total_flops()), float(sum(x.numel() for x in tensors))


def shrunk(text: str, operations: float, elements: float) -> dict[str, Any]:
    """Return a file that is small enough, or as small as it gets."""
    before = values = constants(text)
    stuck: set[tuple[Place, ...]] = set()
    now = cost(text)
    while now[0] > operations or now[1] > elements:
        groups = [tuple(p for p in values if values[p] == size) for size in sorted(set(values.values()), reverse=True)]
        singles = [(place,) for group in groups for place in group]
        wanted = [g for pair in zip_longest(singles, groups) for g in pair if g and values[g[0]] > LEAST]
        wanted.sort(key=lambda g: -values[g[0]])
        for group in (g for g in wanted if g not in stuck):
            tried = {p: max(LEAST, v // 2) if p in group else v for p, v in values.items()}
            try:
                then = cost(rewritten(text, tried))
            except Exception:  # whatever the file raises: it does not work at these sizes
                stuck.add(group)
                continue
            if then == now:
                stuck.add(group)
                continue
            values, now = tried, then
            break
        else:
            break
    changed = {
        f"{name}" + (f"[{at}]" if at >= 0 else ""): v for (name, at), v in values.items() if v != before[name, at]
    }
    return {"text": rewritten(text, values) if changed else text, "changed": changed, "cost": now}


def main() -> None:
    """Shrink what stands on stdin."""
    operations, elements = map(float, sys.argv[1:])
    for line in sys.stdin:
        text = json.loads(line)["text"]
        try:
            found = shrunk(text, operations, elements)
        except Exception as error:
            found = {"text": text, "changed": {}, "wrong": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
