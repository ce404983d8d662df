import torch
import triton
import triton.language as tl


@triton.jit
def kernel(a, b, c, m, n, kk, A: tl.constexpr, B: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    da = tl.make_tensor_descriptor(a, [m, kk], [kk, 1], [A, K])
    db = tl.make_tensor_descriptor(b, [kk, n], [n, 1], [K, B])
    dc = tl.make_tensor_descriptor(c, [m, n], [n, 1], [A, B])
    wide = tl.cdiv(n, B)
    for tile in range(tl.program_id(0), tl.cdiv(m, A) * wide, N):
        acc = tl.zeros((A, B), tl.float32)
        for k0 in range(0, kk, K):
            acc = tl.dot(da.load([tile // wide * A, k0]), db.load([k0, tile % wide * B]), acc)
        dc.store([tile // wide * A, tile % wide * B], acc.to(tl.float16))


def alloc(size, alignment, stream):
    return torch.empty(size, device="cuda", dtype=torch.int8)


def launch(a, b, c, m, k_, n):
    if n % 8 or k_ % 8:
        torch.matmul(a, b, out=c)
        return
    triton.set_allocator(alloc)
    kernel[(132,)](a, b, c, m, n, k_, A=128, B=128, K=64, N=132, num_warps=8)
