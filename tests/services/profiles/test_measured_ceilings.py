"""Ceilings of a GPU: measured by the driver alone, once a host, and said beside the data sheet's peaks.

The driver is a stand-in where there is no GPU: it takes two milliseconds for whatever is timed.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.package_files import WORKERS
from gpu_mcp_server.profilers import bottleneck
from gpu_mcp_server.profilers.roofline import Peaks, roofline
from gpu_mcp_server.services.profiles import measured_ceilings
from gpu_mcp_server.services.profiles.profiler import peaks_of
from gpu_mcp_server.workers import measure_ceilings
from tests.compiled import compiled
from tests.laboratory import laboratory
from tests.services.profiles.test_profiler import put_tools

DRIVER = """
#include <stdint.h>
#include <string.h>
#define WORKS(name) int name(void) { return 0; }
WORKS(cuInit) WORKS(cuDeviceGet) WORKS(cuDevicePrimaryCtxRetain) WORKS(cuCtxSetCurrent) WORKS(cuMemAlloc_v2)
WORKS(cuEventCreate) WORKS(cuEventRecord) WORKS(cuEventSynchronize) WORKS(cuCtxSynchronize) WORKS(cuMemsetD8_v2)
WORKS(cuMemcpyDtoDAsync_v2) WORKS(cuModuleLoadData) WORKS(cuModuleGetFunction) WORKS(cuLaunchKernel)
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Stand-in", size); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 16 ? 4 : 0; return 0; }
int cuMemGetInfo_v2(size_t *left, size_t *all) { *left = *all = (size_t)8 << 30; return 0; }
int cuEventElapsedTime(float *ms, void *from, void *to) { *ms = 2; return 0; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_STAND_IN"; return 0; }
"""


def test_bytes_and_operations_are_counted_whole(tmp_path: Path):
    command = ["gcc", "-w", "-shared", "-fPIC", "-o", "libcuda.so.1", "driver.c"]
    shutil.copy(compiled("libcuda.so.1", {"driver.c": DRIVER}, *command), tmp_path / "libcuda.so.1")
    script = [sys.executable, str(WORKERS / "measure_ceilings.py")]
    said = subprocess.run(script, env={"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    found = json.loads(said.stdout)
    assert found["device"] == "Stand-in"
    assert found["copy_gb_s"] == pytest.approx(8 * 2 * 1.073741824 / 2e-3)  # 8 copies of 1 GiB, read and written
    fmas = 4 * 8 * 256 * 4096 * 16 * 16  # SMs, blocks, threads, loops, sums, FMAs of each
    assert found["fma_tflop_s"] == pytest.approx(2e-12 * fmas / 2e-3)


def test_the_kernel_of_fmas_assembles_without_spills(tmp_path: Path):
    ptxas = shutil.which("ptxas") or shutil.which("/usr/local/cuda/bin/ptxas")
    if ptxas is None:
        pytest.skip("ptxas is not installed")
    (tmp_path / "k.ptx").write_bytes(measure_ceilings.ptx().rstrip(b"\0"))
    command = [ptxas, "-arch=sm_90", "-v", "k.ptx", "-o", "k.cubin"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "0 bytes spill stores" in said.stderr


async def test_a_host_is_measured_once_and_a_profile_says_it(monkeypatch: pytest.MonkeyPatch):
    async with laboratory() as lab:
        put_tools(lab, monkeypatch)
        probe = await lab.hosts.probe("local")
        ceilings = lab.profiles.profiler._ceilings
        first = await ceilings.measure_once("local", probe)
        assert first is not None and (first.copy_gb_s or "libcuda" in first.why or "cuInit" in first.why), first
        known = measured_ceilings.Ceilings(device="NVIDIA H200", copy_gb_s=4250.0, fma_tflop_s=61.0)
        await lab.store.db.execute("UPDATE capabilities SET json = ?", (known.model_dump_json(),))
        result = await lab.profiles.profiler.profile(RunTarget(command=["true"]))
        assert "an FMA loop reaches 61 here" in result.verdict and "a copy reaches 4.25 TB/s here" in result.verdict
        later = await lab.profiles.queries.ask(result.profile_id or "", "verdict")
        assert "a copy reaches 4.25 TB/s here" in later.text


def test_ceilings_of_another_device_are_not_this_ones():
    found = {"device": "NVIDIA H200", "copy_gb_s": 4250.0}
    same, other = peaks_of("NVIDIA H200", found), peaks_of("NVIDIA H100 80GB HBM3", found)
    assert same is not None and same.copy_gb_s == 4250 and (other is None or other.copy_gb_s is None)
    unknown = peaks_of("Some GPU", {"device": "Some GPU", "copy_gb_s": 100.0})
    assert unknown is not None and unknown.copy_gb_s == 100


def test_the_measured_stands_beside_the_peak_and_does_not_replace_it():
    metrics = {
        "flops32": 4e9,
        "bytes": 3.4e9,
    }
    reading = KernelReading(name="k", time_us=1000.0, total_us=1000.0, metrics=metrics)
    peaks = Peaks("sheet", 4800.0, {"float32": 67.0}, copy_gb_s=4250.0, fma_tflop_s=61.0)
    found = roofline(reading, peaks)
    assert found is not None and found.levels[0].peak_bandwidth_gb_s == 4800 and found.levels[0].measured_gb_s == 4250
    text = bottleneck.kernel_verdict(reading, peaks).verdict
    assert "dram 3.40 of 4.80 TB/s (71 %); a copy reaches 4.25 TB/s here" in text
