"""Several networks of one shape as one computation: a tenth of the kernels, where kernels are what costs.

Decisions that matter here:
- parameters stay tensors of their modules; they are laid end to end once a pass, and cut into stacks, which are views. Their gradients
  come back as views of one tensor;
- graph networks are one autograd function with its gradient written out. Rows are ordered (copy, graph, node, turn): all networks and
  turns of a copy have the same graphs, so that a neighbour sum is one product for all of them;
- of the pair transformer every part is computed for all, also for whoever does not read it: that costs operations, and no kernel;
- every product reads and writes tensors of its own or views that begin where torch's allocator began: last bits do not depend on where
  the allocator put things, so the same step gives the same bits.
Axes: K stacked networks, C copies, G = 2 graphs, V padded nodes, T turns, D features, L = 2 + 2 V tokens of a pair.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_BLOCKED = -1e9


class Stacks:
    """The parameters of several modules, as stacks. Each of `groups` holds parameters of one shape."""

    def __init__(self, groups: Iterable[Sequence[nn.Parameter]]) -> None:
        self.groups = [list(group) for group in groups]
        self.parameters = [parameter for group in self.groups for parameter in group]
        self.shapes = [(len(group), *group[0].shape) for group in self.groups]
        self.sizes = [len(group) * group[0].numel() for group in self.groups]

    def __call__(self) -> list[Tensor]:
        """For each group (K, *shape), K its length."""
        if len(self.groups) == len(self.parameters):
            return [parameter.unsqueeze(0) for parameter in self.parameters]
        flat = torch.cat([parameter.reshape(-1) for parameter in self.parameters])
        return [part.view(shape) for part, shape in zip(flat.split(self.sizes), self.shapes, strict=True)]


def linear(x_KND: Tensor, weight_KED: Tensor, bias_KE: Tensor) -> Tensor:
    """(K, N, E): each network's linear layer."""
    return _Linear.apply(x_KND, weight_KED, bias_KE)  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    """Its gradient by weights comes laid out as they are, so that nothing has to be copied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (g,), (x, weight) = gradients, ctx.saved_tensors
        return torch.bmm(g, weight), torch.bmm(g.transpose(1, 2), x), g.sum(1)


def perceptron(x_KND: Tensor, weights: Sequence[Tensor], activation: str) -> Tensor:
    """`basic.mlp`, stacked. weights: weight and bias of each layer in turn."""
    *inner, last = zip(weights[::2], weights[1::2], strict=True)
    for weight, bias in inner:
        x_KND = _FUNCTIONS[activation](linear(x_KND, weight, bias))
    return linear(x_KND, *last)


# ---- graph networks -----------------------------------------------------------------------------------------------------------------


def graph_networks(
    x_CGVTAF: Tensor, adjacency_CGVV: Tensor, bodies: int, activation: str, layers: Sequence[int], w: Sequence[Tensor]
) -> Tensor:
    """(K, C, G, V, T, D): `Gin` of K = A * bodies networks, those of an agent one after the other. Padded nodes hold anything.

    x_CGVTAF: the features that each agent's networks read, without a gradient. adjacency_CGVV: 0/1 floats with ones on the diagonal of
    real nodes, zero at padding. layers: of each agent, falling. w: encode weight and bias (K, ...), then for each layer the weight and
    bias of both linear maps, of those networks that have it.
    """
    return _Gins.apply(x_CGVTAF, adjacency_CGVV, bodies, activation, [bodies * count for count in _depths(layers)], *w)  # type: ignore[no-any-return]


def _depths(layers: Sequence[int]) -> list[int]:
    """Layer -> how many have it."""
    return [sum(depth > level for depth in layers) for level in range(max(layers))]


class _Gins(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Tensor, bodies: int, activation: str, counts: list[int], *w: Tensor) -> Tensor:
        shape, agents, d = x.shape[:4], x.shape[4], w[0].shape[1]
        rows, graphs, nodes = shape.numel(), shape[0] * shape[1], shape[2]
        x, square = x.view(rows, agents, -1).transpose(0, 1), adjacency.view(graphs, nodes, nodes)
        weight, bias = w[0].view(agents, bodies * d, -1), w[1].view(agents, 1, bodies * d)
        h = torch.baddbmm(bias, x, weight.transpose(1, 2)).view(agents, rows, bodies, d).transpose(1, 2)  # (A, body, N, D)
        kept, done = [x, square], []
        for level, count in enumerate(counts):
            if level and count < counts[level - 1]:
                h, tail = h[:count], h[count:]
                done.append(tail)
            y = x.new_empty(rows, count, d)  # activated, and laid out as the neighbour sum wants it
            _activate(activation, h, y.view(rows, count // bodies, bodies, d).permute(1, 2, 0, 3) if level == 0 else y.transpose(0, 1))
            z = torch.bmm(square, y.view(graphs, nodes, -1)).view(rows, count, d)
            first, first_bias, second, second_bias = w[2 + 4 * level : 6 + 4 * level]
            u = torch.baddbmm(first_bias.unsqueeze(1), z.transpose(0, 1), first.transpose(1, 2))
            _activate(activation, u, u)
            h = torch.baddbmm(second_bias.unsqueeze(1), u, second.transpose(1, 2))
            kept += [y, z, u]
        ctx.save_for_backward(*kept, *w)
        ctx.plan = bodies, activation, counts
        return torch.cat([h, *reversed(done)]).view(-1, *shape, d) if done else h.view(-1, *shape, d)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        bodies, activation, counts = ctx.plan
        saved = ctx.saved_tensors
        x, square, levels, w = saved[0], saved[1], saved[2 : 2 + 3 * len(counts)], saved[2 + 3 * len(counts) :]
        graphs, nodes, d = len(square), square.shape[1], w[0].shape[1]
        whole = gradients[0].reshape(len(gradients[0]), -1, d)
        rows, g = whole.shape[1], whole[: counts[-1]]
        found: list[Tensor] = []
        for level in reversed(range(len(counts))):
            count, (y, z, u) = counts[level], levels[3 * level : 3 * level + 3]
            first, _, second, _ = w[2 + 4 * level : 6 + 4 * level]
            if count > len(g):
                g = torch.cat([g, whole[len(g) : count]])
            second_found = [torch.bmm(g.transpose(1, 2), u), g.sum(1)]
            du = torch.bmm(g, second)
            _derive(activation, du, u, du)
            found = [torch.bmm(du.transpose(1, 2), z.transpose(0, 1)), du.sum(1), *second_found, *found]
            dz = y.new_empty(rows, count, d)
            torch.bmm(du, first, out=dz.transpose(0, 1))
            dy = torch.bmm(square, dz.view(graphs, nodes, -1)).view(rows, count, d)  # the adjacency is symmetric
            g = y.new_empty(count, rows, d) if level else y.new_empty(count // bodies, rows, bodies, d)
            into = g if level else g.permute(0, 2, 1, 3)
            shaped = (lambda part: part.transpose(0, 1)) if level else (lambda part: part.view(rows, -1, bodies, d).permute(1, 2, 0, 3))
            _derive(activation, shaped(dy), shaped(y), into)
        g = g.view(len(g), rows, -1)  # (A, N, bodies * D)
        ends = [torch.bmm(g.transpose(1, 2), x).view(w[0].shape), g.sum(1).view(w[1].shape)]
        return (None,) * 5 + (*ends, *found)


_FUNCTIONS = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}


def _activate(activation: str, x: Tensor, out: Tensor) -> None:
    if activation == "relu":
        torch.clamp_min(x, 0, out=out)
    else:
        _FUNCTIONS[activation](x, out=out)


def _derive(activation: str, g: Tensor, y: Tensor, out: Tensor) -> None:
    """The gradient by what was activated to y, of the gradient by y."""
    aten = torch.ops.aten
    if activation == "relu":
        aten.threshold_backward.grad_input(g, y, 0, grad_input=out)
    else:
        (aten.tanh_backward if activation == "tanh" else aten.sigmoid_backward).grad_input(g, y, grad_input=out)


# ---- pairs of graphs ----------------------------------------------------------------------------------------------------------------


def attention_bias(mask_CGV: Tensor) -> Tensor:
    """(C, L, L): 0 where a token of a pair may attend to another, -1e9 elsewhere: nodes to the pooled tokens and to real nodes of the other
    graph, pooled tokens to everything real (see `transformer`)."""
    graphs, nodes = mask_CGV.shape[1:]
    real_CL = F.pad(mask_CGV.flatten(1), (graphs, 0), value=1.0)
    graph_L = torch.cat([torch.full((graphs,), -1), torch.arange(graphs).repeat_interleave(nodes)]).to(mask_CGV.device)
    own_LL = (graph_L[:, None] == graph_L) & (graph_L >= 0)
    return (1.0 - real_CL[:, None] * (~own_LL).to(real_CL.dtype)) * _BLOCKED


def pair_tokens(
    h_KCGVTD: Tensor, mask_CGV: Tensor, extra_CTLAE: Tensor, mixing: tuple[Tensor, Tensor] | None, weight: Tensor, bias: Tensor
) -> Tensor:
    """(K, C, T, L, D): the tokens of each pair, two pooled ones before the nodes; see `GraphBody`.

    extra_CTLAE: their other features. mixing: `pair_mixing` where pooling forgets the order of the pair.
    """
    num, copies, graphs, nodes, turns, d = h_KCGVTD.shape
    real = h_KCGVTD * mask_CGV[:, :, :, None, None]
    pooled = real.sum(3)
    if mixing is not None:
        matrix, slope = mixing
        pooled = torch.bmm(matrix.expand(num * copies, 2, 2), pooled.flatten(0, 1).flatten(2))
        pooled = F.prelu(pooled, slope).view(num, copies, graphs, turns, d)
    tokens = torch.cat([pooled.transpose(2, 3), real.permute(0, 1, 4, 2, 3, 5).flatten(3, 4)], 3)
    agents, features = extra_CTLAE.shape[3:]
    extra = extra_CTLAE.permute(3, 0, 1, 2, 4).unsqueeze(1).expand(-1, num // agents, -1, -1, -1, -1)
    joined = torch.cat([tokens.view(agents, -1, *tokens.shape[1:]), extra], -1)
    return linear(joined.view(num, -1, d + features), weight, bias).view(num, copies, turns, 2 + graphs * nodes, -1)


def pair_mixing(device: torch.device) -> tuple[Tensor, Tensor]:
    """Half of the sum and half of the difference, and the slopes below zero that make of the latter its size."""
    return torch.tensor([[0.5, 0.5], [0.5, -0.5]], device=device), torch.tensor([1.0, -1.0], device=device)


def transformer_layer(x_KCTLD: Tensor, bias_CLL: Tensor, num_heads: int, w: Sequence[Tensor], eps: float) -> Tensor:
    """`PairTransformerLayer` of K networks, all tokens. w: its parameters in their order."""
    num, _, turns, length, d = x_KCTLD.shape
    joint, joint_bias, out, out_bias, up, up_bias, down, down_bias, gain1, shift1, gain2, shift2 = w
    x = x_KCTLD.view(num, -1, d)
    q, k, v = linear(x, joint, joint_bias).view(-1, length, 3, num_heads, d // num_heads).unbind(2)
    bias = bias_CLL[None, :, None].expand(num, -1, turns, -1, -1)
    mixed = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=bias.reshape(-1, 1, length, length)
    )
    mixed = mixed.transpose(1, 2).reshape(num, -1, d)
    x = _Normed.apply(x + linear(mixed, out, out_bias), gain1, shift1, eps)
    x = _Normed.apply(x + linear(torch.relu(linear(x, up, up_bias)), down, down_bias), gain2, shift2, eps)
    return x.view(x_KCTLD.shape)


class _Normed(torch.autograd.Function):
    """Layer norm (K, N, D) with a gain and a shift (K, D) of each network."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
        normed, mean, scale = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
        ctx.save_for_backward(x, normed, mean, scale, gain)
        return torch.addcmul(shift.unsqueeze(1), normed, gain.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (x, normed, mean, scale, gain) = gradients, ctx.saved_tensors
        inner = g * gain.unsqueeze(1)
        found = torch.ops.aten.native_layer_norm_backward(inner, x, x.shape[-1:], mean, scale, None, None, [True, False, False])
        return found[0], (g * normed).sum(1), g.sum(1), None
