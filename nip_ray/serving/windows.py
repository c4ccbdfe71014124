"""Attention masks for models some or all of whose layers see a window of the last tokens only."""

from typing import Any

from torch import Tensor

from nip_ray.errors import UserError

_FULL, _SLIDING = "full_attention", "sliding_attention"


def refuse_other_layers(config: Any, name: str) -> None:
    """Raise UserError for a model with layers that keep no keys and values, such as recurrent ones."""
    others = set(getattr(config.get_text_config(), "layer_types", None) or ()) - {_FULL, _SLIDING}
    if others:
        raise UserError(
            f"{name}: this engine runs models with full or sliding attention, not {sorted(others)}; serve this one by"
            " vLLM"
        )


def layer_masks(config: Any, seen: Tensor, distance: Tensor) -> Any:
    """The `attention_mask` of a model: `seen` where all layers see everything, else a mask for each kind of layer, or
    the window's for all.

    seen: True where a token (second to last axis) may attend to another (last axis). distance: by how many positions
    the other is earlier, of a shape that broadcasts with `seen`.
    """
    text = config.get_text_config()
    kinds, window = set(getattr(text, "layer_types", None) or ()), getattr(text, "sliding_window", None)
    if window is None or (kinds and _SLIDING not in kinds):
        return seen
    near = seen & (distance < window)
    return {_FULL: seen, _SLIDING: near} if kinds else near
