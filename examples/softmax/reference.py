"""Row-wise softmax in NumPy: what is to be computed, and the baseline."""

import numpy as np


def softmax(x: np.ndarray) -> np.ndarray:
    """Return exp(x) over its sum along each row, shifted by the row's maximum so that nothing overflows."""
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)
