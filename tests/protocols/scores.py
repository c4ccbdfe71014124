"""Proper scores in plain Python, against which the step is held."""

from math import log

from nip_ray.protocols import Payment
from nip_ray.protocols.payment import LEAST


def share_of(payment: Payment, agent: str, label: int, confidence: float) -> float:
    """How much of what acceptance pays `agent` a verdict of this confidence pays; the rest is of what rejection
    pays."""
    if payment.scoring == "linear" or not payment.wants_truth(agent):
        return confidence
    truth = confidence if label else 1 - confidence
    right = 1 - (1 - truth) ** 2 if payment.scoring == "brier" else 1 - log(max(truth, LEAST)) / log(LEAST)
    return right if label else 1 - right
