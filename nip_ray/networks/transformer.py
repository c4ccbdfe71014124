"""The pair transformer: two pooled tokens and the nodes of two graphs, with a mask that compares the graphs.

Decisions that matter here:
- a node attends to the two pooled tokens and to the other graph's nodes only, never to its own graph; pooled tokens
  attend to everything. So node attention is a batch of (V queries x 2 + V keys) problems, half of the full square, and
  needs no mask but that of the padding;
- a caller that reads only pooled tokens (a value body) or only nodes of one graph (a prover's policy body, which must
  answer in the other graph) selects them, and the last layer computes just those;
- keys are padded to a multiple of 16: a softmax over 13 places is ten times slower than over 16 on a CPU.
Source: Vaswani et al., "Attention is all you need", 2017 (post-norm encoder layer).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_KEY_MULTIPLE = 16
_BLOCKED = -1e9


class PairTransformerLayer(nn.Module):
    """One post-norm encoder layer (ReLU feed-forward) under the pair mask."""

    def __init__(self, d: int, num_heads: int, d_mlp: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * d, d))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d))
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.out_proj = nn.Linear(d, d)
        self.linear1 = nn.Linear(d, d_mlp)
        self.linear2 = nn.Linear(d_mlp, d)
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)
        heads = torch.eye(num_heads).repeat_interleave(d // num_heads, 1)
        self.register_buffer("heads_HD", heads, persistent=False)
        self.register_buffer("scaled_heads_HD", heads / math.sqrt(d // num_heads), persistent=False)
        self.heads_HD: Tensor
        self.scaled_heads_HD: Tensor

    def forward(
        self,
        tokens_NTD: Tensor,
        bias_NGK: Tensor,
        bias_NK: Tensor,
        want_pooled: bool = True,
        want_nodes: bool = True,
        side_N: Tensor | None = None,
    ) -> Tensor:
        """New tokens (N, T', D) of N pairs: requested ones of T = 2 + 2 V, in order (2 pooled, V nodes of each graph).

        bias_NGK, bias_NK: 0 at keys that may be attended to and -1e9 elsewhere, for node queries and for pooled
        queries; see `key_biases`. side_N: the graph (0 or 1) whose nodes alone are requested in each row.
        """
        num_rows, num_tokens, d = tokens_NTD.shape
        query, keys_values = F.linear(tokens_NTD, self.in_proj_weight, self.in_proj_bias).split([d, 2 * d], 2)
        attended = []
        if want_pooled:
            padded = F.pad(keys_values, (0, 0, 0, bias_NK.shape[-1] - num_tokens))
            attended.append(self._attend(query[:, :2], padded, bias_NK))
        if want_nodes:
            own, other = (x[:, 2:].unflatten(1, (2, -1)) for x in (query, keys_values))
            other, bias = other.flip(1), bias_NGK
            if side_N is not None:
                own, other, bias = (one_side(x, side_N) for x in (own, other, bias))
            shared = keys_values[:, None, :2].expand(-1, own.shape[1], -1, -1)
            joined = F.pad(torch.cat([shared, other], 2), (0, 0, 0, bias.shape[-1] - 2 - own.shape[2])).flatten(0, 1)
            attended.append(self._attend(own.flatten(0, 1), joined, bias.flatten(0, 1)).view(num_rows, -1, d))
        x = wanted_tokens(tokens_NTD, want_pooled, want_nodes, side_N)
        x = self.norm1(x + self._drop(self.out_proj(_joined(attended))))
        return self.norm2(x + self._drop(self.linear2(self._drop(torch.relu(self.linear1(x))))))

    @torch.no_grad()
    def tie_queries_and_keys(self) -> None:
        """Initialise keys with the weights of queries: scores are inner products, largest between similar tokens."""
        d = self.out_proj.weight.shape[0]
        self.in_proj_weight[d : 2 * d] = self.in_proj_weight[:d]

    def _attend(self, query_MQD: Tensor, keys_values_MKE: Tensor, bias_MK: Tensor) -> Tensor:
        """(M, Q, D): scaled dot-product attention by heads, M independent problems with Q queries and K keys.

        A query is repeated once per head with all but that head's features set to zero, so that heads are rows of one
        matrix product and keys and values need not be rearranged.
        """
        num, num_queries, d = query_MQD.shape
        key, value = keys_values_MKE.chunk(2, -1)
        query = (query_MQD[:, :, None] * self.scaled_heads_HD).flatten(1, 2)
        score = torch.baddbmm(bias_MK[:, None], query, key.transpose(1, 2))
        weight = self._drop(torch.softmax(score, -1))
        mixed = torch.bmm(weight, value).view(num, num_queries, self.num_heads, d)
        return (mixed * self.heads_HD).sum(2)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


def wanted_tokens(tokens_NTD: Tensor, want_pooled: bool, want_nodes: bool, side_N: Tensor | None) -> Tensor:
    """(N, T', D): the requested ones of T = 2 + 2 V tokens; see `PairTransformerLayer.forward`."""
    parts = [tokens_NTD[:, :2]] if want_pooled else []
    if want_nodes:
        nodes = tokens_NTD[:, 2:]
        parts.append(nodes if side_N is None else one_side(nodes.unflatten(1, (2, -1)), side_N).flatten(1, 2))
    return _joined(parts)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def one_side(x_NG: Tensor, side_N: Tensor) -> Tensor:
    """(N, 1, ...): of the two graphs of each row of `x_NG` (N, 2, ...), the one given by `side_N` (0 or 1)."""
    return torch.where(side_N.view(-1, *[1] * (x_NG.dim() - 1)) > 0, x_NG[:, 1:], x_NG[:, :1])


def key_biases(node_mask_NGV: Tensor) -> tuple[Tensor, Tensor]:
    """Additive attention biases from the mask of real nodes (N, 2, V): for node queries (N, 2, K) over [pooled, other
    graph's nodes] and for pooled queries (N, K') over [pooled, nodes of both graphs]; K and K' are padded to a multiple
    of 16."""
    blocked = (1.0 - node_mask_NGV.to(torch.float32)) * _BLOCKED
    node = F.pad(blocked.flip(1), (2, 0))
    pooled = F.pad(blocked.flatten(1), (2, 0))
    return _pad_keys(node), _pad_keys(pooled)


def _pad_keys(bias: Tensor) -> Tensor:
    return F.pad(bias, (0, -bias.shape[-1] % _KEY_MULTIPLE), value=_BLOCKED)
