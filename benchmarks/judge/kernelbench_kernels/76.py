def launch(x, bias, weight, y):
    gemm[(8, 128)](x, weight, bias, y, 1024, 8192, 8192, 1, 8192, RELU=True, num_warps=8)  # noqa: F821 - gemm.py comes before it
