// A product of CUTLASS 3 for Hopper: float16 in, float32 out, TMA and warp-specialized wgmma.
#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/util/packed_stride.hpp"
using namespace cute;
using Block = Shape<_128, _128, _64>;
using Grid = Shape<_1, _1, _1>;
using Row = cutlass::layout::RowMajor;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Block, Grid, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, void, Row, 4, float, Row, 4, cutlass::epilogue::collective::EpilogueScheduleAuto>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, cutlass::half_t, Row, 8, cutlass::half_t, Row, 8, float, Block, Grid,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::collective::KernelScheduleAuto>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
extern "C" int launch(const __half *a, const __half *b, float *c, int64_t m, int64_t n, int64_t k, cudaStream_t stream) {
    int M = m, N = n, K = k;
    auto sa = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {M, K, 1});
    auto sb = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {N, K, 1});
    auto sc = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {M, N, 1});
    typename Gemm::Arguments args{cutlass::gemm::GemmUniversalMode::kGemm, {M, N, K, 1},
        {reinterpret_cast<const cutlass::half_t *>(a), sa, reinterpret_cast<const cutlass::half_t *>(b), sb},
        {{1.0f, 0.0f}, nullptr, sc, c, sc}};
    Gemm gemm;
    if (gemm.can_implement(args) != cutlass::Status::kSuccess) return 1;
    static void *workspace = nullptr;
    if (workspace == nullptr && cudaMalloc(&workspace, Gemm::get_workspace_size(args) + 16)) return 2;
    if (gemm.initialize(args, workspace, stream) != cutlass::Status::kSuccess) return 3;
    return gemm.run(stream) == cutlass::Status::kSuccess ? 0 : 4;
}
