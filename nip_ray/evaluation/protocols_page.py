"""`drawing` as it was imported in version 0.3; it is in `nip_ray.protocols.drawing` now."""

import warnings

from nip_ray.protocols.drawing import drawing

__all__ = ["drawing"]
warnings.warn(
    "nip_ray.evaluation.protocols_page: import drawing from nip_ray.protocols.drawing", DeprecationWarning, stacklevel=2
)
