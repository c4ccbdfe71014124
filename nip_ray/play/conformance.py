"""A check that a scenario meets the requirements of the batched core, in one call.

Decisions that matter here:

- It checks what play, learning and resuming rely on: an observation is a pure function of its own row and of earlier
  messages, an agent's network of its seed. A scenario that breaks this trains, but its results cannot be repeated.
- An agent must not observe what it cannot read: its observation must stay when messages in other channels change.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.errors import UserError, refuse_faults
from nip_ray.learning.policy import Policy
from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids, play_rollout
from nip_ray.play.rollout import Dialogue, Rollout, own_rows
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol
from nip_ray.seeding import generator, stable_seed

_COPIES = 24
_SPLITS = ("train", "test")
_TOLERANCE = 1e-4  # of float32 sums in another order


def check_scenario(scenario: Scenario) -> None:
    """Raise one UserError that lists the faults of `scenario` (on the CPU), if any.

    Checked: instances and labels; observations are pure, and independent of the other rows of a batch and of what the
    agent cannot read; networks depend only on their seeds, have consistent shapes, turns and parameter groups, and get
    gradients from play; play is deterministic. Takes a second or two for a small scenario.
    """
    before = torch.get_rng_state()
    stages = (_table_faults, _observation_faults, _network_faults, _play_faults)
    what = f"scenario {getattr(scenario, 'name', type(scenario).__name__)!r}"
    refuse_faults(what, *(partial(stage, scenario) for stage in stages))
    if not torch.equal(before, torch.get_rng_state()):
        raise UserError(
            f"scenario {scenario.name!r}: draws from torch's global generator; draw from nip_ray.seeding.generator, or"
            " fork_rng"
        )


def _table_faults(scenario: Scenario) -> Iterator[str]:
    """Splits, labels and groups."""
    if not isinstance(getattr(scenario, "name", None), str):
        yield "needs a class attribute `name`"
    label_I = scenario.label_I
    if label_I.dtype != torch.int64 or label_I.ndim != 1:
        yield f"label_I must be (I,) int64 (got {tuple(label_I.shape)} {label_I.dtype})"
        return
    count = len(scenario.protocol.verdicts)
    if scenario.protocol.verifier is not None and not bool(((label_I >= 0) & (label_I < count)).all()):
        yield f"labels must be 0 to {count - 1}, the verdicts of {scenario.protocol.name}, where there is a verifier"
        return
    for split in _SPLITS:
        ids = scenario.ids(split)
        if ids.dtype != torch.int64 or ids.ndim != 1 or not len(ids):
            yield f"ids({split!r}) must be (I,) int64, not empty"
        elif not bool(((ids >= 0) & (ids < len(label_I))).all()):
            yield f"ids({split!r}) has ids outside of the table of {len(label_I)}"
        elif scenario.protocol.verifier is not None and len(scenario.label_I[ids].unique()) < 2:
            yield f"the {split} instances all have one label, so there is nothing to decide"
    for name, group_I in scenario.group_I().items():
        if group_I.shape != label_I.shape or group_I.is_floating_point():
            yield f"group_I()[{name!r}] must be (I,) integers"
    if scenario.num_symbols < 1 or scenario.message_size < 1 or scenario.linear_symbols < 0:
        yield "num_symbols and message_size must be at least 1, linear_symbols at least 0"


def _sample(scenario: Scenario) -> tuple[Tensor, Dialogue, Tensor, Tensor]:
    """(ids, a dialogue with messages in all turns, rounds, episode seeds), a row for each copy and round."""
    protocol, draw = scenario.protocol, generator(0, "conformance")
    rounds, count = protocol.max_rounds, _COPIES
    id_B = instance_ids(scenario, "train", stable_seed(0, "conformance"), 0, count).cpu()
    seed_B = episode_seeds(stable_seed(0, "conformance"), 0, count).cpu()
    grid_B, grid_R = torch.arange(count).repeat_interleave(rounds), torch.arange(rounds).repeat(count)
    # (B, R, A, C)
    active = torch.stack([protocol.active(torch.full_like(seed_B, r), seed_B) for r in range(rounds)], 1)
    shape = (*active.shape, scenario.message_size)
    main = torch.where(active[..., None], torch.randint(scenario.num_symbols, shape, generator=draw), -1)
    linear = None
    if scenario.linear_symbols:
        linear = torch.where(active[..., None], torch.randint(scenario.linear_symbols, shape, generator=draw), -1)
    return id_B[grid_B], Dialogue(main, linear).rows(grid_B), grid_R, seed_B[grid_B]


def _observation_faults(scenario: Scenario) -> Iterator[str]:
    """Purity, independence, privacy."""
    id_N, said, round_N, seed_N = _sample(scenario)
    for agent in scenario.protocol.agents if scenario.rules is None else ():

        def observe(said: Dialogue, rows: Tensor | slice = slice(None), agent: str = agent) -> dict[str, Tensor]:
            part = Dialogue(said.main[rows], None if said.linear is None else said.linear[rows])
            return scenario.observe(agent, id_N[rows], part, round_N[rows], seed_N[rows])

        obs = observe(said.before(round_N))
        yield from _shape_faults(scenario, agent, obs, len(id_N))
        if _different(obs, observe(said.before(round_N))):
            yield f"observe({agent!r}) returns other values when it is called again"
        turned = torch.arange(len(id_N)).flip(0)
        alone = {key: value[:1] for key, value in obs.items()}, observe(said.before(round_N), slice(0, 1))
        elsewhere = {key: value.flip(0) for key, value in obs.items()}, observe(said.before(round_N), turned)
        if names := [*_different(*alone), *_different(*elsewhere)]:
            yield (
                f"observe({agent!r}): {', '.join(dict.fromkeys(names))}: a row depends on the other rows of its batch,"
                " or on its place"
            )
        if scenario.protocol.roles and agent not in scenario.protocol.told and len(scenario.protocol.turns) == 1:
            other = scenario.observe(agent, id_N, said.before(round_N), round_N, _redrawn(scenario.protocol, seed_N))
            if names := _different(obs, other):
                yield (
                    f"observe({agent!r}): {', '.join(names)} reveal the role that the episode drew, but `told` lacks it"
                )
        if names := _different(obs, observe(_elsewhere(scenario, agent, said).before(round_N))):
            yield (
                f"observe({agent!r}): {', '.join(names)} reveal messages in channels that it cannot read"
                " (protocol.sees)"
            )


def _shape_faults(scenario: Scenario, agent: str, obs: Mapping[str, Tensor], count: int) -> Iterator[str]:
    factors = len(scenario.protocol.writes[agent]) * scenario.message_size
    told = {"told": (count, len(scenario.protocol.roles))} if agent in scenario.protocol.told else {}
    for key, shape in {**told, "round": (count,), "speaks": (count, factors), "may_decide": (count,)}.items():
        if key not in obs or tuple(obs[key].shape) != shape:
            yield f"observe({agent!r}) needs {key!r} of shape {shape}; see nip_ray.play.core.turn_masks"
    for key, value in obs.items():
        if value.ndim < 1 or len(value) != count:
            yield (
                f"observe({agent!r}): {key!r} must have a row for each of the {count} turns (got {tuple(value.shape)})"
            )
        elif value.is_floating_point() and not bool(value.isfinite().all()):
            yield f"observe({agent!r}): {key!r} is not finite"


def _redrawn(protocol: Protocol, seed_N: Tensor) -> Tensor:
    """Episode seeds that draw the next role."""
    role_N = protocol.role_B(seed_N)
    return seed_N - role_N + (role_N + 1) % len(protocol.roles)


def _elsewhere(scenario: Scenario, agent: str, said: Dialogue) -> Dialogue:
    """`said` with other symbols in the channels that `agent` does not see."""
    protocol = scenario.protocol
    hidden = torch.tensor([channel not in protocol.sees[agent] for channel in protocol.channels])[:, None]

    def changed(tokens: Tensor, size: int) -> Tensor:
        return torch.where(hidden & (tokens >= 0), (tokens + 1) % max(size, 1), tokens)

    linear = None if said.linear is None else changed(said.linear, scenario.linear_symbols)
    return Dialogue(changed(said.main, scenario.num_symbols), linear)


def _different(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    """The entries that differ at all: observations are gathered, not computed, so they must be equal to the bit."""
    return [
        key
        for key in one.keys() | other.keys()
        if key not in one or key not in other or not torch.equal(one[key], other[key])
    ]


def _network_faults(scenario: Scenario) -> Iterator[str]:
    """Seeds, shapes and parameter groups."""
    for agent in scenario.protocol.agents:
        made: list[Any] = [scenario.build_agent(agent, 1) for _ in range(2)]
        network, twin = made
        weights = network.state_dict()
        if _different(weights, twin.state_dict()):
            yield f"build_agent({agent!r}, seed) is not made of its seed alone"
        trained = [parameter for group in network.groups() for parameter in group.parameters]
        if len({id(p) for p in trained}) < len(trained):
            yield f"groups() of {agent!r} name a parameter twice"
        named = {name for name, parameter in network.named_parameters() if any(parameter is p for p in trained)}
        missing = [
            name for name, parameter in network.named_parameters() if parameter.requires_grad and name not in named
        ]
        if trained and missing:
            yield (
                f"groups() of {agent!r} leave out {', '.join(missing)}: give them a group, with lr_factor 0 if they are"
                " to rest"
            )
        if any(group.part not in ("actor", "critic") for group in network.groups()):
            yield f"groups() of {agent!r}: `part` must be actor or critic"
        if not (network.body() is None or isinstance(network.body(), nn.Module)):
            yield f"body() of {agent!r} must be a module or None"
        id_N, said, round_N, seed_N = _sample(scenario)
        obs = scenario.observe(agent, id_N, said.before(round_N), round_N, seed_N)
        with torch.no_grad():
            policy, value_N = network.eval()(obs, True, True)
        if policy is None or value_N is None:
            yield f"the network of {agent!r} must return a policy and a value when both are wanted"
        else:
            yield from _answer_faults(scenario, agent, policy, value_N, len(id_N))
            if trained and agent in scenario.protocol.told:
                other = scenario.observe(
                    agent, id_N, said.before(round_N), round_N, _redrawn(scenario.protocol, seed_N)
                )
                with torch.no_grad():
                    _, other_N = network(other, False, True)
                if torch.equal(value_N, other_N):
                    yield (
                        f"the network of {agent!r} does not read what it is told of the episode's role: the observation"
                        " `told`"
                    )


def _play_faults(scenario: Scenario) -> Iterator[str]:
    """Whole episodes, forwards and backwards."""
    networks: dict[str, Any] = {
        agent: scenario.build_agent(agent, stable_seed(3, agent)).eval() for agent in scenario.protocol.agents
    }
    rollout = _played(scenario, networks)
    for name in ("main", "decision_BRA", "reward_BRA"):
        both = (rollout, _played(scenario, networks))
        one, again = (played.dialogue.main if name == "main" else getattr(played, name) for played in both)
        if not torch.equal(one, again):
            yield f"the same networks, instances and seeds play different games ({name})"
    if not bool(rollout.reward_BRA.isfinite().all()):
        yield "a reward in play is not finite"
    for agent, network in networks.items():
        rows = own_rows(scenario, rollout, agent)
        if not len(rows.copy_N):
            continue
        said = rollout.dialogue.rows(rows.copy_N).before(rows.round_N)
        if _different(
            rows.obs,
            scenario.observe(agent, rollout.id_B[rows.copy_N], said, rows.round_N, rollout.seed_B[rows.copy_N]),
        ):
            yield f"the observations of {agent!r} in play differ from those of observe({agent!r})"
        policy, value_N = network(rows.obs, True, True)
        if network(rows.obs, True, False)[1] is not None or network(rows.obs, False, True)[0] is not None:
            yield f"the network of {agent!r} must return None for a policy or a value that is not requested"
        found_N = policy.log_prob(rows.action)
        if float((found_N.detach() - rows.log_prob_N).abs().max()) > _TOLERANCE:
            yield (
                f"{agent!r}: learning finds other log-probabilities than play did, so its observations or network are"
                " not pure"
            )
        if (trained := [p for group in network.groups() for p in group.parameters if p.requires_grad]) and not any(
            g is not None for g in torch.autograd.grad(found_N.sum() + value_N.sum(), trained, allow_unused=True)
        ):
            yield f"nothing of {agent!r} gets a gradient from what it plays"


def _played(scenario: Scenario, networks: Mapping[str, nn.Module]) -> Rollout:
    ids = instance_ids(scenario, "train", stable_seed(5, "conformance"), 0, _COPIES)
    return play_rollout(
        BatchedPlay(scenario),
        networks,
        ids,
        episode_seeds(stable_seed(5, "conformance"), 0, _COPIES),
        generator(5, "conformance"),
    )


def _answer_faults(scenario: Scenario, agent: str, policy: Policy, value_N: Tensor, count: int) -> Iterator[str]:
    factors = len(scenario.protocol.writes[agent]) * scenario.message_size
    wanted: dict[str, tuple[Tensor | None, tuple[int, ...] | None]] = {
        "message": (policy.message, (count, factors, scenario.num_symbols)),
        "linear": (policy.linear, (count, factors, scenario.linear_symbols) if scenario.linear_symbols else None),
        "decision": (
            policy.decision,
            (count, scenario.protocol.undecided + 1) if agent in scenario.protocol.deciders else None,
        ),
        "value": (value_N, (count,)),
    }
    for name, (found, shape) in wanted.items():
        if (None if found is None else tuple(found.shape)) != shape:
            yield (
                f"the network of {agent!r} gives a {name} of shape {None if found is None else tuple(found.shape)},"
                f" expected {shape}"
            )
        elif found is not None and bool(found.isnan().any()):
            yield f"the network of {agent!r} gives a {name} that is not a number"
