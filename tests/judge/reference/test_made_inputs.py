"""Inputs that a problem's own code makes: fresh by each seed, like what was recorded, where they are made sooner."""

import json
import subprocess

import pytest

from gpu_mcp_server.package_files import JUDGE, WORKERS
from tests.judge.harness import torch_python
from tests.judge_package import packages

SCRIPT = """
import json, sys, time
sys.path[:0] = sys.argv[1:]
import torch
from call_writer import SampleWriter
from gpu_mcp_judge.adapters.call_records import read_samples
from gpu_mcp_judge.adapters.captured_calls import make_tensor
from gpu_mcp_judge.reference.made_inputs import InputMaker

torch.manual_seed(5)
recorded = {
    "plain": torch.randn(40, 30), "half": torch.randn(6, 50).half(), "double": torch.randn(7, 9).double(),
    "turned": torch.randn(30, 40).t(), "spread": torch.randn(1, 30).expand(20, 30), "alike": torch.zeros(300),
    "zeros": torch.relu(torch.randn(50, 20)), "later": torch.cat([torch.zeros(200), torch.randn(200)]),
    "indices": torch.arange(12), "large": torch.randn(3000) * 2 + 5,
    "nothing": torch.zeros(1), "scalar": torch.zeros(()), "empty": torch.zeros(0, 3),
}
writer = SampleWriter(1 << 20, 1 << 20)
about = {name: writer.add(name, value, 1000 if name == "large" else None) for name, value in recorded.items()}
samples = read_samples(writer.content())
made = []
for seed in (1, 1, 2):
    torch.manual_seed(seed)
    made.append({name: make_tensor(each, samples) for name, each in about.items()})
bad = []
for name, old in recorded.items():
    first, again, other = (each[name] for each in made)
    if (first.dtype, first.shape, first.stride()) != (old.dtype, old.shape, old.stride()):
        bad.append(name + ": other layout")
    if not torch.equal(first, again):
        bad.append(name + ": other values by the same seed")
    if torch.equal(first, other) != (name in ("indices", "empty")):
        bad.append(name + ": replayed, or indices changed")
    if name in ("plain", "half", "double", "turned", "zeros"):  # by a permutation of rows: each is shrunk by half at most
        rows = [(new / row).nan_to_num(nan=1.0) for new in first[:1].double() for row in old.double()]
        fits = [bool(((part > 0.49) & (part < 1.01)).all()) for part in rows]
        if sum(fits) != 1:
            bad.append(name + ": no row of the recorded ones")
if not 0.2 < made[0]["alike"].std() * 2 < 0.4 or made[0]["alike"].abs().max() > 0.25:
    bad.append("alike: not moved from 0 on both sides")
large = made[0]["large"]
if abs(large.mean() - 5) > 0.3 or abs(large.std() - 2) > 0.3 or large.min() < recorded["large"].min() - 1e-5:
    bad.append("large: another distribution")
if large.unique().numel() < 2500:
    bad.append("large: few values")

def slow_here(count=[0]):
    count[0] += 1
    if torch.empty(0).device.type == "cpu":
        time.sleep(0.2)
    return [torch.rand(3), count[0]]

def here_alone():
    return [torch.from_numpy(torch.rand(3).numpy())]

torch.cuda.synchronize = lambda device: None  # the device without data stands for a GPU
places = []
for make in (slow_here, here_alone):
    maker = InputMaker(make, torch.device("meta"))
    places.append([maker.make(seed, {"n": n})[0].device.type for seed, n in ((1, 1), (2, 1), (3, 2))])
alone = InputMaker(here_alone, torch.device("meta"))
mine = alone.make(9, {})[0]
torch.manual_seed(9)
places.append(torch.equal(mine, torch.rand(3)))
print(json.dumps([bad, places]))
"""


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
def test_recorded_values_are_varied_and_made_where_that_is_sooner():
    ran = subprocess.run(
        [torch_python(), "-I", "-c", SCRIPT, packages(), str(WORKERS / "parts"), str(JUDGE / "adapters")],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    bad, places = json.loads(ran.stdout)
    assert not bad
    assert places == [["meta"] * 3, ["cpu"] * 3, True]
