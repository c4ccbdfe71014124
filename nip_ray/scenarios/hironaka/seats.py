"""Players without weights where networks are expected, and networks where players are.

Decisions that matter here:
- a deterministic player has one legal move left; one that draws has equal logits, so that a sampled move is uniform.
  For the most likely move, ties are broken by differences too small to affect sampling, which hash the episode's luck
  and the round: a random player stays random in greedy play;
- scaled points are restored to whole numbers for scripted players.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nip_ray.learning.dqn import FORBIDDEN
from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import Policy
from nip_ray.scenarios.hironaka import encode, rules
from nip_ray.scenarios.hironaka.players import Player, RandomHost, Role, scripted
from nip_ray.scenarios.hironaka.starts import uniform
from nip_ray.settings.hironaka import HironakaSettings

_UNSEEN = 1e-5  # of logits: too little to change a sampled move
_WHOLE = 2.0**22  # below this a number that was divided and multiplied again rounds to the original whole number


class ScriptedAgent(nn.Module):
    """Players of one role by name, in place of `HironakaAgent`. Several: each episode has one of them, by its luck."""

    def __init__(self, role: Role, names: Sequence[str], dimension: int, num_symbols: int) -> None:
        """Raises UserError for a name that is not a player of this role."""
        super().__init__()
        self.role, self.names, self.num_symbols = role, tuple(names), num_symbols
        self.players = nn.ModuleList(scripted(role, name, dimension) for name in names)
        self.moves = encode.num_choices(dimension) if role == "host" else dimension

    @torch.no_grad()
    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """The move distribution of N turns; the value is 0. obs: see `positions.Rules.view`."""
        policy = None
        if want_policy:
            legal_NK = obs["legal"][:, : self.moves].bool()
            points, luck_N = whole(obs["points"], obs["scale"]), obs["luck"].long()
            logits_NK = self._logits(0, points, obs, legal_NK)
            for i in range(1, len(self.players)):
                mine_N1 = (luck_N % len(self.players) == i)[:, None]
                logits_NK = torch.where(mine_N1, self._logits(i, points, obs, legal_NK), logits_NK)
            padded = nn.functional.pad(logits_NK, (0, self.num_symbols - self.moves), value=FORBIDDEN)
            policy = Policy(padded[:, None], None, None, obs["speaks"], None)
        return policy, torch.zeros(len(obs["points"]), device=obs["points"].device) if want_value else None

    def _logits(self, number: int, points: Tensor, obs: Mapping[str, Tensor], legal_NK: Tensor) -> Tensor:
        player = self.players[number]
        assert isinstance(player, Player)
        if player.draws:
            fit_NK = legal_NK & ~player.unfit_1K if isinstance(player, RandomHost) else legal_NK
            place_NK = (obs["luck"].long() * 4096 + obs["round"].long())[:, None] * 2048 + torch.arange(
                self.moves, device=legal_NK.device
            )
            return (uniform(place_NK).float() * _UNSEEN).masked_fill(~fit_NK, FORBIDDEN)
        choice = None if self.role == "host" else obs["choice"] > 0.5
        best_N = encode.masked(player(points, choice, None), legal_NK).argmax(1, keepdim=True)
        return torch.full(legal_NK.shape, FORBIDDEN, device=legal_NK.device).scatter_(1, best_N, 0.0)

    def groups(self) -> list[ParameterGroup]:
        """Nothing to train."""
        return []

    def body(self) -> nn.Module:
        """None."""
        return nn.Identity()


def whole(points_NMD: Tensor, scale_N: Tensor) -> Tensor:
    """The points from features and their divisors; unchanged if that is 1."""
    number_NMD = points_NMD * scale_N[:, None, None]
    rounded_NMD = torch.where(number_NMD < _WHOLE, number_NMD.round(), number_NMD)
    keep_NMD = (points_NMD < 0) | (scale_N == 1)[:, None, None]
    return torch.where(keep_NMD, points_NMD, rounded_NMD)


class NetworkSeat(Player):
    """A learned host or agent as a player: its scores are its logits, so it plays its most likely moves.

    It observes the points as in training, scaled or not, in any game. Of points with more rows than the network was
    made for, it sees the first.
    """

    def __init__(self, role: Role, network: nn.Module, settings: HironakaSettings, num_symbols: int) -> None:
        """settings: of the network's own game."""
        super().__init__(settings.dimension)
        self.role, self.network, self.settings, self.num_symbols = role, network, settings, num_symbols
        self.moves = self.classes if role == "host" else self.dimension

    def forward(self, points: Tensor, choice: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """See `players`."""
        policy, _ = self.network(self.observation(points, choice), True, False)
        return policy.message[:, 0, : self.moves]

    def observation(self, points: Tensor, choice: Tensor | None) -> dict[str, Tensor]:
        """The network's inputs in an observation."""
        games, device = len(points), points.device
        most = self.settings.max_points
        legal = torch.ones(games, self.moves, dtype=torch.bool, device=device) if choice is None else choice
        obs = {
            "points": rules.features(points[:, :most], most, self.settings.scale_observation).float(),
            "legal": nn.functional.pad(legal, (0, self.num_symbols - self.moves)),
            "speaks": torch.ones(games, 1, dtype=torch.bool, device=device),
        }
        return obs if choice is None else {**obs, "choice": choice.float()}
