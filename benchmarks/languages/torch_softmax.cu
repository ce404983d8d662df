// An extension of torch for CUDA: an operator that returns its result, on the current stream.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

__global__ void softmax_rows(const float *x, float *y, int64_t cols) {
    const float *in = x + blockIdx.x * cols;
    float *out = y + blockIdx.x * cols, top = in[0], sum = 0;
    for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
    for (int64_t c = 0; c < cols; c++) sum += expf(in[c] - top);
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) out[c] = expf(in[c] - top) / sum;
}

at::Tensor softmax(const at::Tensor &x) {
    auto y = at::empty_like(x);
    softmax_rows<<<x.size(0), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.size(1));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}

TORCH_LIBRARY(languages, m) {
    m.def("softmax(Tensor x) -> Tensor");
    m.impl("softmax", c10::kCUDA, &softmax);
}
