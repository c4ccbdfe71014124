"""Steps a second of `ProtocolDQN` on the polyhedra game against a plain loop of the same rule, in turns in one run.

    python benchmarks/dqn.py --threads 2
    python benchmarks/dqn.py --threads 1 --cpu-time          # processor seconds, for a busy machine

Host and agent have 22 hidden layers each (128, twenty times 256, 128, batch norms; 1.3 million parameters), three
dimensions, 20 points. A step is a gradient step of each on 256 transitions; after every tenth 20 games of at most 10
rounds are played for each. The plain loop is the straightforward program: Adam and target updates parameter by
parameter, target networks on batch statistics, no masks, and roll-outs of one role after the other by the
straightforward tensor version of the rules.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from _common import machine, show
from hironaka_game import DIMENSION, POINTS, ROUNDS, Straightforward
from torch import Tensor, nn
from torch.nn import functional as F

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.rules import check
from nip_ray.rllib.cluster import build_algorithm
from nip_ray.scenarios.hironaka import encode
from nip_ray.seeding import generator

ROLES = ("host", "agent")
BATCH, ROLL_OUT, EVERY, TARGET_EVERY, TAU, GAMMA, CLIP = 256, 20, 10, 100, 0.9, 0.99, 10.0
INPUTS = {"host": POINTS * DIMENSION, "agent": POINTS * DIMENSION + DIMENSION}
OUTPUTS = {"host": encode.num_choices(DIMENSION), "agent": DIMENSION}
LAYERS = [
    {"width": 128, "norm": "batch"},
    {"width": 256, "norm": "batch", "repeat": 20},
    {"width": 128, "norm": "batch"},
]


def experiment(steps: int, **changes: object) -> ExperimentConfig:
    """The timed experiment: iterations of `steps` steps. changes: other settings of the rule."""
    role = {
        "gamma": GAMMA,
        "batch_size": BATCH,
        "lr": {"kind": "exponential", "initial": 1e-3, "final": 1e-8, "rate": 0.996},
        "exploration": {"kind": "exponential", "initial": 0.5, "final": 0.2, "rate": 0.996, "steps": 10_000},
        "target_interval": TARGET_EVERY,
        "target_tau": TAU,
        "initial_rollout_size": 100,
        "rollout_size": ROLL_OUT,
        "steps_between_rollouts": EVERY,
    }
    algorithm = {
        "name": "dqn",
        "steps_per_iteration": steps,
        "double": False,
        "max_grad_norm": CLIP,
        "roles": {"_default": role},
        **changes,
    }
    agent = {"view": "scaled", "encoder": "flat", "layers": LAYERS}
    scenario = {"name": "hironaka", "max_rounds": ROUNDS, "max_value": 20, "agents": {"_default": agent}}
    made = ExperimentConfig.model_validate(
        {
            "protocol": {"name": "hironaka"},
            "scenario": scenario,
            "algorithm": algorithm,
            "evaluation": {"sampled": False},
        }
    )
    check(made)
    return made


def network(role: str) -> nn.Sequential:
    """The same layers without wrappers."""
    widths = [INPUTS[role], 128, *[256] * 20, 128]
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], OUTPUTS[role]))


class Plain:
    """The same rule as one straightforward loop."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.nets: dict[str, nn.Sequential] = {role: network(role) for role in ROLES}
        self.targets = {role: copy.deepcopy(net) for role, net in self.nets.items()}
        self.adams = {
            role: torch.optim.Adam(net.parameters(), lr=1e-3, foreach=False) for role, net in self.nets.items()
        }
        self.buffers: dict[str, list[Tensor]] = {}
        self.size: dict[str, int] = dict.fromkeys(ROLES, 0)
        self.draw = generator(0, "plain")
        self.choices_KD = encode.choices(DIMENSION)
        self.t = 0
        for role in ROLES:
            self.roll_out(role, 100)

    def steps(self, count: int) -> None:
        """Do `count` trainer steps."""
        for _ in range(count):
            for role in ROLES:
                if self.t % TARGET_EVERY == 0:
                    for mine, its in zip(self.targets[role].parameters(), self.nets[role].parameters(), strict=True):
                        mine.data.copy_((1 - TAU) * mine.data + TAU * its.data)
                self.fit(role)
                if self.t % EVERY == 0:
                    self.roll_out(role, ROLL_OUT)
            self.t += 1

    def fit(self, role: str) -> None:
        """One gradient step."""
        rows = torch.randint(self.size[role], (BATCH,), generator=self.draw)
        obs, action, reward, done, after = (part[rows] for part in self.buffers[role])
        with torch.no_grad():
            target = reward + GAMMA * (~done) * self.targets[role](after).amax(1)
        value = self.nets[role](obs).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, target)
        self.adams[role].zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.nets[role].parameters(), CLIP, foreach=False)
        self.adams[role].step()

    @torch.no_grad()
    def roll_out(self, role: str, games: int, size: int = 100_000) -> None:
        """Games from the start, into the buffer of `role`."""
        for net in self.nets.values():
            net.eval()
        points = Straightforward.reduce(torch.randint(21, (games, POINTS, DIMENSION), generator=self.draw).float())
        for _ in range(ROUNDS):
            open_B = (points[..., 0] >= 0).sum(1) > 1
            if not open_B.any():
                break
            seen = Straightforward.features(points)
            choice, class_B = self.choose(seen, 0.5 if role == "host" else 0.0)
            axis_B = self.answer(seen, choice, 0.5 if role == "agent" else 0.0)
            moved = Straightforward.reduce(Straightforward.shift(points, choice, axis_B))
            points = torch.where(open_B[:, None, None], moved, points)
            after, done_B = Straightforward.features(points), (points[..., 0] >= 0).sum(1) <= 1
            if role == "host":
                self.keep(role, [seen.flatten(1), class_B, done_B.float(), done_B, after.flatten(1)], open_B, size)
            else:
                both = (
                    torch.cat((seen.flatten(1), choice.float()), 1),
                    torch.cat((after.flatten(1), self.choose(after, 0.0)[0].float()), 1),
                )
                self.keep(role, [both[0], axis_B, -done_B.float(), done_B, both[1]], open_B, size)
        for net in self.nets.values():
            net.train()

    def choose(self, seen: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """The host's choices and their classes."""
        score = self.nets["host"](seen.flatten(1))
        other = torch.rand(score.shape, generator=self.draw)
        class_B = torch.where(torch.rand(len(score), generator=self.draw) < epsilon, other.argmax(1), score.argmax(1))
        return self.choices_KD[class_B], class_B

    def answer(self, seen: Tensor, choice: Tensor, epsilon: float) -> Tensor:
        """The agent's coordinates."""
        score = self.nets["agent"](torch.cat((seen.flatten(1), choice.float()), 1))
        best_B = score.masked_fill(~choice, -torch.inf).argmax(1)
        other_B = torch.rand(score.shape, generator=self.draw).masked_fill(~choice, -1).argmax(1)
        return torch.where(torch.rand(len(score), generator=self.draw) < epsilon, other_B, best_B)

    def keep(self, role: str, rows: list[Tensor], open_B: Tensor, size: int) -> None:
        """Into the ring."""
        rows = [part[open_B] for part in rows]
        if role not in self.buffers:
            self.buffers[role] = [part.new_zeros((size, *part.shape[1:])) for part in rows]
        place = (self.size[role] + torch.arange(len(rows[0]))) % size
        for buffer, part in zip(self.buffers[role], rows, strict=True):
            buffer[place] = part
        self.size[role] = min(size, self.size[role] + len(rows[0]))


def main() -> None:
    """Ours as published, with bfloat16, and with double learning, each against the plain loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="in a turn, a multiple of 10")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="processor seconds instead of wall seconds, for a busy machine; with one thread",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(machine())
    variants: dict[str, dict[str, object]] = {
        "as published": {},
        "bfloat16": {"precision": "bfloat16"},
        "double": {"double": True},
    }
    plain = Plain()
    algorithms = {name: build_algorithm(experiment(arguments.steps, **changes)) for name, changes in variants.items()}
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    turns: dict[str, Callable[[], object]] = {"plain loop": lambda: plain.steps(arguments.steps)}
    torch.use_deterministic_algorithms(False)  # RLlib sets it; the plain loop need not pay for that
    turns |= {name: algorithm.train for name, algorithm in algorithms.items()}
    rates: dict[str, list[float]] = {name: [] for name in turns}
    for repeat in range(arguments.repeats + 1):
        for name, turn in turns.items():
            began = clock()
            turn()
            if repeat:
                rates[name].append(arguments.steps / (clock() - began))
    for name, found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, rates["plain loop"], strict=True))
        show(
            name,
            {
                "steps_per_s": round(statistics.median(found), 1),
                "best": round(max(found), 1),
                "ratio_to_plain": round(ratio, 2),
            },
        )
    for algorithm in algorithms.values():
        times = {key: round(value, 3) for key, value in algorithm.row.items() if key.startswith("time/")}
        show("last iteration", times)
        algorithm.stop()


if __name__ == "__main__":
    main()
