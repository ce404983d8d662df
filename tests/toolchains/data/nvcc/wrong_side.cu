int count(int n) { return n * 2; }
__global__ void k(int *x) { x[0] = count(x[0]); }
__host__ __device__ int both(int n) { return count(n); }
__global__ void l(int *x) { x[0] = both(x[0]); }
__device__ int on_device;
void reads() { on_device = 7; }
