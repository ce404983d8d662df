"""Has torch import what it needs for tensors without data: some 900 modules, else in the first operation on them.

That took 1.4 of the 3 seconds in which a module problem is registered (torch 2.13), with the GPU held.
"""

import importlib
from typing import Any

from .tensor_recorder import MetaAddresses, Recorder

torch: Any = importlib.import_module("torch")

with torch.device("meta"), MetaAddresses(), Recorder():
    torch.zeros(1).relu()
