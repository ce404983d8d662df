import torch

side = None


def launch(a, b, y, n):
    global side
    side = side or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.add(a, b, out=y)
    torch.cuda.current_stream().wait_stream(side)
