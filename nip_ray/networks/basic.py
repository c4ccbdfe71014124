"""Multi-layer perceptrons, activations and initialisation."""

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "sigmoid": nn.Sigmoid}
FUNCTIONS = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}


def mlp(num_in: int, hidden: int, num_out: int, activation: str) -> nn.Sequential:
    """Linear(in, hidden), activation, Linear(hidden, out)."""
    return nn.Sequential(nn.Linear(num_in, hidden), ACTIVATIONS[activation](), nn.Linear(hidden, num_out))


def initialise(module: nn.Module, orthogonal: bool) -> None:
    """Orthogonal weights and zero biases; False keeps torch's defaults.

    Parameters with names other than ``weight`` and ``bias`` (the attention's joint in-projection) keep their
    initialisation.
    """
    if not orthogonal:
        return
    for name, parameter in module.named_parameters():
        last = name.rpartition(".")[2]
        if last == "weight" and parameter.dim() >= 2:
            nn.init.orthogonal_(parameter)
        elif last == "bias":
            nn.init.zeros_(parameter)


def round_one_hot(round_N: Tensor, num_rounds: int, dtype: torch.dtype) -> Tensor:
    """(N, num_rounds + 1): the round index as a one-hot vector; the last is for the state after the last round."""
    # torch's own one_hot computes the largest index, and waits for it
    places = torch.arange(num_rounds + 1, device=round_N.device)
    return (round_N.clamp(0, num_rounds)[:, None] == places).to(dtype)
