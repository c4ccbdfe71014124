"""A player's network: an encoder of the points, layers, a head for the moves and one for the value.

Decisions that matter here:
- moving all points by the same vector changes nothing in the game, so the network sees them relative to their smallest
  coordinates; and after some rounds one coordinate outgrows the others a thousandfold, so it also sees each coordinate
  on its own scale and on a logarithmic one. Divided by the largest number alone, as published, most of the position is
  rounded to zero;
- the set encoder takes points in any order, and skips rows that no game of a batch uses (on a CPU; elsewhere checking
  would cost more);
- logits of illegal moves are -1e9, so that sampled, greedy and bootstrapped moves are all legal.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nip_ray.learning.dqn import FORBIDDEN
from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import Policy
from nip_ray.settings.hironaka import HironakaAgentSettings, HironakaLayer

_TINY = 1e-30
_NORMS: dict[str, type[nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def relative(points_NMD: Tensor, live_NM1: Tensor) -> tuple[Tensor, Tensor]:
    """(N, m, 3d) of each point, (N, d) of the game: places from 0 to 1 in the common scale, in each coordinate's own,
    and as logarithms; the ranges of the coordinates, as logarithms. Zeros in rows without a point. Invariant to
    translation and scaling of all points."""
    least_N1D = torch.where(live_NM1, points_NMD, torch.inf).amin(1, keepdim=True)
    moved_NMD = torch.where(live_NM1, points_NMD - least_N1D, 0.0)
    reach_N1D = moved_NMD.amax(1, keepdim=True)
    common_NMD = moved_NMD / reach_N1D.amax(2, keepdim=True).clamp_min(_TINY)
    own_NMD = moved_NMD / reach_N1D.clamp_min(_TINY)
    logs_NMD = torch.where(live_NM1, torch.log2(common_NMD + 2.0**-20) / 10, 0.0)
    reach_ND = torch.log2(common_NMD.amax(1) + 2.0**-30) / 15
    return torch.cat((common_NMD, own_NMD, logs_NMD), -1), reach_ND


class Block(nn.Module):
    """A residual block: two linear maps with their norms, added to the input (through a third if widths differ)."""

    def __init__(self, num_in: int, layer: HironakaLayer) -> None:
        super().__init__()
        width = layer.width
        self.inner = nn.Sequential(*_linear(num_in, layer), nn.ReLU(), *_linear(width, layer))
        self.around = nn.Identity() if num_in == width else nn.Sequential(*_linear(num_in, layer))

    def forward(self, x: Tensor) -> Tensor:
        """(N, width)."""
        return self.around(x) + self.inner(x)


def _linear(num_in: int, layer: HironakaLayer) -> list[nn.Module]:
    norm = _NORMS.get(layer.norm)
    return [nn.Linear(num_in, layer.width), *([norm(layer.width)] if norm else [])]


def stack(num_in: int, layers: Sequence[HironakaLayer]) -> tuple[nn.Sequential, int]:
    """The layers, each followed by a rectifier, and the output width."""
    made: list[nn.Module] = []
    for layer in layers:
        for _ in range(layer.repeat):
            made += [Block(num_in, layer)] if layer.kind == "residual" else _linear(num_in, layer)
            made.append(nn.ReLU())
            num_in = layer.width
    return nn.Sequential(*made), num_in


class SetEncoder(nn.Module):
    """(N, 2 width) of sets of points: each point by a small network, combined again with the pooled points, then
    maximum and mean."""

    def __init__(self, num_in: int, width: int) -> None:
        super().__init__()
        self.point = nn.Sequential(nn.Linear(num_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.own, self.others = nn.Linear(width, width), nn.Linear(2 * width, width, bias=False)

    def forward(self, x_NMF: Tensor, live_NM1: Tensor) -> Tensor:
        """x_NMF: features of each row. live_NM1: mask of points."""
        h_NMW = self.point(x_NMF)
        around_NW = self.others(_pooled(h_NMW, live_NM1))
        return _pooled(torch.relu(self.own(h_NMW) + around_NW[:, None]), live_NM1)


def _pooled(h_NMW: Tensor, live_NM1: Tensor) -> Tensor:
    """(N, 2W): maximum (of numbers >= 0) and mean over the points."""
    kept_NMW = h_NMW * live_NM1
    return torch.cat((kept_NMW.amax(1), kept_NMW.sum(1) / live_NM1.sum(1).clamp_min(1)), 1)


class Body(nn.Module):
    """From an observation to features. num_points, dimension: of the game. sees_choice: for the agent, which also sees
    the host's choice."""

    def __init__(self, settings: HironakaAgentSettings, num_points: int, dimension: int, sees_choice: bool) -> None:
        super().__init__()
        self.settings, self.sees_choice = settings, sees_choice
        each = 3 * dimension if settings.view == "relative" else dimension
        beside = dimension * ((settings.view == "relative") + sees_choice)
        self.encoder = SetEncoder(each, settings.point_width) if settings.encoder == "set" else None
        encoded = num_points * each if self.encoder is None else 2 * settings.point_width
        self.layers, self.width = stack(
            encoded + beside, settings.layers or (HironakaLayer(settings.width, repeat=settings.depth),)
        )

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """(N, width)."""
        points_NMD = obs["points"].float()
        if self.encoder is not None and points_NMD.device.type == "cpu":
            used = int((points_NMD[..., 0] >= 0).sum(1).max()) if len(points_NMD) else 1
            points_NMD = points_NMD[:, : max(1, used)]
        live_NM1 = points_NMD[..., :1] >= 0
        beside = []
        if self.settings.view == "relative":
            each, reach = relative(points_NMD, live_NM1)
            beside.append(reach)
        else:
            each = points_NMD
        if self.sees_choice:
            beside.append(obs["choice"])
        encoded = each.flatten(1) if self.encoder is None else self.encoder(each, live_NM1)
        return self.layers(torch.cat((encoded, *beside), 1))


class HironakaAgent(nn.Module):
    """A learned host (moves: classes) or agent (moves: coordinates). num_symbols: S, the alphabet, at least as many."""

    def __init__(
        self,
        settings: HironakaAgentSettings,
        num_points: int,
        dimension: int,
        moves: int,
        num_symbols: int,
        sees_choice: bool,
    ) -> None:
        super().__init__()
        self.settings, self.unused = settings, num_symbols - moves
        self.policy_body = Body(settings, num_points, dimension, sees_choice)
        self.value_body = None if settings.shared_body else Body(settings, num_points, dimension, sees_choice)
        self.policy_head, self.value_head = (
            nn.Linear(self.policy_body.width, moves),
            nn.Linear(self.policy_body.width, 1),
        )

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """Move distribution and value (N,) of N turns, each only if requested. obs: see `positions.Rules.view`."""
        policy = value = None
        hidden = self.policy_body(obs) if want_policy or self.value_body is None else None
        if want_policy and hidden is not None:
            logits = nn.functional.pad(self.policy_head(hidden), (0, self.unused))
            policy = Policy(
                logits.masked_fill(~obs["legal"].bool(), FORBIDDEN)[:, None], None, None, obs["speaks"], None
            )
        if want_value:
            value = self.value_head(hidden if self.value_body is None else self.value_body(obs)).squeeze(-1)
        return policy, value

    def groups(self) -> list[ParameterGroup]:
        """The policy and a shared body belong to the actor, the value to the critic."""
        factor = self.settings.agent_lr_factor
        actor = [*self.policy_body.parameters(), *self.policy_head.parameters()]
        critic = [*(self.value_body.parameters() if self.value_body is not None else ()), *self.value_head.parameters()]
        return [
            ParameterGroup("actor", "policy", actor, factor.actor),
            ParameterGroup("critic", "value", critic, factor.critic),
        ]

    def body(self) -> nn.Module:
        """The body that the policy reads."""
        return self.policy_body
