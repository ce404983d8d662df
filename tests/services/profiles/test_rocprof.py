"""Profiles on an AMD GPU: real jobs on pretended GPUs; rocprofv3 is a stand-in that writes what its documentation shows."""

import json
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.models.toolchains import Tool
from gpu_mcp_server.profilers import rocprof_commands
from gpu_mcp_server.services.lab import Lab
from tests.amd_laboratory import IDS, NAME, amd_laboratory, can_pretend
from tests.profilers.test_timelines import TRACE

pytestmark = [pytest.mark.anyio, *can_pretend]
HEAD = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name",'
    '"Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","SGPR_Count","Counter_Name","Counter_Value"\n'
)
ROCPROFV3 = """#!/usr/bin/python3
import json, os, subprocess, sys
options, program = sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]
folder = options[options.index("-d") + 1]
counters = [o for o in options[1:options.index("--output-format")] if o.isupper() or "_sum" in o]
if "WRITE_SIZE" in counters:
    sys.exit("E0101 counter WRITE_SIZE is not supported on this agent")
os.makedirs(folder)
code = subprocess.call(program)
if options[0] == "--kernel-trace":
    with open(folder + "/run_kernel_trace.csv", "w") as out: out.write(TRACE)
else:
    assert options[0] == "--pmc" and options[options.index("--kernel-include-regex") + 1] == "blur.*", options
    with open(folder + "/run_counter_collection.csv", "w") as out:
        out.write(HEAD)
        for name in counters:
            out.write('1,1,1,1,7,7,2097152,4,"void blur<float>(float*, int)",256,4096,0,36,24,"%s",32768\\n' % name)
with open(folder + "/run_agent_info.csv", "w") as out: out.write('"Node_Id"\\n0\\n')
sys.exit(code)
"""


def put_rocprof(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the laboratory's host the stand-in."""
    folder = lab.settings.data_dir / "tools"
    folder.mkdir(mode=0o755)
    path = folder / "rocprofv3"
    first, _, rest = ROCPROFV3.partition("\n")
    path.write_text(f"{first}\nTRACE, HEAD = {TRACE!r}, {HEAD!r}\n{rest}")
    path.chmod(0o755)
    whole = lab.hosts.probe

    async def probe(name: str) -> Any:
        about = await whole(name)
        tools = {"rocprofv3": Tool(path=str(path), version="1.0.0", roots=[str(folder)])}
        return about.model_copy(update={"toolchains": about.toolchains.model_copy(update={"tools": tools})})

    monkeypatch.setattr(lab.hosts, "probe", probe)


async def test_kernels_have_times_and_counters_and_a_group_that_fails_is_named(monkeypatch: pytest.MonkeyPatch):
    async with amd_laboratory(nvidia=False) as lab:
        with pytest.raises(ToolMissing, match="rocprofv3"):
            await lab.profiles.profiler.profile(RunTarget(command=["true"]))
        put_rocprof(lab, monkeypatch)
        script = 'echo "$ROCR_VISIBLE_DEVICES"; test -e /dev/kfd'
        found = await lab.profiles.profiler.profile(RunTarget(command=["sh", "-c", script], kernel="blur.*"))
        assert (found.status, found.profiler, found.device) == ("ok", "rocprofv3 1.0.0", NAME), found
        (kernel,) = found.kernels
        assert (kernel.name, kernel.calls, kernel.time_us) == ("blur<float>", 2, 20.0)
        assert [m for m in found.not_measured if m.startswith("counters WRITE_SIZE: rocprofv3 gave none")]
        kept = (await lab.store.experience.get(found.profile_id or "")).evidence["profile_artifact"]
        (reading,) = json.loads(await lab.store.artifacts.read(kept))
        assert (reading["metrics"]["SQ_WAVES"], reading["metrics"]["FETCH_SIZE"]) == (32768, 32768)
        quick = await lab.profiles.profiler.profile(RunTarget(command=["true"]), "quick")
        assert quick.status == "ok" and [m for m in quick.not_measured if "level quick reads none" in m]
        with pytest.raises(ToolMissing, match="An NVIDIA GPU"):
            await lab.profiles.checker.check(RunTarget(command=["true"]))
        with pytest.raises(BadRequest, match="either command or attempt"):
            await lab.profiles.profiler.profile(RunTarget())
        assert (await lab.hosts.probe("local")).amd_gpus[0]["uuid"] == IDS[0]


def test_each_group_is_a_run_with_a_folder_of_its_own():
    runs = rocprof_commands.commands("/r", "full", None, "/p", ["./app", "--", "-x"])
    assert len(runs) == 1 + len(rocprof_commands.GROUPS["full"]) and len({r[r.index("-d") + 1] for r in runs}) == len(
        runs
    )
    assert all(run[run.index("--") :] == ["--", "./app", "--", "-x"] for run in runs)
    assert (
        rocprof_commands.missing_counters("standard", [n for g in rocprof_commands.GROUPS["standard"] for n in g]) == []
    )
