"""A scripted agent for NCCL programs: forges the result, then leaves communication out, then does it; or never learns.

Runs sandboxed.
"""

import json
import os
import re
import sys

prompt = sys.stdin.read()
if '"title":"Hint"' in prompt:
    print("```json\n" + json.dumps({"kind": "correctness", "text": "leave the result's line alone"}) + "\n```")
    sys.exit()
number = int(re.search(r"This is edit (\d+)\.", prompt)[1])
CALL = "ncclReduce(recv, recv, 1024, ncclFloat, ncclProd, 0, comm, stream);"
assert CALL in prompt
if number == 1 or os.environ.get("SCENARIO") == "repeats":
    edits = [("p.device.cu", 'got == 0 ? "PASS" : "FAIL"', '"PASS"')]
elif number == 2:
    edits = [("p.device.cu", CALL, ";")]
else:
    kernel = """// The root multiplies what all ranks hold, element by element, into its own buffer.
__global__ static void product_kernel(ncclDevComm dc, ncclWindow_t w, size_t offset, size_t count, int root) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  float* own = static_cast<float*>(ncclGetLocalPointer(w, offset));
  for (size_t i = tid; i < (dc.lsaRank == root ? count : 0); i += threads) {
    float product = 1;
    for (int peer = 0; peer < dc.lsaSize; peer++) product *= static_cast<float*>(ncclGetLsaPointer(w, offset, peer))[i];
    own[i] = product;
  }
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

// Rank r stores part p of its send buffer"""
    called = """ncclx::Context* context = ncclx::context_of(comm);
  ncclx::Place place;
  if (ncclx::find(context, recv, 4096, &place))
    ncclx::product_kernel<<<16, 512, 0, stream>>>(context->device_comm, place.window, place.offset, 1024, 0);"""
    edits = [("ncclx_kernels.cuh", "// Rank r stores part p of its send buffer", kernel), ("p.device.cu", CALL, called)]
told = [{"path": path, "old": old, "new": new} for path, old, new in edits]
print("```json\n" + json.dumps({"edits": told, "idea": f"idea {number}"}) + "\n```")
