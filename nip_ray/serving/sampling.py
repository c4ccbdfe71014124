"""Drawing the next tokens of many replies at once, each from its own stream.

Decisions that matter here: a reply's uniform numbers come from its own seed, one for each token, and are turned into tokens by inverting
the distribution function (over tokens in the order of their probability where a nucleus is asked for, else of their number). So
neighbours in the batch have no say in what is drawn, and float noise in the logits changes a token only where a number falls on a border.
Temperature 0 takes the likeliest token.
"""

import torch
from torch import Tensor

from nip_ray.seeding import generator


def uniforms(seed: int, count: int) -> Tensor:
    """`count` numbers in [0, 1) that depend on `seed` alone (double precision, on the CPU)."""
    return torch.rand(count, generator=generator(seed, "reply"), dtype=torch.float64)


def draw(logits_BV: Tensor, temperature_B: Tensor, top_p_B: Tensor, uniform_B: Tensor) -> Tensor:
    """One token for each row. top_p: of the tokens, the likeliest are kept that have this probability together (Holtzman et al., 2020)."""
    token_B = logits_BV.argmax(-1)
    plain_B, nucleus_B = (temperature_B > 0) & (top_p_B >= 1), (temperature_B > 0) & (top_p_B < 1)
    if plain_B.any():
        prob_BV = _probabilities(logits_BV[plain_B], temperature_B[plain_B])
        token_B[plain_B] = _inverse(prob_BV, uniform_B[plain_B])
    if nucleus_B.any():
        prob_BV, order_BV = torch.sort(_probabilities(logits_BV[nucleus_B], temperature_B[nucleus_B]), dim=-1, descending=True, stable=True)
        kept_BV = (prob_BV.cumsum(-1, dtype=torch.float64) - prob_BV) < top_p_B[nucleus_B, None]
        rank_B = _inverse(prob_BV * kept_BV, uniform_B[nucleus_B])
        token_B[nucleus_B] = order_BV.gather(1, rank_B[:, None])[:, 0]
    return token_B


def _probabilities(logits_BV: Tensor, temperature_B: Tensor) -> Tensor:
    return (logits_BV.float() / temperature_B[:, None].float()).softmax(-1)


def _inverse(weight_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Where the distribution functions reach `uniform`; never a token without weight."""
    total_BV = weight_BV.cumsum(-1, dtype=torch.float64)
    found_B = torch.searchsorted(total_BV, (uniform_B * total_BV[:, -1])[:, None], right=True)[:, 0]
    last_B = torch.searchsorted(total_BV, total_BV[:, -1:].contiguous())[:, 0]
    return torch.minimum(found_B, last_B)
