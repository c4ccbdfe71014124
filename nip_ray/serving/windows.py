"""Attention masks of a model: what each token may attend to, also where some layers see a window of the last tokens."""

from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.serving.compat import adds_masks
from nip_ray.serving.model_folder import first_line

_FULL, _SLIDING = "full_attention", "sliding_attention"


def refuse_other_attention(model: Any, name: str) -> None:
    """Raise UserError for a model that cannot compute replies which share a beginning in one row, by masks: one with
    recurrent layers, and one that places or masks tokens in its own way."""
    others = set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {_FULL, _SLIDING}
    if fault := f"has layers of the kind {', '.join(sorted(others))}" if others else _masks_fault(model):
        raise UserError(
            f"{name}: its architecture ({model.config.model_type}) {fault}; choose another model, or serve this one by"
            " vLLM"
        )


@torch.inference_mode()
def _masks_fault(model: Any) -> str:
    """The fault of a model whose second of two branches in one row has not the log-probabilities that it has alone, ""
    for one without."""
    beginning, first, second = 6, 4, 2  # tokens
    place = torch.tensor([*range(beginning + first), *range(beginning, beginning + second)], device=model.device)
    branch = torch.tensor([0] * beginning + [1] * first + [2] * second, device=model.device)
    order = torch.arange(len(place), device=model.device)
    distance = place[:, None] - place
    seen = (order[:, None] >= order) & ((branch == 0) | (branch[:, None] == branch))
    ids = (7 + 3 * order) % model.get_input_embeddings().weight.shape[0]
    masks = layer_masks(model, seen[None, None], distance[None, None])
    try:
        shared = model(input_ids=ids[None], attention_mask=masks, position_ids=place[None], use_cache=False).logits
        alone = model(input_ids=ids[None, branch != 1], use_cache=False).logits
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError) as error:
        return f"refuses the masks of this engine ({first_line(error)[:120]})"
    one, other = (logits[0, -second:].float().log_softmax(-1) for logits in (shared, alone))
    off = float((one - other).abs().mean())
    most = 0.01 if model.dtype == torch.float32 else 0.1  # in half precision the same sums differ by some hundredths
    return "" if off <= most else f"masks tokens in a way of its own (log-probabilities are off by {off:.2g})"


def layer_masks(model: Any, seen: Tensor, distance: Tensor) -> Any:
    """The `attention_mask` of a model: `seen` where all layers see everything, else a mask for each kind of layer, or
    the window's for all.

    seen: True where a token (second to last axis) may attend to another (last axis). distance: by how many positions
    the other is earlier, of a shape that broadcasts with `seen`.
    """
    text = model.config.get_text_config()
    kinds, window = set(getattr(text, "layer_types", None) or ()), getattr(text, "sliding_window", None)

    def form(mask: Tensor) -> Tensor:
        if not adds_masks(text):
            return mask
        least = torch.finfo(model.dtype).min
        return torch.zeros_like(mask, dtype=model.dtype).masked_fill_(~mask, least)

    if window is None or (kinds and _SLIDING not in kinds):
        return form(seen)
    near = seen & (distance < window)
    return {_FULL: form(seen), _SLIDING: form(near)} if kinds else form(near)
