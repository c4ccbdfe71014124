"""Attention masks of a model: what each token may attend to, also where some layers see a window of the last tokens."""

from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError

_FULL, _SLIDING = "full_attention", "sliding_attention"
_BEGINNING, _FIRST, _SECOND = 6, 4, 2  # tokens of the trial of `refuse_other_attention`


@torch.inference_mode()
def refuse_other_attention(model: Any, name: str) -> None:
    """Raise UserError for a model that cannot compute replies which share a beginning in one row, by masks: one with
    recurrent layers, and one that places or masks tokens in its own way.

    The second of two branches must have the log-probabilities that it has alone.
    """
    others = set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {_FULL, _SLIDING}
    reason = f"has layers of the kind {', '.join(sorted(others))}" if others else ""
    if not others:
        place = torch.tensor([*range(_BEGINNING + _FIRST), *range(_BEGINNING, _BEGINNING + _SECOND)])
        branch = torch.tensor([0] * _BEGINNING + [1] * _FIRST + [2] * _SECOND)
        order = torch.arange(len(place))
        distance = place[:, None] - place
        seen = (order[:, None] >= order) & ((branch == 0) | (branch[:, None] == branch))
        ids = (7 + 3 * order) % model.get_input_embeddings().weight.shape[0]
        alone = branch != 1
        try:
            device = model.device
            masks = layer_masks(model, seen[None, None].to(device), distance[None, None].to(device))
            ours = model(
                input_ids=ids[None].to(device),
                attention_mask=masks,
                position_ids=place[None].to(device),
                use_cache=False,
            ).logits[0, -_SECOND:]
            plain = model(input_ids=ids[alone][None].to(device), use_cache=False).logits[0, -_SECOND:]
        except (ValueError, TypeError, RuntimeError, IndexError, AttributeError) as error:
            reason = f"refuses the masks of this engine ({str(error).strip().splitlines()[0][:120]})"
        else:
            off = float((ours.float().log_softmax(-1) - plain.float().log_softmax(-1)).abs().mean())
            # in half precision the same sums differ by some hundredths
            if not off <= (0.01 if model.dtype == torch.float32 else 0.1):
                reason = f"attends otherwise than by the masks of this engine (log-probabilities are off by {off:.2g})"
    if reason:
        raise UserError(
            f"{name}: its architecture ({model.config.model_type}) {reason}; choose another model, or serve this one by"
            " vLLM"
        )


def layer_masks(model: Any, seen: Tensor, distance: Tensor) -> Any:
    """The `attention_mask` of a model: `seen` where all layers see everything, else a mask for each kind of layer, or
    the window's for all.

    seen: True where a token (second to last axis) may attend to another (last axis). distance: by how many positions
    the other is earlier, of a shape that broadcasts with `seen`.
    """
    text = model.config.get_text_config()
    kinds, window = set(getattr(text, "layer_types", None) or ()), getattr(text, "sliding_window", None)

    def form(mask: Tensor) -> Tensor:
        if text._attn_implementation != "eager":
            return mask
        least = torch.finfo(model.dtype).min  # eager attention adds the mask to its scores
        return torch.zeros_like(mask, dtype=model.dtype).masked_fill_(~mask, least)

    if window is None or (kinds and _SLIDING not in kinds):
        return form(seen)
    near = seen & (distance < window)
    return {_FULL: form(seen), _SLIDING: form(near)} if kinds else form(near)
