// One tile of a product on Hopper's tensor cores: instructions that exist on sm_90a alone.
#include <cstdint>
#include <cuda_fp16.h>

__device__ uint64_t descriptor(const void *tile) {
    uint64_t address = __cvta_generic_to_shared(tile);
    return (address & 0x3FFFF) >> 4 | 1ull << 16 | 8ull << 32;
}

__global__ void __launch_bounds__(128) product(const __half *a, const __half *b, float *c) {
    __shared__ alignas(128) __half left[64 * 16], right[8 * 16];
    for (int i = threadIdx.x; i < 64 * 16; i += 128) left[i] = a[i];
    right[threadIdx.x] = b[threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float sum[4] = {};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "l"(descriptor(left)), "l"(descriptor(right)));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; i++) c[threadIdx.x * 4 + i] = sum[i];
}
