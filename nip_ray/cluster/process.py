"""Settings of this process: threads and memory allocation."""

import ctypes
import os
import warnings
from contextlib import suppress

from nip_ray.errors import UserError

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # from malloc.h


def prepare_process(num_threads: int | None) -> None:
    """Set this process's torch threads (None: $OMP_NUM_THREADS, else usable cores, at most 8), and tune the allocator.

    Small networks allocate and free megabytes thousands of times a second; by default glibc returns them to the system
    each time and faults them in again. Keeping them saves a few per cent of an iteration.
    """
    import torch

    # from tqdm, which Ray imports, in a notebook without widgets
    warnings.filterwarnings("ignore", message="IProgress not found")
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if num_threads is None and asked.isdigit() and int(asked) == 0:
        raise UserError("OMP_NUM_THREADS is 0: unset it, or set it to 1 or more")
    torch.set_num_threads(num_threads or (int(asked) if asked.isdigit() else min(8, len(os.sched_getaffinity(0)))))
    with suppress(OSError, AttributeError):  # another C library: cannot be tuned
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in ((_M_TRIM_THRESHOLD, 1 << 30), (_M_MMAP_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20)):
            mallopt(option, value)
