def launch(x, y, n):
    y.fill_(float(x.sum().item()))
