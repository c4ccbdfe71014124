"""Fused roll-outs of the polyhedra game against a straightforward tensor version of the same rules, in turns in one
run.

    python benchmarks/hironaka_game.py --threads 2
    python benchmarks/hironaka_game.py --games 1024 --repeats 5 --threads 1 --cpu-time

Three dimensions, 20 points, fresh games, at most 10 rounds; counted are transitions of games that were open before the
round. The straightforward version uses a (B, m, m, d) difference tensor in every step, keeps finished games in the
batch, sorts features by the first coordinate and queries the host a second time for the agent's next observation.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from _common import machine, show
from _hironaka_rollout import roll_out
from torch import Tensor, nn

from nip_ray.scenarios.hironaka import encode, rules
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.players import Player, Role, scripted
from nip_ray.settings.hironaka import HironakaSettings

DIMENSION, POINTS, ROUNDS = 3, 20, 10


def network(inputs: int, outputs: int) -> nn.Module:
    """16, twice 32, 16, with batch norm in its running state after the first layer."""
    widths = [inputs, 16, 32, 32, 16]
    layers: list[nn.Module] = [nn.ReLU()]
    for i, (a, b) in enumerate(pairwise(widths)):
        layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if i == 0 else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs)).eval()


class NetworkPlayer(Player):
    """A network of the features, and of the host's choice."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(DIMENSION)
        self.network = network

    def forward(self, points: Tensor, choice: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        flat_BX = rules.features(points, POINTS).flatten(1)
        return self.network(flat_BX if choice is None else torch.cat((flat_BX, choice.to(flat_BX.dtype)), 1))


def players(kind: str) -> tuple[Player, Player]:
    """A random pair, or small networks."""
    if kind == "random":
        return scripted("host", "random_all", DIMENSION), scripted("agent", "random", DIMENSION)
    torch.manual_seed(0)
    flat = POINTS * DIMENSION
    host = NetworkPlayer(network(flat, encode.num_choices(DIMENSION)))
    return host, NetworkPlayer(network(flat + DIMENSION, DIMENSION))


class Straightforward:
    """The same game, one straightforward tensor operation after the other."""

    def __init__(self, host: Player, agent: Player, draw: torch.Generator) -> None:
        self.host, self.agent, self.draw = host, agent, draw
        self.choices_KD = encode.choices(DIMENSION)

    @torch.no_grad()
    def roll_out(self, games: int, role: Role, epsilon: float) -> int:
        """Return the number of kept transitions."""
        points = self.reduce(torch.randint(20, (games, POINTS, DIMENSION), generator=self.draw).float())
        kept, total = [], 0
        for _ in range(ROUNDS):
            open_B = (points[..., 0] >= 0).sum(1) > 1
            if not open_B.any():
                break
            seen = self.features(points)
            class_B = self.explore(self.host(seen, None, self.draw), None, epsilon if role == "host" else 0.0)
            choice_BD = self.choices_KD[class_B]
            axis_B = self.explore(
                self.agent(seen, choice_BD, self.draw), choice_BD, epsilon if role == "agent" else 0.0
            )
            points = torch.where(open_B[:, None, None], self.reduce(self.shift(points, choice_BD, axis_B)), points)
            after = self.features(points)
            done_B = (points[..., 0] >= 0).sum(1) <= 1
            kept.append([seen[open_B], choice_BD[open_B], axis_B[open_B], done_B[open_B], after[open_B]])
            if role == "agent":
                kept[-1].append(self.choices_KD[self.explore(self.host(after, None, self.draw), None, 0.0)][open_B])
            total += int(open_B.sum())
        [torch.cat(column) for column in zip(*kept)]
        return total

    def explore(self, score_BK: Tensor, mask_BK: Tensor | None, epsilon: float) -> Tensor:
        best_B = encode.masked(score_BK, mask_BK).argmax(1)
        other_B = encode.masked(torch.rand(score_BK.shape, generator=self.draw), mask_BK).argmax(1)
        return torch.where(torch.rand(len(best_B), generator=self.draw) < epsilon, other_B, best_B)

    @staticmethod
    def shift(points: Tensor, choice_BD: Tensor, axis_B: Tensor) -> Tensor:
        total = (points * choice_BD[:, None]).sum(-1, keepdim=True)
        target = nn.functional.one_hot(axis_B, DIMENSION).bool()[:, None] & (points[..., :1] >= 0)
        return torch.where(target, total, points)

    @staticmethod
    def reduce(points: Tensor) -> Tensor:
        live = points[..., 0] >= 0
        difference = points[:, :, None] - points[:, None]  # (B, m, m, d), p - q
        at_most = (difference <= 0).all(-1) & live[:, :, None]
        equal = (difference == 0).all(-1)
        earlier = torch.ones(points.shape[1], points.shape[1]).triu(1).bool()
        gone = ((at_most & ~equal) | (equal & earlier)).any(1)
        return torch.where((live & ~gone)[..., None], points, -1.0)

    @staticmethod
    def features(points: Tensor) -> Tensor:
        largest = points.amax((1, 2), keepdim=True)
        scaled = torch.where(points >= 0, points / largest.where(largest > 0, 1), points)
        order = scaled[..., 0].argsort(1, descending=True)
        return scaled.gather(1, order[..., None].expand_as(scaled))


def main() -> None:
    """All kinds of players, roles and sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epsilon", type=float, default=0.2)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="processor seconds instead of wall seconds, for a busy machine; with one thread",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(machine())
    for kind in ("random", "small networks"):
        for role in ("host", "agent"):
            for games in arguments.games:
                compare(kind, role, games, arguments)


def compare(kind: str, role: Role, games: int, arguments: argparse.Namespace) -> None:
    """Medians of both, in turns."""
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    host, agent = players(kind)
    draw = torch.Generator().manual_seed(0)
    game, plain = Game(HironakaSettings(dimension=DIMENSION, max_points=POINTS)), Straightforward(host, agent, draw)

    def fused() -> int:
        return len(roll_out(game, host, agent, role, draw, games=games, rounds=ROUNDS, epsilon=arguments.epsilon)[0])

    rates: tuple[list[float], list[float]] = ([], [])
    for repeat in range(arguments.repeats + 2):
        for rate, play in zip(rates, (fused, lambda: plain.roll_out(games, role, arguments.epsilon))):
            found = per_second(play, clock)
            if repeat >= 2:
                rate.append(found)
    ours, theirs = (statistics.median(rate) for rate in rates)
    ratios = sorted(a / b for a, b in zip(*rates))
    show(
        f"{kind}, {role}, {games} games",
        {
            "transitions_per_s": round(ours),
            "straightforward_per_s": round(theirs),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_range": [round(ratios[0], 2), round(ratios[-1], 2)],
        },
    )


def per_second(play: Callable[[], int], clock: Callable[[], float]) -> float:
    """Transitions a second."""
    begin = clock()
    return play() / (clock() - begin)


if __name__ == "__main__":
    main()
