"""An agent's networks in graph isomorphism: bodies (graph network, pooling, pair transformer) and heads.

Decisions that matter here:
- a policy body and a value body of the same agent read the same graphs, so their graph networks run stacked
  (`run_gins`);
- only the inputs of heads are computed: a value needs pooled tokens, a prover's policy nodes, a verifier's policy both;
- if `compiled`, graph networks and pair attention run by compiled kernels, with the same results up to rounding;
- the observation has all inputs as dense tensors; there is no loop over graphs or turns.
Axes: N turns (rows), G = 2 graphs of a pair, V padded nodes, F history features, L latest-message features. Source of
the architecture: Hammond and Adam-Day, ICLR 2025, appendix on graph isomorphism.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import Policy
from nip_ray.networks import native
from nip_ray.networks.basic import initialise
from nip_ray.networks.gin import Gin, run_gins
from nip_ray.networks.transformer import PairTransformerLayer, key_biases, wanted_tokens
from nip_ray.scenarios.dialogue_agent import DialogueAgent, Observation, share_rounds
from nip_ray.scenarios.graph_isomorphism.fixed import FORBIDDEN, allowed_nodes
from nip_ray.scenarios.seat import Seat
from nip_ray.settings.graph_isomorphism import GraphAgentSettings


@dataclass(frozen=True)
class Inputs:
    """Inputs of the bodies: normalised features, masks as floats, attention biases. extra_NTX: see `token_features`;
    linear: True if linear messages are among these."""

    history_NGVF: Tensor
    latest_NGVL: Tensor
    extra_NTX: Tensor
    linear: bool
    adjacency_NGVV: Tensor
    node_mask_NGV1: Tensor
    bias_NGK: Tensor
    bias_NK: Tensor


class GraphBody(nn.Module):
    """From graphs and messages to representations of the two graphs and of all nodes."""

    def __init__(self, settings: GraphAgentSettings, seat: Seat, compiled: bool) -> None:
        super().__init__()
        self.settings = settings
        self.compiled = compiled
        d_out = settings.d_gnn * (2 if settings.use_dual_gnn else 1)
        self.gnn = Gin(
            seat.history_features + seat.told,
            settings.d_gnn,
            settings.d_gin_mlp,
            settings.num_gnn_layers,
            settings.activation,
        )
        self.batch_norm = nn.BatchNorm1d(d_out) if settings.use_batch_norm else None
        linear_features = seat.history_features * seat.linear_symbols
        self.token = nn.Linear(d_out + 2 + seat.latest_features + linear_features, settings.d_transformer)
        self.layers = nn.ModuleList(
            PairTransformerLayer(
                settings.d_transformer, settings.num_heads, settings.d_transformer_mlp, settings.transformer_dropout
            )
            for _ in range(settings.num_transformer_layers)
        )
        self.output = nn.Linear(settings.d_transformer, settings.d_representation)
        initialise(self, settings.use_orthogonal_initialisation)
        if settings.history_initialisation == "shared":
            share_rounds(self.gnn.encode.weight[:, : seat.history_features], seat.rounds)
        elif settings.history_initialisation == "unmarked":
            nn.init.zeros_(self.gnn.encode.weight[:, : seat.history_features])
        if settings.input_bias:
            with torch.no_grad():
                start_D = F.normalize(torch.randn_like(self.gnn.encode.bias), dim=0)
                self.gnn.encode.bias.copy_(settings.input_bias * start_D)
        if settings.attention_initialisation == "tied":
            for layer in self.layers:
                cast(PairTransformerLayer, layer).tie_queries_and_keys()

    def streams(self, inputs: Inputs) -> Tensor:
        """(S, N * G, V, F) inputs of the graph network: the message history, and zeros for the dual stream."""
        history = inputs.history_NGVF.flatten(0, 1)
        return torch.stack([history, torch.zeros_like(history)]) if self.settings.use_dual_gnn else history[None]

    def represent(
        self, gnn_SMVD: Tensor, inputs: Inputs, want_graphs: bool, want_nodes: bool, side_N: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Graph representations (N, G, R) and node representations (N, G, V, R); parts not requested are empty.

        side_N: the graph whose nodes are requested in each row, returned as (N, 1, V, R); None for both.
        """
        h = gnn_SMVD[0] if gnn_SMVD.shape[0] == 1 else torch.cat(list(gnn_SMVD), -1)
        h_NGVD = h.view(*inputs.history_NGVF.shape[:3], -1)
        in_torch = (inputs, want_graphs, want_nodes, side_N)
        if not (self.compiled and self._is_plain(inputs) and native.can_run(h_NGVD)):
            return self(h_NGVD, *in_torch)
        wanted = native.Wanted(want_graphs, want_nodes, side_N is not None, self.settings.use_pair_invariant_pooling)
        side = side_N if want_nodes else None
        return native.represent(self, h_NGVD, inputs.latest_NGVL, inputs.node_mask_NGV1, wanted, side, *in_torch)

    def forward(
        self, h_NGVD: Tensor, inputs: Inputs, want_graphs: bool, want_nodes: bool, side_N: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`represent` by torch's operations."""
        x = self.token(torch.cat([torch.cat([self._pool(h_NGVD), h_NGVD.flatten(1, 2)], 1), inputs.extra_NTX], 2))
        for layer in self.layers[:-1]:
            x = layer(x, inputs.bias_NGK, inputs.bias_NK)
        wants = (want_graphs, want_nodes, side_N)
        x = (
            self.layers[-1](x, inputs.bias_NGK, inputs.bias_NK, *wants)
            if len(self.layers)
            else wanted_tokens(x, *wants)
        )
        graphs, nodes = self.output(x).split([2 * want_graphs, x.shape[1] - 2 * want_graphs], 1)
        return graphs, nodes.unflatten(1, (-1, h_NGVD.shape[2])) if want_nodes else nodes

    def _is_plain(self, inputs: Inputs) -> bool:
        """True if the compiled kernels support everything between nodes and representations."""
        settings = self.settings
        noisy = self.training and (settings.noise_sigma or settings.transformer_dropout)
        odd = self.batch_norm is not None or inputs.linear
        return not noisy and not odd and len(self.layers) > 0

    def _pool(self, h_NGVD: Tensor) -> Tensor:
        """(N, G, D) sum over nodes, normalised, perturbed and made invariant to the pair's order, by the settings."""
        pooled = h_NGVD.sum(2)
        if self.batch_norm is not None:
            pooled = self.batch_norm(pooled.flatten(0, 1)).view(pooled.shape)
        if self.training and self.settings.noise_sigma:
            pooled = pooled + torch.randn_like(pooled[:, :1]) * self.settings.noise_sigma * pooled.abs()
        if self.settings.use_pair_invariant_pooling:
            first, second = pooled.unbind(1)
            pooled = torch.stack([(first + second) / 2, (first - second).abs() / 2], 1)
        return pooled


def token_features(latest_NGVL: Tensor, linear_NX: Tensor | None) -> Tensor:
    """(N, 2 + G V, ...): additional features of a pair's tokens: two bits that mark the pooled ones, which are the
    first two, the latest messages, and the linear history, which is the same for all."""
    extra = F.pad(latest_NGVL.flatten(1, 2), (2, 0, 2, 0))
    extra[:, :2, :2] = torch.eye(2, device=extra.device)
    return extra if linear_NX is None else torch.cat([extra, linear_NX[:, None].expand(-1, extra.shape[1], -1)], 2)


class GraphAgent(DialogueAgent):
    """Policy and value of one agent, with separate bodies or a shared one."""

    history_axis = 3

    def __init__(
        self,
        settings: GraphAgentSettings,
        seat: Seat,
        shared_body: bool,
        critic_seat: Seat | None = None,
        compiled: bool = False,
    ) -> None:
        """See `DialogueAgent`. compiled: compiled kernels may be used."""
        super().__init__(settings, seat, critic_seat)
        self.settings = settings
        self.policy_body = GraphBody(settings, seat, compiled)
        self.value_body = None if shared_body else GraphBody(settings, critic_seat or seat, compiled)
        self.node_selector = self.make_selector(settings.d_node_selector)
        self.make_heads(2 * settings.d_representation, self.node_selector)

    def body(self) -> nn.Module:
        """The body that the policy reads; with a shared body the value reads it too."""
        return self.policy_body

    def forward(
        self, obs: Observation, want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """The action distribution and the value (N,) of N turns, each only if requested. `obs`: see
        `GraphIsomorphism.observe`."""
        inputs = self._inputs(obs)
        bodies = self._bodies(want_policy, want_value)
        critic_inputs = self._inputs(obs, "state_") if self.apart and want_value else inputs
        seen = [inputs] * len(bodies) if critic_inputs is inputs else [inputs, critic_inputs][-len(bodies) :]
        gnn_KSMVD = _run_bodies(bodies, seen)
        policy = value = None
        graphs = gnn_KSMVD[0].new_zeros(0)
        want_graphs = self.reads_whole
        if want_policy:
            one_answer = self.seat.answers and self.seat.num_factors == 1
            side_N = obs["answer_side"][:, 0] if one_answer else None
            want_graphs = want_graphs or (want_value and self.value_body is None)
            graphs, nodes = bodies[0].represent(gnn_KSMVD[0], inputs, want_graphs, True, side_N)
            logits_NFGV = self.node_selector(nodes).permute(0, 3, 1, 2)
            # if only one graph's nodes were computed, the other's are forbidden
            logits_NFGV = logits_NFGV.expand(-1, -1, 2, -1)
            message = logits_NFGV.masked_fill(~allowed_nodes(obs, self.seat), FORBIDDEN).flatten(2)
            policy = self.policy_of(message, graphs.flatten(1) if self.reads_whole else None, obs)
        if want_value:
            if self.value_body is not None or not want_policy:
                graphs, _ = bodies[-1].represent(gnn_KSMVD[-1], critic_inputs, True, False)
            value = self.value_of(graphs.flatten(1), obs)
        return policy, value

    def groups(self) -> list[ParameterGroup]:
        """Parameter groups with their learning-rate factors; a shared body belongs to the actor's."""
        settings = self.settings
        agent, body, gnn = settings.agent_lr_factor, settings.body_lr_factor, settings.gnn_lr_factor
        made = []
        for part, which in (("actor", self.policy_body), ("critic", self.value_body)):
            if which is not None:
                a, b, g = (getattr(factor, part) for factor in (agent, body, gnn))
                rest = [p for name, p in which.named_parameters() if not name.startswith("gnn.")]
                made.append(ParameterGroup(part, "gnn", list(which.gnn.parameters()), a * b * g))
                made.append(ParameterGroup(part, "body", rest, a * b))
        return made + self.head_groups(self.node_selector)

    def _bodies(self, want_policy: bool, want_value: bool) -> list[GraphBody]:
        if self.value_body is None:
            return [self.policy_body]
        return ([self.policy_body] if want_policy else []) + ([self.value_body] if want_value else [])

    def _inputs(self, obs: Observation, prefix: str = "") -> Inputs:
        history, latest, linear = self.messages(obs, prefix)
        mask = obs["node_mask"].to(latest.dtype)
        node_bias, pooled_bias = key_biases(mask)
        adjacency, extra = obs["adjacency"].to(latest.dtype), token_features(latest, linear)
        return Inputs(history, latest, extra, linear is not None, adjacency, mask[..., None], node_bias, pooled_bias)


def _run_bodies(bodies: list[GraphBody], seen: list[Inputs]) -> list[Tensor]:
    """Each body's graph network over its input, (S, M, V, D): stacked if all inputs are the same."""
    if all(inputs is seen[0] for inputs in seen):
        adjacency, mask = seen[0].adjacency_NGVV.flatten(0, 1), seen[0].node_mask_NGV1.flatten(0, 1)
        networks, streams = [body.gnn for body in bodies], bodies[0].streams(seen[0])
        if bodies[0].compiled and not streams.requires_grad and native.can_run(streams, networks[0].encode.weight):
            return list(native.gins(networks, streams, adjacency, mask))
        return list(run_gins(networks, streams, adjacency, mask))
    return [_run_bodies([body], [inputs])[0] for body, inputs in zip(bodies, seen, strict=True)]
