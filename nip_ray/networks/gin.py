"""Graph isomorphism networks on dense batches, several of them at once.

Decisions that matter here:
- graphs are dense and padded: a neighbour sum is one batched matrix product, no Python loop over graphs;
- K networks of one shape that read the same graphs (an agent's policy body and value body) run as one batched product
  with their parameters stacked: half as many kernels, and on small graphs kernels are what costs;
- parameters stay separate tensors of separate modules, so optimizers, freezing and checkpoints are unaffected by
  stacking.
Source: Xu et al., "How Powerful are Graph Neural Networks?", ICLR 2019, equation 4.1 with epsilon = 0.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.networks.basic import FUNCTIONS


class Gin(nn.Module):
    """Parameters: Linear(num_in, d), then `num_layers` times [activation, h <- MLP(h + sum of neighbours)].

    The MLP is Linear(d, d_mlp), activation, Linear(d_mlp, d).
    """

    def __init__(self, num_in: int, d: int, d_mlp: int, num_layers: int, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.encode = nn.Linear(num_in, d)
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.Linear(d, d_mlp), nn.Linear(d_mlp, d)]) for _ in range(num_layers)
        )

    def forward(self, x_SMVF: Tensor, adjacency_MVV: Tensor, node_mask_MV1: Tensor) -> Tensor:
        """(S, M, V, d) node representations; see `run_gins`."""
        return run_gins([self], x_SMVF, adjacency_MVV, node_mask_MV1)[0]


class _Stack(torch.autograd.Function):
    """K parameter lists of L tensors each -> L tensors with a leading axis K. One graph node instead of L."""

    @staticmethod
    def forward(ctx: Any, num_networks: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.num_networks = num_networks
        length = len(parameters) // num_networks
        return tuple(torch.stack([parameters[k * length + i] for k in range(num_networks)]) for i in range(length))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        num_networks = ctx.num_networks
        return (None, *(None if g is None else g[k] for k in range(num_networks) for g in gradients))


def run_gins(gins: Sequence[Gin], x_SMVF: Tensor, adjacency_MVV: Tensor, node_mask_MV1: Tensor) -> Tensor:
    """Run K networks of one shape over the same graphs.

    x_SMVF: S streams of M graphs with V (padded) nodes and F features. adjacency_MVV: 0/1 floats, zero at padding.
    node_mask_MV1: 1.0 at real nodes. Returns (K, S, M, V, d), zero at padding.
    """
    activation = FUNCTIONS[gins[0].activation]
    num_streams, num_graphs, num_nodes, num_features = x_SMVF.shape
    lists, copies = [list(gin.parameters()) for gin in gins], len(gins) * num_streams
    # encode weight, encode bias, then four tensors a layer, each with a leading axis K
    weights = (
        [one.unsqueeze(0) for one in lists[0]] if len(gins) == 1 else list(_Stack.apply(len(gins), *chain(*lists)))
    )
    flat = x_SMVF.reshape(1, -1, num_features).expand(len(gins), -1, -1)
    h = torch.baddbmm(weights[1].unsqueeze(1), flat, weights[0].transpose(1, 2))
    # a node and its neighbours; padded ones have none
    around = adjacency_MVV + torch.diag_embed(node_mask_MV1.squeeze(-1))
    around = around.expand(copies, -1, -1, -1).reshape(copies * num_graphs, num_nodes, num_nodes)
    for first_weight, first_bias, second_weight, second_bias in zip(*[iter(weights[2:])] * 4, strict=True):
        h = torch.bmm(around, activation(h).view(len(around), num_nodes, -1)).view(len(gins), -1, h.shape[-1])
        h = activation(torch.baddbmm(first_bias.unsqueeze(1), h, first_weight.transpose(1, 2)))
        h = torch.baddbmm(second_bias.unsqueeze(1), h, second_weight.transpose(1, 2))
    return h.view(len(gins), num_streams, num_graphs, num_nodes, -1) * node_mask_MV1
