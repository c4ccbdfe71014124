"""`attack`: attack a run's verifier with adversarial provers like the run's own.

`nip_ray.evaluation.attack` defines the attack; this module takes the attackers' networks and the scenario's scripts
from a config.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

from torch import Tensor, nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.players import agent_settings
from nip_ray.errors import UserError
from nip_ray.evaluation.attack import AttackTarget, attacked, num_iterations
from nip_ray.evaluation.attack_table import refuse_unfit
from nip_ray.evaluation.enumerated import attack_as_exact, distinct_part
from nip_ray.evaluation.examine import players
from nip_ray.play.scenario import Scenario
from nip_ray.progress import progress_line
from nip_ray.protocols import from_settings
from nip_ray.scenarios.registry import build_agents, played_scenario
from nip_ray.seeding import stable_seed
from nip_ray.settings.attack import AttackSettings
from nip_ray.settings.heads import LrFactors

_MANUAL_PROTOCOL = "nip"  # the protocol of the hand-made provers


def attack(
    config: ExperimentConfig,
    scenario: Scenario,
    networks: Mapping[str, nn.Module],
    held_out: Tensor,
    seed: int,
    settings: AttackSettings,
    *,
    quiet: bool = True,
) -> dict[str, Any]:
    """Entries that the attack on these networks adds to `evaluation.json`; see `nip_ray.evaluation.attack.attacked`.

    held_out: ids of the instances that the verifier is measured on. seed: of all randomness. quiet: no progress line.
    Raises UserError without a verifier, a prover, or enough training instances; TrainingError when training fails.
    """
    refuse_unfit(scenario.protocol)

    def fresh(agents: Sequence[str], size: int, seed: int) -> dict[str, nn.Module]:
        return attackers(config, agents, size, seed)

    target = AttackTarget(scenario, players(config, networks), fresh, _scripts(config, scenario), held_out, seed)
    with progress_line(config.name, 0, num_iterations(scenario.protocol, settings), quiet, "attack") as show:
        entries = attacked(target, settings, lambda done, what: show(done, {"stage": what}))
    sampled = settings.max_instances is not None and settings.max_instances < len(held_out)
    return attack_as_exact(entries, None if sampled else distinct_part(scenario, held_out))


def check_attack(config: ExperimentConfig) -> None:
    """Raise UserError if a run of this config cannot be attacked. Plugins must have been imported."""
    if config.algorithm.name == "solo":
        raise UserError("--attack: an agent that learns alone meets no prover who could fool it; leave it out")
    refuse_unfit(from_settings(config.protocol))


def attackers(
    config: ExperimentConfig, agents: Sequence[str], size: int, seed: int, *, kind: str = "learned"
) -> dict[str, nn.Module]:
    """Untrained networks for these agents, like the run's own but with widths multiplied by `size` and new weights.

    Parts that the run's config freezes are learned here. kind: learned, or another kind that the scenario's agents
    have.
    """
    scenario: Any = config.scenario
    if hasattr(scenario, "agents"):  # a custom scenario may have no settings of agents, and only one size
        own = {agent: agent_settings(config, agent) for agent in from_settings(config.protocol).agents}
        changed = {}
        for agent in agents:
            made = wider(own[agent], size)
            rates = {f.name: LrFactors() for f in fields(made) if isinstance(getattr(made, f.name), LrFactors)}
            changed[agent] = replace(made, **rates, **({"kind": kind} if hasattr(made, "kind") else {}))
        scenario = replace(scenario, agents={**own, **changed})
    built = build_agents(
        played_scenario(config.protocol, scenario, config.algorithm), scenario, stable_seed(seed, "attackers")
    )
    return {agent: built[agent] for agent in agents}


def wider(settings: Any, size: int) -> Any:
    """An agent's settings with widths (`d_…`, `hidden…`, channels) multiplied by `size`; depths, heads, rates stay."""
    if size == 1:
        return settings
    numbers = {f.name: value for f in fields(settings) if type(value := getattr(settings, f.name)) is int}
    widths = {name: x for name, x in numbers.items() if name.startswith(("d_", "hidden")) or name.endswith("channels")}
    return replace(settings, **{name: x * size for name, x in widths.items()})


def _scripts(config: ExperimentConfig, scenario: Scenario) -> dict[str, dict[str, nn.Module]]:
    """The hand-made provers, if the scenario has any for this protocol."""
    if config.protocol.name != _MANUAL_PROTOCOL or not hasattr(config.scenario, "agents"):
        return {}
    settings = agent_settings(config, scenario.protocol.provers[0])
    if "manual" not in (get_args(get_type_hints(type(settings)).get("kind")) if is_dataclass(settings) else ()):
        return {}
    device = str(scenario.label_I.device)
    made = attackers(config, scenario.protocol.provers, 1, config.seed, kind="manual")
    return {"manual": {agent: network.to(device) for agent, network in made.items()}}
