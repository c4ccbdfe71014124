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

from nip_ray.learning.token_losses import not_finite
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


def draw(
    logits_DV: Tensor, temperature_D: Tensor, top_p_D: Tensor, uniform_B: Tensor, of_B: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A token for each of B rows, and its log-probability in the sampling distribution.

    top_p: the most likely tokens are kept that have this probability together (Holtzman et al., 2020). of_B: the
    distribution of each row (None: its own).
    """
    of_B = torch.arange(len(uniform_B), device=logits_DV.device) if of_B is None else of_B
    if ((temperature_D > 0) & (top_p_D >= 1)).all():
        return _inverse(_probabilities(logits_DV, temperature_D), uniform_B, of_B)
    token_B = logits_DV.argmax(-1)[of_B]
    logprob_B = torch.zeros(len(of_B), dtype=torch.float32, device=logits_DV.device)
    for whole in (True, False):
        chosen_D = (temperature_D > 0) & ((top_p_D >= 1) == whole)
        if not chosen_D.any():
            continue
        prob_DV = _probabilities(logits_DV[chosen_D], temperature_D[chosen_D])
        row_B = chosen_D[of_B]
        mine_B = (chosen_D.cumsum(0) - 1)[of_B[row_B]]
        if whole:
            token_B[row_B], logprob_B[row_B] = _inverse(prob_DV, uniform_B[row_B], mine_B)
            continue
        prob_DV, order_DV = torch.sort(prob_DV, dim=-1, descending=True, stable=True)
        kept_DV = (prob_DV.cumsum(-1, dtype=torch.float64) - prob_DV) < top_p_D[chosen_D, None]
        rank_B, logprob_B[row_B] = _inverse(prob_DV * kept_DV, uniform_B[row_B], mine_B)
        token_B[row_B] = order_DV[mine_B, rank_B]
    return token_B, logprob_B


def _probabilities(logits_DV: Tensor, temperature_D: Tensor) -> Tensor:
    return (logits_DV.float() / temperature_D[:, None].float()).softmax(-1)


def _inverse(weight_DV: Tensor, uniform_B: Tensor, of_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens at which distribution functions reach `uniform` (never without weight), and their log-probabilities."""
    total_DV = weight_DV.cumsum(-1, dtype=torch.float64)
    end_B = total_DV[of_B, -1]
    if not end_B.isfinite().all():
        raise not_finite("a model's probabilities are not finite")
    # the numbers of each distribution side by side, so that it is not copied for each of its rows
    order_B, count_D = of_B.argsort(stable=True), of_B.bincount(minlength=len(total_DV))
    place_B = torch.empty_like(of_B)
    place_B[order_B] = torch.arange(len(of_B), device=of_B.device) - (count_D.cumsum(0) - count_D)[of_B[order_B]]
    number_DK = total_DV.new_zeros(len(total_DV), int(count_D.max()))
    number_DK[of_B, place_B] = uniform_B * end_B
    found_B = torch.searchsorted(total_DV, number_DK, right=True)[of_B, place_B]
    last_D = torch.searchsorted(total_DV, total_DV[:, -1:].contiguous())[:, 0]
    token_B = torch.minimum(found_B, last_D[of_B])
    return token_B, (weight_DV[of_B, token_B].double() / end_B).log().float()
