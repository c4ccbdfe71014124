"""How a network stands while it learns: noise on, and batch norms that do not change under the loss.

Play normalises by running statistics; would learning use those of the minibatch, probability ratios would differ from 1 before anything
was learned.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def learning_mode(network: nn.Module) -> None:
    """Noise and dropout on, batch norms on their running statistics."""
    network.train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()


@torch.no_grad()
def refresh_norms(network: nn.Module, obs: Mapping[str, Tensor]) -> None:
    """One pass over these observations moves the running statistics of the batch norms that are trained; learning mode stands after it."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm1d) and module.weight.requires_grad]
    if norms:  # a frozen body's stay as they are
        network.eval()
        for norm in norms:
            norm.train()
        network(obs)
        learning_mode(network)
