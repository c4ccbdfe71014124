"""Functions of tensors whose kernels a GPU repeats as one CUDA graph, which takes the starting of each of them away.

Written against `torch.cuda.graph` (torch 2.13), and not run: no GPU was at hand. On a CPU a function is simply called.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Given = Tensor | None


class Captured:
    """`function`, captured once for each set of shapes that it is called with.

    function: tensors or None in, a tuple of tensors or None out. It waits for nothing on the device, its shapes do not depend on values,
    and all that lasts (weights, moments, learning rates) it changes in place. The first call runs as it is, since libraries set
    themselves up then; the second is captured. What a call returns stays what it is when the next one is made.
    """

    def __init__(self, function: Callable[..., tuple[Given, ...]], device: torch.device) -> None:
        self.function, self.device = function, device
        self._captured: dict[Any, tuple[Any, list[Given], tuple[Given, ...]] | None] = {}

    def __call__(self, *given: Given) -> tuple[Given, ...]:
        if self.device.type != "cuda":
            return self.function(*given)
        key = tuple(None if x is None else (tuple(x.shape), x.dtype) for x in given)
        if key not in self._captured:
            self._captured[key] = None
            aside, here = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                found = self.function(*given)
            here.wait_stream(aside)
            return found
        known = self._captured[key]
        if known is None:
            inputs = [None if x is None else x.clone() for x in given]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = self.function(*inputs)
            known = self._captured[key] = graph, inputs, found
        graph, inputs, found = known
        for place, x in zip(inputs, given, strict=True):
            if place is not None and x is not None:
                place.copy_(x)
        graph.replay()
        return tuple(None if x is None else x.clone() for x in found)
