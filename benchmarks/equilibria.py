"""The exact distance of trained agents from an equilibrium, under every protocol, in the smallest games: haystacks of
two places, a claim of two steps for protocols that split a claim, and the message game with two secrets.

    python benchmarks/equilibria.py [--seeds S ...] [--iterations N] [--protocols NAME ...]

Prints a table in Markdown: the verifier's return in equilibria in pure strategies (minimum, maximum; in the mixed one
if there is none), and for each seed its return after training, the largest regret (an agent's gain from its best
response, in per cent of the range of its table of payments) and the distance to the nearest of these equilibria (the
largest difference between returns, in the same unit).
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _equilibrium import GameTree, grow
from torch import Tensor, nn

from nip_ray.config.load import config_from_dict
from nip_ray.evaluation.verbs.evaluate import bench, newest_or, trained
from nip_ray.play.scenario import Scenario
from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.folder import RunFolder

HERE = Path(__file__).resolve().parent
PLUGINS = {"haystack": HERE.parent / "examples" / "own_scenario.py", "two_steps": HERE / "_two_steps.py"}
ONCE: dict[str, Any] = dict(max_rounds=2, min_rounds=2, verifier_first=False)  # all provers speak, then the verdict
GAMES: dict[str, dict[str, Any]] = {
    "nip": dict(name="nip", max_rounds=3, min_rounds=3),
    "adp": dict(name="adp"),
    "debate": dict(name="debate", **ONCE),
    "open_debate": dict(name="open_debate", max_rounds=3),
    "critique": dict(name="critique"),
    "merlin_arthur": dict(name="merlin_arthur"),
    "consultancy": dict(name="consultancy", **ONCE),
    "consultancy, one prover": dict(name="consultancy", one_prover=True, **ONCE),
    "open_consultancy": dict(name="open_consultancy", max_rounds=2),
    "helpful_sneaky": dict(name="helpful_sneaky"),
    "mnip": dict(name="mnip", **ONCE),
    "bisection": dict(name="bisection", max_rounds=3),
    "bisection, verifier's halves": dict(name="bisection", max_rounds=3, half_chosen_by="verifier"),
    "prover_estimator": dict(name="prover_estimator", max_rounds=4),
    "judge_panel": dict(name="judge_panel"),
    "solo_verifier": dict(name="solo_verifier"),
    "message_game": dict(name="message_game", max_rounds=2),
}
ALGORITHM: dict[str, Any] = dict(
    name="ppo",
    lr=3e-3,
    anneal_lr=True,
    average_weights=0.995,
    num_epochs=4,
    minibatch_copies=512,
    gamma=1.0,
    lam=1.0,
    normalize_advantage=False,
    entropy_coefficient=0.1,
)
"""Of all games. Without the entropy bonus and ReLU, a prover with opposite messages in its two roles settles on three
of four cases; without these, the falling learning rate and averaged weights, learning circles a mixed equilibrium.
Open consultancy is missed: the bonus outweighs its rewards."""
SPLIT = ("bisection", "bisection, verifier's halves", "prover_estimator")
MIXED = {"bisection, verifier's halves": {"prover": 0.75, "verifier": 0.5}}
"""Games without a pure equilibrium -> returns in the mixed one. The half is uniform, and so is the step in which a lie
is wrong: it passes half of the time, and true claims always."""


def settings(game: str, seed: int, iterations: int) -> dict[str, Any]:
    """The config of one run."""
    scenario: dict[str, Any] = dict(name="haystack", num_places=2, num_instances=1000)
    if game == "message_game":
        scenario = dict(name="message_game", num_symbols=2, num_secrets=2)
    elif game in SPLIT:
        scenario = dict(name="two_steps")
    return dict(
        name="equilibria",
        seed=seed,
        iterations=iterations,
        plugins=[str(PLUGINS[scenario["name"]])] if scenario["name"] in PLUGINS else [],
        protocol=GAMES[game],
        scenario=dict(**scenario, agents=dict(_default=dict(activation="relu"))),
        algorithm=ALGORITHM,
        play=dict(num_copies=512),
        evaluation=dict(interval=0),
        runtime=dict(num_threads=1),  # the networks are small
    )


def tree_of(scenario: Scenario, networks: dict[str, nn.Module], *, decisive: bool = False) -> GameTree:
    """All dialogues about the training instances: equal ones once, with their frequency."""
    ids = scenario.ids("train")
    content = getattr(scenario, "hay_IP", scenario.label_I[:, None])[ids]
    kinds, kind_I, count_K = torch.unique(content, dim=0, return_inverse=True, return_counts=True)
    first_K = torch.stack([ids[(kind_I == kind).nonzero()[0, 0]] for kind in range(len(kinds))])
    return grow(scenario, networks, first_K, count_K / len(ids), decisive=decisive)


def measured(game: str, seed: int, iterations: int) -> tuple[GameTree, Tensor, Tensor]:
    """(the tree of the trained agents, returns (E, A) in the pure equilibria or the mixed one, the range of each table
    of payments (A,))."""
    with tempfile.TemporaryDirectory() as folder:
        config: Any = config_from_dict(settings(game, seed, iterations))
        run_experiment(config, run := Path(folder) / "run", quiet=True)
        made = bench(run, config, None, None)
        networks = trained(made, newest_or(RunFolder.open(run), None, config))
    scenario = made.examination.scenario
    payment, agents = scenario.protocol.payment, scenario.protocol.agents
    tables = [[x for table in payment.tables(agent) for row in table for x in row] for agent in agents]
    spans = [
        max(amounts) - min(amounts) + abs(payment.per_error.get(agent, 0)) for agent, amounts in zip(agents, tables)
    ]
    equilibria = tree_of(scenario, networks, decisive=True).pure_equilibria(20_000_000)
    if game in MIXED:
        assert not len(equilibria)
        equilibria = torch.tensor([[MIXED[game][agent] for agent in agents]], dtype=torch.float64)
    return tree_of(scenario, networks), equilibria, torch.tensor(spans, dtype=torch.float64)


def row(game: str, seeds: Sequence[int], iterations: int) -> str:
    """A row of the table."""
    paid, regrets, distances = [], [], []
    for seed in seeds:
        tree, returns_EA, span_A = measured(game, seed, iterations)
        value_A = torch.tensor(list(tree.values().values()), dtype=torch.float64)
        verifier = next(a for a, agent in enumerate(tree.agents) if agent in ("verifier", "judge0"))
        paid.append(f"{float(value_A[verifier]):.3f}")
        regret_A = torch.tensor(list(tree.regrets().values()), dtype=torch.float64)
        regrets.append(f"{100 * float((regret_A / span_A).max()):.2f}")
        distances.append(f"{100 * float(((returns_EA - value_A).abs() / span_A).amax(1).min()):.2f}")
    paid_E = returns_EA[:, verifier].tolist()
    ends = f"{paid_E[0]:.3f}" if game in MIXED else f"{min(paid_E):.3f} to {max(paid_E):.3f}"
    return (
        f"| {game} | {0 if game in MIXED else len(returns_EA)} | {ends} | {' '.join(paid)} | {' '.join(regrets)} |"
        f" {' '.join(distances)} |"
    )


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=1000, help="of each run")
    parser.add_argument("--protocols", nargs="*", choices=list(GAMES), default=list(GAMES))
    asked = parser.parse_args(given)
    print(
        "| protocol | pure equilibria | verifier in them | verifier after training | largest regret, % | distance, % |"
    )
    print("|---|---|---|---|---|---|")
    for game in asked.protocols:
        print(row(game, asked.seeds, asked.iterations), flush=True)


if __name__ == "__main__":
    main()
