def launch(a, b):
    return a + b
