"""`drawing` under its name of version 0.3; now in `nip_ray.protocols.drawing`."""

import warnings

from nip_ray.protocols.drawing import drawing

__all__ = ["drawing"]
warnings.warn(
    "nip_ray.evaluation.protocols_page: import drawing from nip_ray.protocols.drawing", DeprecationWarning, stacklevel=2
)
