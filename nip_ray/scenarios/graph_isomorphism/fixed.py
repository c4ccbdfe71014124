"""The hand-made agents, which are never trained, and the nodes that an agent may name."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nip_ray.learning.dqn import FORBIDDEN
from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import Policy
from nip_ray.networks.gin import Gin
from nip_ray.protocols import CONTINUE, NUM_DECISIONS
from nip_ray.scenarios.seat import Seat
from nip_ray.settings.graph_isomorphism import GraphAgentSettings

_SAME = 1e-6  # graph representations closer than this count as equal
_SHARP = 1000.0


class ManualAgent(nn.Module):
    """The hand-made nip agents: an untrained graph network whose representations are compared, never trained.

    The verifier asks about random nodes and decides in its last two rounds: accept iff the mean absolute difference of
    the two graph representations is below 1e-6. The prover answers with the node most similar to the question's; if it
    is paid for truth and the graphs differ, with the least similar one.
    """

    def __init__(self, settings: GraphAgentSettings, seat: Seat, wants_truth: bool = False) -> None:
        super().__init__()
        self.seat, self.wants_truth = seat, wants_truth
        self.gnn = Gin(
            seat.history_features, settings.d_gnn, settings.d_gin_mlp, settings.num_gnn_layers, settings.activation
        )
        self.output = nn.Linear(settings.d_gnn, settings.d_representation)
        # Biases keep torch's random values regardless of the settings: with zero biases and no messages all nodes look
        # empty.
        self.double().requires_grad_(False)  # equality to 1e-6 needs more than single precision

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """Policy by rule and zero value; see `GraphAgent.forward`."""
        nodes_NGVD = self._represent(obs)
        num_rows = len(nodes_NGVD)
        allowed = allowed_nodes(obs, self.seat)
        policy = None
        if self.seat.decides:
            message = torch.zeros(allowed.shape, device=nodes_NGVD.device)
            wanted_N = torch.where(obs["round"] >= self.seat.rounds - 2, _look_equal(nodes_NGVD).long(), CONTINUE)
            decision = nn.functional.one_hot(wanted_N, NUM_DECISIONS) * _SHARP
            policy = Policy(
                message.masked_fill(~allowed, FORBIDDEN).flatten(2), None, decision, obs["speaks"], obs["may_decide"]
            )
        elif want_policy:
            asked_NGV = obs["latest"][..., 0]
            asked_ND = (nodes_NGVD * asked_NGV[..., None]).sum((1, 2))
            distance = (nodes_NGVD - asked_ND[:, None, None]).norm(dim=-1).float()
            liking_N = torch.full_like(distance[:, 0, 0], -_SHARP)
            if self.wants_truth:  # if the graphs differ it shows the difference
                liking_N = torch.where(_look_equal(nodes_NGVD), -_SHARP, _SHARP)
            message = (liking_N[:, None, None] * distance)[:, None]
            policy = Policy(message.masked_fill(~allowed, FORBIDDEN).flatten(2), None, None, obs["speaks"], None)
        return (policy if want_policy else None), (
            torch.zeros(num_rows, device=nodes_NGVD.device) if want_value else None
        )

    def groups(self) -> list[ParameterGroup]:
        """Nothing to train."""
        return []

    def body(self) -> None:
        """None: nothing to train."""

    def _represent(self, obs: Mapping[str, Tensor]) -> Tensor:
        """(N, G, V, D): nodes given the dialogue (verifier) or the graphs alone (prover)."""
        history_NGVF = obs["history"].double()
        if self.seat.decides:  # a question and its answer count as one mark, in either graph
            rounds = history_NGVF.shape[-1] // 2 * 2
            pairs = (
                history_NGVF[..., :rounds]
                .unflatten(-1, (-1, 2))
                .sum(-1, keepdim=True)
                .expand(*([-1] * 4), 2)
                .flatten(-2)
            )
            history_NGVF = torch.cat([pairs, history_NGVF[..., rounds:]], -1)
        else:
            history_NGVF = torch.zeros_like(history_NGVF)
        mask = obs["node_mask"].to(history_NGVF.dtype)[..., None]
        adjacency = obs["adjacency"].to(history_NGVF.dtype).flatten(0, 1)
        h = self.gnn(history_NGVF.flatten(0, 1)[None], adjacency, mask.flatten(0, 1))[0]
        return self.output(h.view(*history_NGVF.shape[:3], -1)) * mask


def _look_equal(nodes_NGVD: Tensor) -> Tensor:
    """(N,) bool: the two graphs' summed representations agree."""
    return nodes_NGVD.sum(2).diff(dim=1).abs().mean((1, 2)) < _SAME


def allowed_nodes(obs: Mapping[str, Tensor], seat: Seat) -> Tensor:
    """(N, F, G, V) bool: existing nodes; for provers only those of the graph opposite to the latest message."""
    allowed = obs["node_mask"][:, None].bool().expand(-1, seat.num_factors, -1, -1)
    if not seat.answers:
        return allowed
    sides = torch.arange(2, device=allowed.device)
    return allowed & (obs["answer_side"][:, :, None] == sides)[..., None]
