// The accumulator is changed between the multiplication and the wait: ptxas runs one wgmma behind the other.
#include <cuda_fp16.h>
#include <cstdint>

__global__ void accumulate(float *sums, uint64_t left, uint64_t right, int steps) {
    float part[4] = {};
    for (int step = 0; step < steps; step++) {
        asm volatile("wgmma.fence.sync.aligned;");
        asm volatile(
            "{ .reg .pred go; setp.ne.b32 go, 1, 0;"
            " wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, go, 1, 1, 0, 0; }"
            : "+f"(part[0]), "+f"(part[1]), "+f"(part[2]), "+f"(part[3])
            : "l"(left + step), "l"(right + step));
        part[0] *= 0.5f;
        asm volatile("wgmma.commit_group.sync.aligned;");
        asm volatile("wgmma.wait_group.sync.aligned 0;");
    }
    for (int each = 0; each < 4; each++) sums[threadIdx.x * 4 + each] = part[each];
}
