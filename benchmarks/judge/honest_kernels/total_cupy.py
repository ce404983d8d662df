import cupy
import torch


def launch(x, y, n):
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        cupy.from_dlpack(y)[...] = cupy.from_dlpack(x).sum()
