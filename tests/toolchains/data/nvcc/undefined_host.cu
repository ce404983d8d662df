void elsewhere_on_host(int);
__global__ void twice(float *x) { x[threadIdx.x] *= 2.f; }
int main() {
  twice<<<1, 32>>>(nullptr);
  elsewhere_on_host(1);
}
