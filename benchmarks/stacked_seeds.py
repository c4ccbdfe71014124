"""What several seeds in one process gain: gradient steps and iterations of eight seeds, against processes of one thread, two at a time.

    python benchmarks/stacked_seeds.py                                                  # the message game
    python benchmarks/stacked_seeds.py --set algorithm.minibatch_size=128               # in small minibatches
    python benchmarks/stacked_seeds.py --config gi_fast --set search=null --set algorithm.verdict_gradient=sampled \
        --set pretraining.agents=[]

alone: two processes of one thread beside each other, each with one seed. stacked: one process of `--threads`, in which the parameters
of all seeds have a leading axis (`torch.func.vmap`; torch's own kernels). wide: one process of `--threads` and one network with the
rows of all seeds: as many operations, and nothing that keeps seeds apart, so hardly less than stacking could reach with kernels of its
own. `of_alone` is seeds a second over those of `alone` in the same turn: median, smallest, largest. `cpu_ms` is processor time for each
seed, which with one thread hardly depends on what else the machine does; `mb` is the peak memory of a process.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from _common import ROOT, PlainLoop, config, machine, show
from ceiling_gi import uncompiled
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from nip_ray.cluster.process import prepare_process
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.learning.policy_gradient import critic, entropy_weight, normalise, objective
from nip_ray.networks import gin
from nip_ray.rllib.cluster import build_algorithm

WAYS = {"steps": ("alone", "stacked", "wide"), "iterations": ("alone", "wide")}


def main() -> None:
    """Time all ways in turns."""
    arguments = _arguments()
    if arguments.way is not None:
        what, _, way = arguments.way.partition("/")
        print(json.dumps(_measured(what, way, arguments)))
        return
    print(machine())
    for what, ways in WAYS.items():
        turns = [{way: _children(f"{what}/{way}") for way in ways} for _ in range(arguments.repeats)]
        for way in ways:
            ratios = [turn[way]["seeds_per_s"] / turn["alone"]["seeds_per_s"] for turn in turns]
            figures = {
                "of_alone": [round(found, 2) for found in (statistics.median(ratios), min(ratios), max(ratios))],
                "seeds_per_s": round(statistics.median(turn[way]["seeds_per_s"] for turn in turns), 1),
                "cpu_ms": round(statistics.median(turn[way]["cpu_ms"] for turn in turns), 2),
                "mb": round(max(turn[way]["mb"] for turn in turns)),
            }
            show(f"{arguments.config} {' '.join(arguments.set)} {what} {way}", figures)
    print(machine())


def _children(way: str) -> dict[str, float]:
    """What the processes of one way say, together."""
    count = 2 if way.endswith("alone") else 1
    started = [
        subprocess.Popen([sys.executable, *sys.argv, "--way", way], stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(count)
    ]
    said = [json.loads(child.communicate()[0].splitlines()[-1]) for child in started]
    return {"seeds_per_s": sum(one["seeds_per_s"] for one in said), **{name: max(one[name] for one in said) for name in ("cpu_ms", "mb")}}


def _measured(what: str, way: str, arguments: argparse.Namespace) -> dict[str, float]:
    prepare_process(1 if way == "alone" else arguments.threads)
    seeds = 1 if way == "alone" else arguments.seeds
    plain = uncompiled(config(arguments.config)) if way == "stacked" else []  # vmap knows nothing of compiled kernels
    experiments = [config(arguments.config, *arguments.set, *plain, f"seed={seed}") for seed in range(seeds)]
    if way == "wide":
        copies, algorithm = experiments[0].play.num_copies, experiments[0].algorithm
        wide = [f"play.num_copies={copies * seeds}", f"algorithm.minibatch_size={algorithm.minibatch_size * seeds}"]
        experiments = [config(arguments.config, *arguments.set, *wide)]
    if what == "iterations":
        work = build_algorithm(experiments[0]).train
    else:
        work = _stacked(experiments) if way == "stacked" else _single(PlainLoop(experiments[0]))
    for _ in range(2):
        work()
    calls, began, computed = 0, time.perf_counter(), time.process_time()
    while (taken := time.perf_counter() - began) < arguments.seconds:
        work()
        calls += 1
    cpu_ms = (time.process_time() - computed) / (seeds * calls) * 1e3
    return {"seeds_per_s": seeds * calls / taken, "cpu_ms": cpu_ms, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _first_copies(loop: PlainLoop, rounds: int) -> Tensor:
    return torch.arange(max(1, loop.settings.minibatch_copies or loop.settings.minibatch_size // rounds))


def _single(loop: PlainLoop) -> Callable[[], None]:
    """A gradient step on the first minibatch of a rollout."""
    rollout = loop.sample()
    data = {agent: loop.prepare(rollout, agent) for agent in loop.agents}
    copy_K = _first_copies(loop, rollout.num_rounds)

    def step() -> None:
        losses = [loop.loss(agent, own, own.rows.of_copies(copy_K)) for agent, own in data.items()]
        parameters = [parameter for optimizer in loop.optimizers.values() for parameter in optimizer.parameters]
        gradients = iter(torch.autograd.grad(losses, parameters, allow_unused=True))
        for optimizer in loop.optimizers.values():
            optimizer.set_gradients([next(gradients) for _ in optimizer.parameters])
            optimizer.step()

    return step


def _stacked(experiments: list[ExperimentConfig]) -> Callable[[], None]:
    """The same of all seeds at once. Where their turns differ in number, the fewest are taken of each."""
    gin._stacked = lambda gins: [torch.stack(same) for same in zip(*[[*one.parameters()] for one in gins], strict=True)]  # vmap knows it
    loops = [PlainLoop(experiment) for experiment in experiments]
    settings, parts = loops[0].settings, []
    for agent, network in loops[0].agents.items():
        rollouts = [loop.sample() for loop in loops]
        data = [loop.prepare(rollout, agent) for loop, rollout in zip(loops, rollouts, strict=True)]
        rows = [own.rows.of_copies(_first_copies(loops[0], rollouts[0].num_rounds)) for own in data]
        fewest = min(map(len, rows))
        given, buffers = stack_module_state([loop.agents[agent] for loop in loops])
        weights = {name: value.detach().requires_grad_() for name, value in given.items()}
        adam = torch.optim.Adam([*weights.values()], eps=1e-5, fused=True)
        parts.append((agent, network, data, [row[:fewest] for row in rows], weights, buffers, adam))

    def loss(agent: str, network: torch.nn.Module, obs: Any, action: Any, numbers: Any, weights: Any, buffers: Any) -> Tensor:
        policy, value_N = functional_call(network, (weights, buffers), (obs,))
        log_policy = (policy.silenced(action) if settings.skip_silent_messages else policy).normalised()
        old_N, advantage_N, old_value_N, target_N = numbers
        actor, _, _ = objective(log_policy.log_prob(action), old_N, normalise(advantage_N), settings, loops[0].beta)
        value_loss = critic(value_N, old_value_N, target_N, settings)
        return actor - entropy_weight(settings, agent) * log_policy.entropy().mean() + settings.critic_coefficient * value_loss

    def step() -> None:
        losses = []
        for agent, network, data, rows, weights, buffers, _ in parts:
            obs = _joined([own.rows.obs_of(row) for own, row in zip(data, rows, strict=True)])
            action = _joined([own.rows.action_of(row) for own, row in zip(data, rows, strict=True)])
            each = [(own.rows.log_prob_N, own.advantage_N, own.value_N, own.target_N) for own in data]
            numbers = [torch.stack([x[row] for x, row in zip(same, rows, strict=True)]) for same in zip(*each, strict=True)]
            one = vmap(lambda o, a, n, w, b, agent=agent, network=network: loss(agent, network, o, a, n, w, b))
            losses.append(one(obs, action, numbers, weights, buffers).sum())
        gradients = iter(torch.autograd.grad(losses, [weight for part in parts for weight in part[4].values()], allow_unused=True))
        for *_, weights, _, adam in parts:
            for weight in weights.values():
                weight.grad = next(gradients)
            adam.step()

    return step


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="message_game")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="of a process with all seeds")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of work in each process")
    parser.add_argument("--way", help="for its own processes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
