"""AMD's GPUs as the kernel lists them, and jobs that have them: on trees and nodes that stand for hardware."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mcp_server.hostd.gpus import kfd
from gpu_mcp_server.hostd.gpus.gpu_matching import matching_gpus
from gpu_mcp_server.hostd.gpus.host_gpus import environment_of_lease
from gpu_mcp_server.hostd.gpus.kfd import KfdTopology, add_details, visible_devices
from gpu_mcp_server.hostd.protocol import GpuRequest, ProcessSpec
from tests.hostd.conftest import needs_root
from tests.hostd.gpus.test_gpu_waiting import Pool, end_broker
from tests.hostd.kfd_trees import device_nodes, put_tree

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("amd")]
no_kfd = pytest.mark.skipif(Path("/dev/kfd").exists(), reason="this machine has AMD's driver")
FIRST, SECOND, MISSING = 241, 242, 243
IDS = ("GPU-00000000000000a1", "GPU-00000000000000a2")
AMD = GpuRequest(1, "exclusive", vendor="amd", wait_s=20.0)
SCRIPT = """
import errno, os
def code(path):
    try: os.close(os.open(path, os.O_RDWR))
    except OSError as error: return errno.errorcode[error.errno]
    return "opened"
print(*(code(p) for p in ("/dev/kfd", "/dev/dri/renderD241", "/dev/dri/renderD242", "/dev/nvidia91")))
print(os.environ.get("ROCR_VISIBLE_DEVICES"), os.environ.get("HIP_VISIBLE_DEVICES"), os.environ.get("CUDA_VISIBLE_DEVICES"))
"""


@pytest.fixture
def sys_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tree with two GPUs whose nodes are files of this test, and one without a render node."""
    put_tree(
        tmp_path,
        {"minor": FIRST, "unique_id": 0xA1, "name": "AMD Instinct MI300X", "used": 5 << 20, "pids": {os.getpid(): 1 << 20, 1: 0}},
        {"minor": SECOND, "unique_id": 0xA2},
        {"minor": MISSING, "unique_id": 0xA3},
    )  # fmt: skip
    for name in ("kfd", f"renderD{FIRST}", f"renderD{SECOND}"):
        (tmp_path / name).touch()
    monkeypatch.setattr(kfd, "DRIVER_NODE", str(tmp_path / "kfd"))
    monkeypatch.setattr(kfd, "RENDER_NODE", str(tmp_path / "renderD%d"))
    monkeypatch.delenv(kfd.VISIBLE, raising=False)
    return tmp_path


def test_a_gpu_is_what_the_kernel_says_and_one_without_its_node_is_named(sys_tree: Path):
    topology = KfdTopology(str(sys_tree))
    first, second = topology.gpus()
    assert (first["vendor"], first["uuid"], first["name"], first["arch"]) == (
        "amd",
        IDS[0],
        "AMD Instinct MI300X",
        "gfx942",
    )
    assert (first["minor"], first["bdf"], first["index"]) == (FIRST, "0000:01:00.0", 0)
    assert (first["memory_total_bytes"], first["memory_used_bytes"]) == (192 << 30, 5 << 20)
    assert first["pids"] == [os.getpid()] == topology.pids(IDS[0]), "who holds no memory does not compute there"
    assert (second["name"], second["pids"], second["memory_used_bytes"]) == ("AMD GPU gfx942", [], None)
    (said,) = topology.left_out
    assert said == f"AMD GPU of KFD node 3 is left out: its render node {sys_tree}/renderD{MISSING} is missing"
    assert KfdTopology(str(sys_tree)).pids("GPU-00000000000000ff") == []


def test_without_the_driver_s_node_all_are_left_out(sys_tree: Path):
    (sys_tree / "kfd").unlink()
    topology = KfdTopology(str(sys_tree))
    assert topology.gpus() == [] and len(topology.left_out) == 3 and "kfd is missing" in topology.left_out[0]
    assert KfdTopology(str(sys_tree / "elsewhere")).gpus() == []


@pytest.mark.parametrize(("wish", "indices"), [("0", [FIRST]), ("1,GPU-00000000000000A1", [FIRST, SECOND]), ("", [])])
def test_an_allocation_s_own_choice_is_kept(
    sys_tree: Path, monkeypatch: pytest.MonkeyPatch, wish: str, indices: list[int]
):
    monkeypatch.setenv(kfd.VISIBLE, wish)
    assert [g["minor"] for g in KfdTopology(str(sys_tree)).gpus()] == indices


def test_gpus_without_an_id_of_their_own_go_by_node_and_index(sys_tree: Path):
    put_tree(
        sys_tree,
        {"minor": FIRST, "unique_id": 0xB},
        {"minor": SECOND, "unique_id": 0xB},
        {"minor": MISSING, "unique_id": 0},
    )
    (sys_tree / f"renderD{MISSING}").touch()
    gpus = KfdTopology(str(sys_tree)).gpus()  # partitions of one GPU have its id; older ones have none
    assert [g["uuid"] for g in gpus] == [f"amd-renderD{n}" for n in (FIRST, SECOND, MISSING)]
    assert visible_devices(gpus[1:], hidden=True) == "0,1" and visible_devices(gpus[1:], hidden=False) == "1,2"
    assert environment_of_lease(gpus[:1], hidden=True)["ROCR_VISIBLE_DEVICES"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in environment_of_lease(gpus[:1], hidden=False), "HIP would obey it, too"


def test_what_amds_tools_say_is_added_by_address(sys_tree: Path):
    gpus = KfdTopology(str(sys_tree)).gpus()
    rows = [
        {"vendor": "amd", "uuid": "35ff74a1", "index": 7, "bdf": "0000:02:00.0", "name": "MI300X OAM", "power_w": 140, "arch": "gfx000"},
        {"vendor": "amd", "uuid": "elsewhere", "bdf": None, "name": "AMD GPU"},
    ]  # fmt: skip
    (first, second), others = add_details(gpus, rows)
    assert first == gpus[0] and (second["name"], second["power_w"]) == ("MI300X OAM", 140)
    assert (second["uuid"], second["index"], second["arch"]) == (IDS[1], 1, "gfx942")
    assert others == rows[1:], "it is shown, and no job can have it"


def test_a_job_has_gpus_of_one_vendor():
    def card(uuid: str, vendor: str = "nvidia", arch: str = "sm_90"):
        return {"uuid": uuid, "vendor": vendor, "arch": arch}

    mixed = [card("n"), card("a", "amd", "gfx942"), card("b", "amd", "gfx90a")]

    def names(**want):
        return [g["uuid"] for g in matching_gpus(mixed, GpuRequest(**{"count": 1, "mode": "exclusive", **want}))]

    assert names() == ["n"] and names(vendor="amd") == ["a", "b"] and names(vendor="") == ["n"]
    assert names(vendor="", count=2) == ["a", "b"] and names(count=2) == ["n"]
    assert names(vendor="", arch="gfx90a") == ["b"] and names(arch="gfx942") == []


@given(st.dictionaries(st.sampled_from(["gpu_id", "properties", "mem_banks"]), st.binary(max_size=60)))
def test_no_tree_makes_it_raise(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]):
    root = tmp_path_factory.mktemp("sys")
    node = root / "class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    for name, data in files.items():
        (node / name).write_bytes(data)
    KfdTopology(str(root)).gpus()


@pytest.fixture(params=["full", "namespaces", "landlock"])
async def mixed(request: pytest.FixtureRequest, open_lab, state: Path):
    """Return a hostd with one GPU of NVIDIA's, two of AMD's and a third whose render node is missing."""
    tree, folder = state.parent / "sys", state.parent
    put_tree(tree, *({"minor": m, "unique_id": 0xA1 + n} for n, m in enumerate((FIRST, SECOND, MISSING))))
    (folder / "gpus.json").write_text(json.dumps([{"uuid": "GPU-n", "minor": None}]))
    env = {"GPU_MCP_HOSTD_SYS": str(tree), "GPU_MCP_HOSTD_GPUS": str(folder / "gpus.json")}
    with device_nodes(FIRST, SECOND):
        pool = Pool(await open_lab(request.param, **env, GPU_MCP_HOSTD_LOCKS=str(folder / "locks")), folder)
        yield pool
        end_broker(pool)


@needs_root
@no_kfd
async def test_a_job_sees_the_nodes_of_its_own_gpu_alone(mixed: Pool):
    hidden = "EACCES" if mixed.lab.level == "landlock" else "ENOENT"
    seen = await mixed.lab.python(SCRIPT, gpus=AMD._replace(uuids=(IDS[1],)))
    nodes, told = seen.text.splitlines()
    assert (seen.record.status, seen.record.gpus) == ("ok", (IDS[1],)), seen
    assert nodes.split() == ["ENXIO", hidden, "ENXIO", "ENOENT"] and told == f"{IDS[1]} None None"
    assert ("ROCm may find no GPU" in seen.record.note) == (mixed.lab.level == "landlock")
    both = await mixed.lab.python(SCRIPT, gpus=AMD._replace(count=2))
    assert both.text.splitlines() == ["ENXIO ENXIO ENXIO ENOENT", f"{','.join(IDS)} None None"]
    assert both.record.note == ""
    for gpus in (GpuRequest(), AMD._replace(vendor="nvidia"), AMD._replace(vendor="")):
        without = await mixed.lab.python(SCRIPT, gpus=gpus)
        assert without.text.split()[:3] == [hidden] * 3 and without.record.gpus == (("GPU-n",) if gpus.count else ())


@needs_root
@no_kfd
@pytest.mark.parametrize("mixed", ["full"], indirect=True)
async def test_amds_gpus_are_leased_queued_and_reserved_as_nvidias_are(mixed: Pool):
    held = [await mixed.start(AMD), await mixed.start(AMD)]
    nvidia = await mixed.lab.run("true", gpus=GpuRequest(1, "exclusive", wait_s=20.0))
    assert (nvidia.record.status, nvidia.record.gpus) == ("ok", ("GPU-n",)), "the other vendor's are free"
    waits = await mixed.queue(AMD)
    state = (await mixed.lab.link.call("gpus"))[0]
    assert [(g["uuid"], bool(g["locked_by"])) for g in state["gpus"]] == [
        ("GPU-n", False),
        (IDS[0], True),
        (IDS[1], True),
    ]
    assert [s for s in state["left_out"] if "renderD243 is missing" in s]
    await mixed.lab.link.call("cancel", job=held[1])
    assert (await mixed.lab.wait(waits)).record.gpus == (IDS[1],)
    want = GpuRequest(1, "exclusive", vendor="amd", keep_s=30.0, idle_s=30.0, wait_s=20.0)
    spec = mixed.lab.spec(purpose="reserve", processes=(ProcessSpec(("reservation",)),), gpus=want, detached=True)
    await mixed.lab.submit(spec)
    while not any(r["lease_id"] == spec.id for r in await mixed.reservations()):
        await asyncio.sleep(0.005)
    inside = await mixed.lab.run("true", gpus=AMD._replace(lease=spec.id))
    assert (inside.record.status, inside.record.gpus, inside.record.note) == ("ok", (IDS[1],), "")
    await mixed.lab.link.call("cancel", job=spec.id)
    await mixed.lab.link.call("cancel", job=held[0])
    await mixed.lab.wait(spec.id)
    few = await mixed.lab.run("true", gpus=AMD._replace(count=3))
    assert (few.record.status, few.record.note) == ("no_gpu", "3 GPUs wanted, 2 fit (amd)")
