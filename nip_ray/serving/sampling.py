"""Sample the next tokens of many replies at once, each from its own stream.

Decisions that matter here: a reply's uniform numbers come from its own seed, one for each token, and become tokens by
inverting the distribution function (over tokens in the order of their probability for a nucleus, else of their number).
So samples do not depend on neighbours in the batch, and float noise in the logits changes a token only if a number
falls on a boundary. Streams are those of SplitMix64 (Steele, Lea and Flood, 2014), whose n-th number is a function of
seed and n: no generator is kept for a reply, and the next numbers of all rows are computed together. Temperature 0
takes the most likely token.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nip_ray.seeding import stable_seed

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stream(seed: int) -> int:
    """The initial state of the stream of a reply with this seed."""
    return stable_seed(seed, "reply")


def uniforms(stream_N: Sequence[int], position_N: Sequence[int]) -> Tensor:
    """The number in [0, 1) at a position (from 0) of a stream, for each of N (double precision, on the CPU)."""
    with np.errstate(over="ignore"):
        bits_N = np.array(stream_N, dtype=np.uint64) + (np.array(position_N, dtype=np.uint64) + np.uint64(1)) * _GOLDEN
        bits_N = (bits_N ^ (bits_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits_N = (bits_N ^ (bits_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy(((bits_N ^ (bits_N >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53)


def draw(logits_BV: Tensor, temperature_B: Tensor, top_p_B: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each row, and its log-probability in the sampling distribution.

    top_p: the most likely tokens are kept that have this probability together (Holtzman et al., 2020).
    """
    plain_B, nucleus_B = (temperature_B > 0) & (top_p_B >= 1), (temperature_B > 0) & (top_p_B < 1)
    if plain_B.all():
        return _inverse(_probabilities(logits_BV, temperature_B), uniform_B)
    token_B, logprob_B = logits_BV.argmax(-1), logits_BV.new_zeros(len(logits_BV), dtype=torch.float32)
    if plain_B.any():
        prob_BV = _probabilities(logits_BV[plain_B], temperature_B[plain_B])
        token_B[plain_B], logprob_B[plain_B] = _inverse(prob_BV, uniform_B[plain_B])
    if nucleus_B.any():
        prob_BV, order_BV = torch.sort(
            _probabilities(logits_BV[nucleus_B], temperature_B[nucleus_B]), dim=-1, descending=True, stable=True
        )
        kept_BV = (prob_BV.cumsum(-1, dtype=torch.float64) - prob_BV) < top_p_B[nucleus_B, None]
        rank_B, logprob_B[nucleus_B] = _inverse(prob_BV * kept_BV, uniform_B[nucleus_B])
        token_B[nucleus_B] = order_BV.gather(1, rank_B[:, None])[:, 0]
    return token_B, logprob_B


def _probabilities(logits_BV: Tensor, temperature_B: Tensor) -> Tensor:
    return (logits_BV.float() / temperature_B[:, None].float()).softmax(-1)


def _inverse(weight_BV: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens at which distribution functions reach `uniform` (never without weight), and their log-probabilities."""
    total_BV = weight_BV.cumsum(-1, dtype=torch.float64)
    found_B = torch.searchsorted(total_BV, (uniform_B * total_BV[:, -1])[:, None], right=True)[:, 0]
    last_B = torch.searchsorted(total_BV, total_BV[:, -1:].contiguous())[:, 0]
    token_B = torch.minimum(found_B, last_B)
    return token_B, (weight_BV.gather(1, token_B[:, None])[:, 0].double() / total_BV[:, -1]).log().float()
