extern "C" int launch(const float *a, const float *b, float *y, cudaStream_t stream) {
    gemm<false, false><<<dim3(32, 32), 256, 0, stream>>>(a, b, nullptr, y, 4096, 4096, 4096);
    return cudaGetLastError();
}
