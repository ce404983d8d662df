"""Hot spots of whole programs: recorded with the real torch on a processor; hostile and broken programs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.profile import HotspotOptions, HotspotReport
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.programs.hotspot_finder import ignores_environment, split_command
from tests.judge.harness import torch_python
from tests.laboratory import laboratory

PYTHON = torch_python() or ""
pytestmark = pytest.mark.timeout(1500)  # a busy machine; an import of torch in a sandbox may take half a minute there
needs_torch = pytest.mark.skipif(not PYTHON, reason="no Python with torch: set TEST_TORCH_PYTHON")

TRAIN = """
import torch
import local_part
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Sequential(nn.Linear(1024, 256), nn.ReLU()))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(local_part.STEPS):
    loss = model(torch.randn(512, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss is finite:", bool(loss.isfinite()))
"""


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"judge_python": PYTHON or None}}) as lab:
        yield lab


async def find(lab: Lab, text: str, *, command: list[str] | None = None, **options: Any) -> HotspotReport:
    files = {"program.py": text, "local_part.py": "STEPS = 8\n", "part/__init__.py": "", "part/__main__.py": text}
    workspace = (await lab.store.workspaces.write(None, files)).workspace_id
    told = HotspotOptions(**options)
    return await lab.programs.hotspots.find(command or [PYTHON, "program.py"], workspace, options=told)


@needs_torch
async def test_matrix_products_lead_a_training_step_with_shapes_modules_and_what_they_could_bring(lab: Lab):
    found = await find(lab, TRAIN)
    assert (found.status, found.device, found.steps) == ("ok", None, 8), found.summary()
    products = [h for h in found.hotspots if h.name in ("aten::mm", "aten::addmm")]
    assert len(products) == 2 and found.hotspots == sorted(found.hotspots, key=lambda h: -h.share)
    forward = next(h for h in products if h.name == "aten::addmm")
    assert forward.calls == 16, "two layers, eight steps"
    assert ["float[1024]", "float[512, 256]", "float[256, 1024]", "Scalar", "Scalar"] in [
        s.inputs for s in forward.shapes
    ]
    assert set(forward.modules) == {"Sequential.0", "Sequential.2.0"}
    assert all(h.at_most_speedup == pytest.approx(1 / (1 - h.share)) for h in products)
    assert sum(h.share for h in found.hotspots) + (found.elsewhere or 0) <= 1.0 + 1e-6
    assert found.modules[0].path == "Sequential" and found.modules[0].calls == 8
    assert {"Sequential.*", "Sequential.*.*"} <= {m.path for m in found.modules}
    assert "at most" in found.summary() and "aten::mm" in found.summary()
    remembered = await lab.store.experience.get(found.attempt_id or "")
    assert remembered.status == "ok" and (remembered.reason or "").startswith(found.hotspots[0].name)


@needs_torch
async def test_a_part_of_a_long_run_is_recorded_and_the_rest_is_not_run(lab: Lab):
    endless = TRAIN.replace("range(local_part.STEPS)", "__import__('itertools').count()")
    steps = await find(lab, endless, steps=3)
    assert steps.steps == 3 and "ended after 3 steps" in steps.summary()
    timed = await find(lab, endless, warm_s=0.5, record_s=1.0, steps=100_000)
    assert (timed.wall_s or 0) >= 1.0 and "ended after record_s, 1 s" in timed.summary()
    assert " of 100000 steps were done: raise record_s" in timed.summary()
    module = await find(lab, TRAIN, command=[PYTHON, "-X", "utf8", "-m", "part"])
    assert module.status == "ok" and module.steps == 8, "modules beside it are found, as by the interpreter itself"


@needs_torch
async def test_what_went_wrong_is_said_and_what_was_seen_is_kept(lab: Lab):
    forks = "import os\nif os.fork() == 0: os._exit(0)\nos.wait()\n"
    raises = await find(lab, forks + TRAIN + "\nraise SystemError('out of plums')\n")
    assert raises.steps == 8 and "1 child processes" in raises.summary()
    assert "ended with 1" in raises.summary() and "out of plums" in raises.summary()
    at_once = await find(lab, "import torch\nraise SystemError('no plums')\n")
    assert at_once.status == "failed" and "no plums" in at_once.output and "warm_s" not in at_once.summary()
    silent = await find(lab, "print(1)\n")
    assert silent.status == "ok" and not silent.hotspots and "no operator of torch ran" in silent.summary()
    loads = TRAIN + "import urllib.request\nfrom torch.utils.data import DataLoader\n"
    loads += "print(sum(len(batch) for batch in DataLoader(range(8), num_workers=2)))\n"
    loaded = await find(lab, loads + "urllib.request.urlopen('http://example.org')\n")
    assert loaded.steps == 8 and "2 child processes (workers that load data) were not recorded" in loaded.summary()
    assert "wanted the network, and a job has none" in loaded.summary()
    absent = await find(lab, "import torch, plums\n")
    assert "plums is neither beside the script nor installed" in absent.summary() and '"-m", ' in absent.summary()
    forged = "import os\nopen('.gpu-mcp/hotspots/recording.json', 'w').write('{\"operators\": 1}')\nos._exit(0)\n"
    assert (await find(lab, forged)).status == "failed"


async def test_without_torch_the_interpreter_is_named(lab: Lab):
    found = await find(lab, TRAIN, command=["/usr/bin/python3", "-S", "program.py"])
    assert found.status == "failed" and "/usr/bin/python3 cannot import torch" in found.summary()
    assert "judge_python" in found.summary() and (not PYTHON or f"begin the command with {PYTHON}" in found.summary())
    missing = await find(lab, TRAIN, command=["/no/such/python3", "program.py"])
    assert missing.status == "failed" and "there is no /no/such/python3 in the sandbox" in missing.summary()


def test_a_program_behind_env_is_told_how_to_begin():
    with pytest.raises(BadRequest, match="Begin with the interpreter; set variables in the program"):
        split_command(["/usr/bin/env", "A=1", "python3", "a.py"])


def test_only_python_programs_are_taken():
    assert split_command(["python3.11", "-u", "-W", "error", "a.py", "-m"]) == (
        ["python3.11", "-u", "-W", "error"],
        ["a.py", "-m"],
    )
    assert split_command(["python3", "-Pum", "a.b", "x"]) == (["python3", "-Pu"], ["-m", "a.b", "x"])
    assert split_command(["python3", "-uX", "dev", "-I", "-ma"]) == (["python3", "-uX", "dev", "-I"], ["-m", "a"])
    assert split_command(["python3", "-Xfrozen_modules=off", "-cpass"]) == (
        ["python3", "-Xfrozen_modules=off"],
        ["-c", "pass"],
    )
    assert ignores_environment(["python3", "-uE"]) and ignores_environment(["python3", "-W", "error", "-I"])
    assert not ignores_environment(["python3", "-W", "E", "-XI", "-uP"])
    for command in (
        [],
        ["./a.out"],
        ["python3", "-um"],
        ["python3", "-X"],
        ["python3"],
        ["python3", "-u"],
        ["python3", "-m"],
        ["python3", "-"],
    ):
        with pytest.raises(BadRequest):
            split_command(command)
