"""The networks of several agents in graph isomorphism as one computation; see `nip_ray.networks.stacked`.

Agents stand in the order of their graph networks' depths, the deepest first; an agent's policy body stands before its value body.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nip_ray.learning.policy import Policy
from nip_ray.networks.basic import round_one_hot
from nip_ray.networks.stacked import Stacks, attention_bias, graph_networks, pair_mixing, pair_tokens, perceptron, transformer_layer
from nip_ray.networks.stacked import linear as stacked_linear
from nip_ray.scenarios.dialogue_agent import Observation
from nip_ray.scenarios.graph_isomorphism.fixed import FORBIDDEN, allowed_nodes
from nip_ray.scenarios.graph_isomorphism.network import GraphAgent

_PER_COPY = ("adjacency", "mask", "bias")


def fits(networks: Mapping[str, nn.Module]) -> bool:
    """Whether `GraphStack` can run these: learned agents of equal widths, and nothing between their layers that it does not know."""
    return len({_shape(network) for network in networks.values()}) == 1 and all(map(_plain, networks.values()))


def _plain(network: nn.Module) -> bool:
    if not isinstance(network, GraphAgent) or network.apart:
        return False
    own = network.settings
    noisy = own.noise_sigma or own.transformer_dropout or own.use_batch_norm or own.use_dual_gnn or own.gnn_output_digits is not None
    return not noisy and not network.seat.linear_symbols and min(own.num_gnn_layers, own.num_transformer_layers) > 0


def _shape(network: nn.Module) -> Any:
    """What is equal in networks that stack, beside the depth of their graph networks."""
    if not isinstance(network, GraphAgent):
        return None
    own, parts = network.settings, [network.policy_body.token, *network.policy_body.layers, network.node_selector, network.value_head]
    sizes = tuple(tuple(p.shape) for part in parts for p in part.parameters())
    gnn = network.policy_body.gnn
    return (
        own.activation,
        own.num_heads,
        own.use_pair_invariant_pooling,
        network.value_body is None,
        network.critic_seat is None,
        own.include_round_in_value,
        gnn.encode.weight.shape,
        own.d_gin_mlp,
        sizes,
    )


class GraphStack:
    """Policies, and values where `value`, of several agents whose networks are `fits`."""

    def __init__(self, networks: Mapping[str, GraphAgent], value: bool) -> None:
        self.networks = dict(sorted(networks.items(), key=lambda item: -item[1].settings.num_gnn_layers))
        self.agents, self.value, members = list(self.networks), value, list(self.networks.values())
        self.settings, self.layers = members[0].settings, [network.settings.num_gnn_layers for network in members]
        self.deciders = [i for i, network in enumerate(members) if network.decider is not None]
        self.bodies = 2 if value and members[0].value_body is not None else 1
        bodies: list[Any] = [body for network in members for body in (network.policy_body, network.value_body)[: self.bodies]]
        parts: list[list[nn.Module]] = [[body.gnn.encode for body in bodies]]
        for level in range(max(self.layers)):
            parts += [[body.gnn.layers[level][i] for body in bodies if len(body.gnn.layers) > level] for i in range(2)]
        parts += [[body.token for body in bodies]]
        parts += [[body.layers[i] for body in bodies] for i in range(self.settings.num_transformer_layers)]
        parts += [[body.output for body in bodies], [network.node_selector for network in members]]
        parts += [[network.value_head for network in members]] if value else []
        parts += [[members[i].decider] for i in self.deciders]  # type: ignore[list-item]
        self.counts = [len(list(part[0].parameters())) for part in parts]
        self.stacks = Stacks(group for part in parts for group in zip(*(module.parameters() for module in part), strict=True))
        self.marks = torch.eye(2, device=self.stacks.parameters[0].device)[:, None]
        self.mixing = pair_mixing(self.stacks.parameters[0].device) if self.settings.use_pair_invariant_pooling else None

    def inputs(self, obs: Mapping[str, Observation], turns: int, known: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """What these observations, of (C * T, ...) rows each, hold for `__call__`, C leading.

        known: what was found for the same copies in an earlier round of play, whose tensors are written over.
        """
        every = [(obs[agent], network, network.messages(obs[agent])) for agent, network in self.networks.items()]
        first = every[0][0]
        if known and "adjacency" in known:
            found = {name: known[name] for name in _PER_COPY}
        else:
            mask = first["node_mask"].unflatten(0, (-1, turns))[:, 0].to(first["adjacency"].dtype)
            adjacency = first["adjacency"].unflatten(0, (-1, turns))[:, 0] + torch.diag_embed(mask)
            found = {"adjacency": adjacency, "mask": mask, "bias": attention_bias(mask)}
        parts: dict[str, list[Tensor]] = {
            "history": [history for _, _, (history, _, _) in every],
            "latest": [latest.flatten(1, 2) for _, _, (_, latest, _) in every],
            "forbidden": [~allowed_nodes(own, network.seat).flatten(2) for own, network, _ in every],
            "speaks": [own["speaks"] for own, _, _ in every],
            "may_decide": [own["may_decide"] for own, _, _ in every],
        }
        settings, seat = self.settings, every[0][1].seat
        if (settings.include_round_in_value and self.value) or (settings.include_round_in_decider and self.deciders):
            parts["round"] = [round_one_hot(own["round"], seat.rounds, parts["history"][0].dtype) for own, _, _ in every]
        if self.value and every[0][1].critic_seat is not None:
            parts["label"] = [round_one_hot(own["label"], seat.verdicts - 1, parts["history"][0].dtype) for own, _, _ in every]
        joined = {name: part[0].unsqueeze(1) if len(part) == 1 else torch.stack(part, 1) for name, part in parts.items()}
        stacked = {name: part.unflatten(0, (-1, turns)) for name, part in joined.items()}  # (C, T, A, ...)
        stacked["history"] = stacked["history"].permute(0, 3, 4, 1, 2, 5).contiguous()  # (C, G, V, T, A, F)
        latest_CTLAE = stacked.pop("latest").transpose(2, 3)
        extra = known.get("extra") if known else None
        if extra is None or extra.shape[3] != len(self.agents):
            extra = F.pad(latest_CTLAE, (2, 0, 0, 0, 2, 0))
            extra[:, :, :2, :, :2] = self.marks
        else:
            extra[:, :, 2:, :, 2:] = latest_CTLAE
        stacked["extra"] = extra
        return {**found, **stacked}

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, tuple[Policy, Tensor | None]]:
        """For each agent its policy and value of (C * T) turns, in order."""
        taken, every = 0, self.stacks()
        weights: list[list[Tensor]] = []
        for count in self.counts:
            weights.append(every[taken : taken + count])
            taken += count
        settings, agents, depth = self.settings, len(self.agents), 1 + 2 * max(self.layers)
        gin = [weight for part in weights[:depth] for weight in part]
        h = graph_networks(inputs["history"], inputs["adjacency"], self.bodies, settings.activation, self.layers, gin)
        token, *layers = weights[depth : depth + 1 + settings.num_transformer_layers]
        (output, selector), rest = weights[depth + 1 + len(layers) :][:2], weights[depth + 3 + len(layers) :]
        x = pair_tokens(h, inputs["mask"], inputs["extra"], self.mixing, token[0], token[1])
        for i, layer in enumerate(layers):
            eps = next(iter(self.networks.values())).policy_body.layers[i].norm1.eps  # type: ignore[union-attr]
            x = transformer_layer(x, inputs["bias"], settings.num_heads, layer, eps)  # type: ignore[arg-type]
        _, copies, turns, length, _ = x.shape
        rows = copies * turns
        seen = stacked_linear(x.view(len(x), -1, x.shape[-1]), output[0], output[1]).view(agents, self.bodies, rows, length, -1)
        graphs, nodes = seen.split([2, length - 2], 3)
        graphs_B, nodes_B = graphs.unbind(1), nodes.unbind(1)
        scores = perceptron(nodes_B[0].reshape(agents, rows * (length - 2), -1), selector, settings.activation)
        message = scores.view(agents, rows, length - 2, -1).transpose(2, 3)
        message_A = message.masked_fill(self._rows(inputs, "forbidden"), FORBIDDEN).unbind(0)
        value_A: Any = [None] * agents
        if self.value:
            summary = self._with_round(graphs_B[-1].flatten(2), inputs, settings.include_round_in_value)
            summary = torch.cat([summary, self._rows(inputs, "label")], -1) if "label" in inputs else summary
            value_A = perceptron(summary, rest.pop(0), settings.activation).squeeze(-1).unbind(0)
        speaks, may_decide = self._rows(inputs, "speaks"), self._rows(inputs, "may_decide")
        found = {}
        for i, (agent, network) in enumerate(self.networks.items()):
            decision = None
            if i in self.deciders:
                summary = self._with_round(graphs_B[0].flatten(2), inputs, settings.include_round_in_decider)[i : i + 1]
                decision = perceptron(summary, rest.pop(0), settings.activation)[0]
            policy = Policy(message_A[i], None, decision, speaks[i], may_decide[i] if network.seat.decides else None)
            found[agent] = policy, value_A[i]
        return found

    def _rows(self, inputs: Mapping[str, Tensor], name: str) -> Tensor:
        """(A, C * T, ...)."""
        return inputs[name].flatten(0, 1).transpose(0, 1)

    def _with_round(self, summary_ANW: Tensor, inputs: Mapping[str, Tensor], include: bool) -> Tensor:
        return torch.cat([summary_ANW, self._rows(inputs, "round")], -1) if include else summary_ANW
