// One kernel keeps an array in local memory, the other has more static shared memory than every target allows.
__global__ void gathered(float *sums, const int *order, int count) {
    float seen[64];
    for (int at = 0; at < 64; at++) seen[at] = sums[at * count];
    float total = 0;
    for (int at = 0; at < count; at++) total += seen[order[at]];
    sums[threadIdx.x] = total;
}

__global__ void swapped(float *values) {
    __shared__ float tile[16384];
    tile[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = tile[threadIdx.x ^ 1];
}
