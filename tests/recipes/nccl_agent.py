"""A scripted agent for NCCL programs: forges the result, then leaves communication out, then does it. Runs sandboxed."""

import json
import re
import sys

prompt = sys.stdin.read()
if '"title":"Hint"' in prompt:
    print("```json\n" + json.dumps({"kind": "correctness", "text": "leave the result's line alone"}) + "\n```")
    sys.exit()
number = int(re.search(r"This is edit (\d+)\.", prompt)[1])
CALL = "ncclBroadcast(recv, recv, 1024, ncclFloat, 0, comm, stream);"
assert CALL in prompt
if number == 1:
    edits = [("p.device.cu", 'got == 0 ? "PASS" : "FAIL"', '"PASS"')]
elif number == 2:
    edits = [("p.device.cu", CALL, ";")]
else:
    kernel = """// The root stores its bytes into everybody's buffer.
__global__ static void broadcast_kernel(ncclDevComm dc, ncclWindow_t w, size_t offset, size_t bytes, int root) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  const char* from = static_cast<const char*>(ncclGetLsaPointer(w, offset, root));
  if (dc.lsaRank == root)
    for (int peer = 0; peer < dc.lsaSize; peer++)
      if (peer != root) copy_bytes(static_cast<char*>(ncclGetLsaPointer(w, offset, peer)), from, bytes, tid, threads);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

// Rank r stores part p of its send buffer"""
    called = """ncclx::Context* context = ncclx::context_of(comm);
  ncclx::Place place;
  if (ncclx::find(context, recv, 4096, &place))
    ncclx::broadcast_kernel<<<16, 512, 0, stream>>>(context->device_comm, place.window, place.offset, 4096, 0);"""
    edits = [("ncclx_kernels.cuh", "// Rank r stores part p of its send buffer", kernel), ("p.device.cu", CALL, called)]
told = [{"path": path, "old": old, "new": new} for path, old, new in edits]
print("```json\n" + json.dumps({"edits": told, "idea": f"idea {number}"}) + "\n```")
