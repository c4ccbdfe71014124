"""How this process computes: threads, and how memory is given back."""

import ctypes
import os
import warnings
from contextlib import suppress

from nip_ray.errors import UserError

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # from malloc.h


def prepare_process(num_threads: int | None) -> None:
    """Torch threads of this process (None: $OMP_NUM_THREADS, else the cores that it may use, at most 8), and a calmer
    allocator.

    Small networks allocate and free megabytes thousands of times a second; glibc by default gives them back to the
    system each time and faults them in again. Keeping them is worth some per cent of an iteration.
    """
    import torch

    # of tqdm, which Ray imports, in a notebook without widgets
    warnings.filterwarnings("ignore", message="IProgress not found")
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if num_threads is None and asked.isdigit() and int(asked) == 0:
        raise UserError("OMP_NUM_THREADS is 0: unset it, or set it to 1 or more")
    torch.set_num_threads(num_threads or (int(asked) if asked.isdigit() else min(8, len(os.sched_getaffinity(0)))))
    with suppress(OSError, AttributeError):  # another C library: nothing to tune
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in ((_M_TRIM_THRESHOLD, 1 << 30), (_M_MMAP_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20)):
            mallopt(option, value)
