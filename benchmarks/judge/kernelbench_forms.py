"""Forms of ModelNew made of a KernelBench problem's Model, and by how much each is off: run by a Python with torch.

`python kernelbench_forms.py cpu|cuda` reads a line of JSON for each file, {"text": its text}, and answers each by one,
{form: share of wrong elements, or why there is no such form}. Off is what KernelBench's tolerance does not allow, by
PyTorch alone and without the judge: honest forms are compared in double precision. Runs what the files contain.
"""

import contextlib
import copy
import json
import re
import sys
from typing import Any

HEAD = """

class ModelNew(Base):
    def forward(self, *given):
        import torch
        def each(found, change):
            many = isinstance(found, (tuple, list))
            found = [change(x) if torch.is_tensor(x) else x for x in (found if many else [found])]
            return tuple(found) if many else found[0]
"""
FLOATS = "x.is_floating_point()"
HONEST = {
    "double": f"""
        self.double()
        try:
            found = super().forward(*each(given, lambda x: x.double() if {FLOATS} else x))
        finally:
            self.float()
        return each(found, lambda x: x.float() if {FLOATS} else x)
""",
    "other library": """
        which = torch.backends.cudnn if given[0].is_cuda else torch.backends.mkldnn
        with which.flags(enabled=False):
            return super().forward(*given)
""",
    "channels last": """
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        last = lambda x: x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x
        for parameter in self.parameters():
            parameter.data = last(parameter.data)
        return super().forward(*each(given, last))
""",
    "halves of the batch": """
        size = given[0].shape[0]
        cut = lambda part: each(given, lambda x: x[part] if x.dim() and x.shape[0] == size else x)
        found = [super(ModelNew, self).forward(*cut(p)) for p in (slice(0, size // 2), slice(size // 2, None))]
        return torch.cat(found)
""",
}
WRONG = {
    "1 % too large": f"\n        return each(super().forward(*given), lambda x: x * 1.01 if {FLOATS} else x + 1)\n",
    "last row zero": """
        def change(x):
            x = x.clone()
            x[-1 if x.dim() else ...] = 0
            return x
        return each(super().forward(*given), change)
""",
    "half of the inputs": f"""
        def change(x):
            if not ({FLOATS} and x.dim()):
                return x
            x = x.clone()
            x[..., x.shape[-1] // 2 :] = 0
            return x
        return super().forward(*each(given, change))
""",
    "other weights": """
        return self.other[0].to(given[0].device)(*given)
    def __init__(self, *given):
        super().__init__(*given)
        self.other = [Base(*given)]
""",
}


def written(text: str, form: str) -> str:
    """Return a file with ModelNew: the same Model, or a form of it."""
    if form == "the same":
        return re.sub(r"\bModel\b", "ModelNew", text)
    return re.sub(r"\bModel\b", "Base", text) + HEAD + (HONEST | WRONG)[form]


def off(text: str, form: str, device: str) -> float:
    """Return the share of elements that are off; of an honest form in double precision.

    Raises:
        Exception: If the file or the form fails.
    """
    import torch

    spaces: list[dict[str, Any]] = [{"__name__": "problem"}, {"__name__": "candidate"}]
    for space, source in zip(spaces, (text, written(text, form)), strict=True):
        exec(compile(source, "problem.py", "exec"), space)
    models: list[Any] = []
    for space, name in zip(spaces, ("Model", "ModelNew"), strict=True):
        torch.manual_seed(1)
        initial = spaces[0]["get_init_inputs"]()
        torch.manual_seed(1)
        models.append(space[name](*initial).to(device))
    if models[0].state_dict().keys() == models[1].state_dict().keys():
        models[1].load_state_dict(models[0].state_dict())
    given = [x.to(device) if torch.is_tensor(x) else x for x in spaces[0]["get_inputs"]()]
    wide = form in HONEST and form != "double"
    if wide:
        models = [model.double() for model in models]
        given = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in given]
    answers: list[Any] = []
    for model in models:
        torch.manual_seed(2)
        answers.append(model(*copy.deepcopy(given)))
    worst = 0.0
    pairs = [(x if isinstance(x, (tuple, list)) else (x,)) for x in answers]
    for right, other in zip(*pairs, strict=True):
        bound = 1e-9 if wide else 1e-4
        within = torch.isclose(other.double(), right.double(), rtol=bound, atol=bound, equal_nan=True)
        worst = max(worst, float((~within).double().mean()))
    return worst


def main() -> None:
    """Answer each line of stdin."""
    import torch

    for line in sys.stdin:
        text, found = json.loads(line)["text"], {}
        for form in HONEST | WRONG:
            try:
                with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
                    found[form] = off(text, form, sys.argv[1])
            except Exception as error:
                found[form] = f"{type(error).__name__}: {error}"[:150]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
