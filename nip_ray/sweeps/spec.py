"""Read, check and write a sweep file: an experiment config in which any value may be a search space, and a key `sweep`.

Decisions that matter here:

- All detectable faults are refused before Ray starts, in one UserError: every example value of every space is tried
  alone in the config (the others at their first value), and so is every combination of grids if there are at most 512.
- Values are drawn here, by seed, not by Tune: Tune would draw again for every point of a grid, and a sweep's seeds
  would not share settings. Only searchers and PBT, which learn from results, draw for themselves.
- The config without its spaces never goes through Tune's own resolution: see `nip_ray.sweeps.spaces`.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.keys import keys_of, suggest, with_tags
from nip_ray.config.load import AnyConfig, config_from_dict, faults_of, plain, read_mapping, settings_from, unshared
from nip_ray.config.members import ADDED
from nip_ray.config.players import playing, without_verifier
from nip_ray.config.rules import check
from nip_ray.config.text_rules import language_agents
from nip_ray.config.yaml_text import Dumper
from nip_ray.errors import UserError
from nip_ray.protocols.spec import REJECT
from nip_ray.protocols.tables import table_of
from nip_ray.seeding import stable_seed
from nip_ray.settings.sweep import AshaScheduler, FifoScheduler, OptunaSearch, PbtScheduler, SweepSettings
from nip_ray.settings.text_training import TextTrainingSettings
from nip_ray.sweeps.spaces import Space, combinations, draw, examples, looks_like_space, parse_space

SWEEP = "sweep"
CASE, CASES = "case", "cases"
"""Key of the space over the names of `sweep.cases`, and the place of their changes in a sweep's base."""
MAX_COMBINATIONS = 512
"""Maximum number of combinations of grids that are all checked; beyond it, values are checked one by one."""

_PREFIXES = ("train", "eval", "eval_sampled", "learn", "time")
_TEXT_PREFIXES = ("train", "eval_sampled", "learn", "cost", "time")
_PLAIN = ("env_steps", "env_steps_total", "env_steps_per_s", "episodes")
_OF_ALL = (
    "verifier",
    "simulator",
    "score_difference",
    "episode_length",
    "messages",
    "exploitability",
    "distance_to_nash",
    "malt",
    "lr",
    "staleness",
)
"""Possible parts after train, eval, eval_sampled or learn in addition to the names of agents."""
_OF_SCENARIO = {
    "hironaka": ("rho", "finished", "length_mean", "unfinished", "actions"),
    "state_tracking": ("worst_case",),
}
"""The same for held-out games of one scenario: its `Scenario.figures` without an agent's name."""
_EXACT = ("exploitability", "off_form", "worst_case")
"""Exact metrics of language models, for rules that know the probabilities of replies."""
_LAST = (
    *(
        "accuracy",
        "completeness",
        "soundness",
        "undecided",
        "acceptance",
        "precision",
        "recall",
        "worst_case",
        "always_fail",
    ),
    *(
        "confidence",
        "overconfidence",
        "brier",
        "return",
        "return_std",
        "score_difference",
        "episode_length",
        "messages",
    ),
    *("value", "entropy", "kl"),
    *(
        "exploitability",
        "distance_to_nash",
        "wl_bound",
        "solo_baseline",
        "objective",
        "critic",
        "explained_variance",
        "examples",
        "usd",
        "tokens",
    ),
    *("iteration_s", "sample_s", "learn_s", "evaluate_s", "checkpoint_s", "test_s"),
)
"""Common last parts of keys: one that is similar to them but not equal counts as misspelt."""
_PBT_MAY = ("algorithm", "schedules")
_PBT_MAY_NOT = ("algorithm", "algorithm.name", "algorithm.agent", "algorithm.optimizer")
"""Weights or optimizers for one value cannot be used with another."""


@dataclass(frozen=True)
class SweepSpec:
    """A checked sweep. base: the config without its spaces and without `sweep` (list elements that are spaces are null
    in it), with the changes of each case under `cases`. spaces: dotted key -> space, in the order of the keys; `case`
    is one. kind: the class of its configs."""

    settings: SweepSettings
    base: Mapping[str, Any]
    spaces: Mapping[str, Space]
    kind: type[AnyConfig]

    @property
    def name(self) -> str:
        """Name of the experiment, and of the sweep's folder."""
        return self.base.get("name", keys_of(self.kind)["name"].default)

    @property
    def grids(self) -> dict[str, Space]:
        """Those of its spaces of which every value is tried; {} under optuna or pbt, which treat a grid as a choice."""
        if isinstance(self.settings.search, OptunaSearch) or isinstance(self.settings.scheduler, PbtScheduler):
            return {}
        return {key: space for key, space in self.spaces.items() if space.kind == "grid"}

    @property
    def num_settings(self) -> int:
        """The number of settings that are tried."""
        points = 1
        for space in self.grids.values():
            points *= len(space.arguments)
        return points * self.settings.num_samples

    @property
    def num_trials(self) -> int:
        """The number of runs: each setting with each seed."""
        return self.num_settings * max(1, len(self.settings.seeds))


# ----------------------------------------------------------------------------------------------------------- in and out


def is_sweep(data: Mapping[str, Any]) -> bool:
    """True if a mapping read from a file is a sweep: it has the key `sweep`, or a search space somewhere."""
    return SWEEP in data or any(_holds_space(item) for item in data.values())


def load_sweep(path: Path | str, overrides: Sequence[str] = (), *, of_run: bool = False) -> SweepSpec:
    """The sweep in the YAML file `path` overlaid with `overrides` ("a.b=c", where c may be a space).

    of_run: the file is that of a sweep's folder, whose code is imported only if it is known.

    Raises UserError, which names the file, for all detectable faults.
    """
    data, name = read_mapping(path, overrides, of_run=of_run)
    with faults_of(name, overrides):
        return parse_sweep(data)


def parse_sweep(data: Mapping[str, Any]) -> SweepSpec:
    """The sweep of a mapping; without the key `sweep` its settings have their defaults.

    Raises one UserError that lists all its faults.
    """
    faults: list[str] = []
    spaces: dict[str, Space] = {}
    misspelt = [key for key in difflib.get_close_matches(SWEEP, list(map(str, data)), cutoff=0.75) if key != SWEEP]
    faults += [f"{key}: unknown key, did you mean {SWEEP}?" for key in misspelt]
    base = _without_spaces(
        (), {key: item for key, item in data.items() if key not in (SWEEP, *misspelt)}, spaces, faults
    )
    if not faults and not is_sweep(data):
        advice = (
            "train it with `nip-ray train`, or add a space, as in algorithm: {lr: {loguniform: [1e-4, 1e-2]}}, or"
            " sweep: {seeds: [0, 1, 2]}"
        )
        raise UserError(f"no sweep, for it has neither a search space nor the key sweep; {advice}")
    settings = SweepSettings()
    try:
        given = {} if data.get(SWEEP) is None else data[SWEEP]
        if not isinstance(given, Mapping):
            raise UserError(f"{SWEEP}: got {given!r:.60}, expected mapping")
        settings = settings_from(with_tags(given, SweepSettings), SweepSettings, f"{SWEEP}.")
    except UserError as error:
        faults.extend(error.args)
    faults += _case_faults(settings.cases, spaces)
    if settings.cases:
        base[CASES], spaces[CASE] = settings.cases, Space("grid", tuple(settings.cases))
    if not faults:
        configs = _example_configs(base, spaces, faults)
        kinds = dict.fromkeys(type(config) for config in configs)
        if len(kinds) > 1:
            faults.append(
                "scenario: some values are of networks and others of language models, sweep over one kind at a time"
            )
        spec = SweepSpec(settings, base, dict(sorted(spaces.items())), next(iter(kinds), ExperimentConfig))
        faults += _spec_faults(spec)
        faults += [fault for config in configs for fault in _config_faults(settings, config)]
        if not faults:
            return spec
    raise UserError(*dict.fromkeys(faults))


def sweep_to_yaml(spec: SweepSpec) -> str:
    """The sweep as a file: `parse_sweep` of it gives an equal one."""
    data = unshared({key: value for key, value in spec.base.items() if key != CASES})
    for key, space in spec.spaces.items():
        if key != CASE:
            _put(data, key, space.data())
    return yaml.dump(
        {**data, SWEEP: plain(spec.settings)}, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=140
    )


def config_of(spec: SweepSpec | Mapping[str, Any], values: Mapping[str, Any]) -> AnyConfig:
    """The checked config of one trial. spec: a sweep, or its base. values: dotted key -> value, with `seed` if a trial
    has its own.

    Raises UserError that names the setting if it is invalid.
    """
    try:
        return _config(spec.base if isinstance(spec, SweepSpec) else spec, values)
    except UserError as error:
        raise UserError(f"{error} (in the setting {_setting(values)})" if values else str(error)) from None


def draw_settings(spec: SweepSpec) -> list[dict[str, Any]]:
    """The settings of a random search, in order: `num_samples` draws from the spaces other than grids, each combined
    with every grid point (the last key varying fastest). They depend on the content of the file, not on the order of
    its keys: a resumed sweep has the same. Each is run with every seed."""
    import numpy as np

    seed, made = spec.base.get("seed", 0), []  # 0 if the seed is itself a space
    for i in range(spec.settings.num_samples):
        streams = {
            key: np.random.default_rng(stable_seed(seed, "sweep", i, key))
            for key in spec.spaces
            if key not in spec.grids
        }
        drawn = {key: draw(spec.spaces[key], generator) for key, generator in streams.items()}
        for point in combinations(spec.grids):
            made.append({key: {**drawn, **point}[key] for key in spec.spaces})
    return made


def _holds_space(value: Any) -> bool:
    if isinstance(value, Mapping):
        return looks_like_space(value) or any(_holds_space(item) for item in value.values())
    return isinstance(value, list | tuple) and any(_holds_space(item) for item in value)


def _without_spaces(path: tuple[str, ...], value: Any, spaces: dict[str, Space], faults: list[str]) -> Any:
    """A copy of `value` without its spaces, which are added to `spaces`."""
    key = ".".join(path)
    try:
        space = parse_space(key, value) if path else None
    except UserError as error:
        faults.append(str(error))
        return None
    if space is not None:
        dotted = next((part for part in path if "." in part), None)
        if dotted is not None:
            faults.append(
                f"{key}: a space cannot lie below a key with a dot in it ({dotted}), make a choice of the mapping"
                " around it"
            )
        spaces[key] = space
        return None
    if isinstance(value, Mapping):
        stripped = {name: _without_spaces((*path, str(name)), item, spaces, faults) for name, item in value.items()}
        return {name: item for name, item in stripped.items() if ".".join((*path, str(name))) not in spaces}
    if isinstance(value, list | tuple):  # every element keeps its place, so that the others stay in theirs
        return [_without_spaces((*path, str(i)), item, spaces, faults) for i, item in enumerate(value)]
    return value


def _put(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Set the dotted key, making intermediate mappings."""
    *way, last = dotted.split(".")
    at: Any = data
    for part in way:
        if isinstance(at, dict) and not isinstance(at.get(part), dict | list):
            at[part] = {}
        at = at[_step(at, part, dotted)]
    at[_step(at, last, dotted)] = unshared(value)


def _step(at: Any, part: str, dotted: str) -> str | int:
    if isinstance(at, dict):
        return part
    if not part.isdecimal() or int(part) >= len(at):
        raise UserError(f"{dotted}: {part!r} is not an index of a list of {len(at)}")
    return int(part)


def _config(base: Mapping[str, Any], values: Mapping[str, Any]) -> AnyConfig:
    data = unshared({key: value for key, value in base.items() if key != CASES})
    if CASE in values:
        _lay_over(data, base[CASES][values[CASE]])
    for key, value in values.items():
        if key != CASE:
            _put(data, key, value)
    config = config_from_dict(data)
    check(config)
    return config


def _lay_over(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Apply the changes of a case to `data`: mappings key by key, everything else replaced."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(data.get(key), dict):
            _lay_over(data[key], value)
        else:
            data[key] = unshared(value)


def _setting(values: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key} = {value}" for key, value in values.items())
    return text if len(text) <= 200 else f"{text[:200]}..."


# ---------------------------------------------------------------------------------------------------------------- rules


def _example_configs(base: Mapping[str, Any], spaces: Mapping[str, Space], faults: list[str]) -> list[AnyConfig]:
    """Configs of valid examples; reasons for the others go to `faults`, once each, with any setting that matters."""
    first = {key: examples(space)[0] for key, space in spaces.items()}
    settings = [first, *({**first, key: value} for key, space in spaces.items() for value in examples(space)[1:])]
    grids = {key: space for key, space in spaces.items() if space.kind == "grid"}
    points = 1
    for space in grids.values():
        points *= len(space.arguments)
    if points <= MAX_COMBINATIONS:
        settings += [{**first, **point} for point in combinations(grids)]
    configs, seen = [], set[str]()
    for values in settings:
        try:
            configs.append(_config(base, values))
        except UserError as error:
            new = [fault for fault in str(error).split("; ") if fault not in seen]
            seen.update(new)
            faults += [fault + _blame(fault, values, first) for fault in new]
    return configs


def _case_faults(cases: Mapping[str, Mapping[str, Any]], spaces: Mapping[str, Space]) -> Iterator[str]:
    """Faults of cases independent of their changes."""
    for name, changes in cases.items():
        where = f"{SWEEP}.{CASES}.{name}"
        if _holds_space(changes):
            yield (
                f"{where}: it has a search space, expected values; put spaces outside of cases and combine with them"
            )
        for key in {"name", "seed", SWEEP} & set(changes):
            yield f"{where}.{key}: a case cannot change it{', name sweep.seeds' if key == 'seed' else ''}"
        for space in spaces:
            at: Any = changes
            for part in space.split("."):
                at = at.get(part, {}) if isinstance(at, Mapping) else at
            if at != {}:
                yield f"{where}: it changes {space}, over which there is a search space, leave one of the two out"


def _blame(fault: str, values: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """The values of the spaces that cause a fault, if it does not name their key itself. Also a hint for floats that
    must be integers."""
    key, _, rest = fault.partition(":")
    if key in values:
        whole = isinstance(values[key], float) and "expected integer" in rest
        return " (of integers there are randint, lograndint, choice and grid)" if whole else ""
    other = {name: value for name, value in values.items() if value != first[name] or name == CASE}
    return f" (with {_setting(other)})" if other else ""


def _spec_faults(spec: SweepSpec) -> Iterator[str]:
    """Faults of a sweep independent of values."""
    settings, seeds = spec.settings, spec.settings.seeds
    if "name" in spec.spaces:
        yield "name: the sweep's folder is called after it, so it has one value"
    if "seed" in spec.spaces and seeds:
        yield "sweep.seeds: there is a space on seed too, leave one of the two out"
    if any(seed < 0 for seed in seeds):
        yield f"sweep.seeds: got {min(seeds)}, expected integers >= 0"
    if len(set(seeds)) < len(seeds):
        yield f"sweep.seeds: got {list(seeds)}, expected each once"
    if settings.num_samples > 1 and set(spec.spaces) <= set(spec.grids):
        what = (
            "all spaces are grids, and each point of them"
            if spec.spaces
            else "there is no search space, and the one setting there is"
        )
        yield (
            f"sweep.num_samples: got {settings.num_samples}, but {what} is tried anyway, leave it out or name"
            " sweep.seeds"
        )
    if isinstance(settings.search, OptunaSearch):
        if find_spec("optuna") is None:
            yield (
                "sweep.search.name: optuna is not installed, install it with `pip install 'nip_ray[ray,optuna]'` or use"
                " random"
            )
        for key, space in spec.spaces.items():
            if space.kind in ("randn", "qloguniform"):
                yield f"{key}: optuna knows no {space.kind}, use {'uniform' if space.kind == 'randn' else 'loguniform'}"
        if not spec.spaces:
            yield "sweep.search.name: there is no search space for optuna to search, add one or use random"
    if isinstance(settings.scheduler, PbtScheduler):
        yield from _pbt_faults(spec)


def _pbt_faults(spec: SweepSpec) -> Iterator[str]:
    """PBT changes settings during training and moves weights between trials."""
    settings = spec.settings
    if all(space.kind == "grid" for space in spec.spaces.values()):
        yield "sweep.scheduler.name: pbt changes settings as it goes, so it needs a space that is not a grid"
    if settings.seeds:
        yield (
            "sweep.seeds: under pbt trials take over each other's weights and settings, so seeds cannot be compared,"
            " leave them out"
        )
    if isinstance(settings.search, OptunaSearch):
        yield "sweep.search.name: optuna and pbt would both choose settings, use one of them"
    elif settings.num_samples < 2:
        yield f"sweep.num_samples: got {settings.num_samples}, but a population has two members or more"
    for key in spec.spaces:
        if key.partition(".")[0] not in _PBT_MAY or key in _PBT_MAY_NOT:
            reason = "weights of one value may not fit another"
            yield (
                f"{key}: pbt cannot change it, since {reason}, sweep over keys below algorithm (not name, agent,"
                " optimizer) or schedules"
            )


def _config_faults(settings: SweepSettings, config: AnyConfig) -> Iterator[str]:
    """Faults of a sweep with `config` as one of its experiments."""
    fault = _metric_fault(settings.metric, config)
    if fault is not None:
        yield f"sweep.metric: got {settings.metric!r}, {fault}"
        return
    scheduler = settings.scheduler
    if isinstance(scheduler, FifoScheduler):
        return
    key, every = _rhythm(scheduler)
    if every >= config.iterations:
        yield (
            f"sweep.scheduler.{key}: got {every} of {config.iterations} iterations, expected fewer, or nothing is ever"
            " compared"
        )
    if isinstance(scheduler, PbtScheduler) and isinstance(config, TextExperimentConfig):
        yield (
            "sweep.scheduler.name: pbt copies weights, but language models are fine-tuned by services, use asha or fifo"
        )
    reports = settings.iterations_per_report
    if every % reports:
        yield (
            f"sweep.iterations_per_report: got {reports}, expected a divisor of sweep.scheduler.{key}, which is {every}"
        )
    if settings.metric.partition("/")[0] in ("eval", "eval_sampled"):
        yield from _evaluation_faults(scheduler, config)


def _rhythm(scheduler: AshaScheduler | PbtScheduler) -> tuple[str, int]:
    """The setting that determines when trials are first compared, and its value, in iterations."""
    if isinstance(scheduler, AshaScheduler):
        return "grace_iterations", scheduler.grace_iterations
    return "interval", scheduler.interval


def _evaluation_faults(scheduler: AshaScheduler | PbtScheduler, config: AnyConfig) -> Iterator[str]:
    """Held-out metrics exist when trials are compared."""
    key, every = _rhythm(scheduler)
    if isinstance(config, TextExperimentConfig):
        if isinstance(config.algorithm, TextTrainingSettings):
            if (scheme := config.algorithm.test_scheme) != "all":
                yield (
                    f"algorithm.test_scheme: got {scheme}, but {scheduler.name} compares held-out metrics on the way,"
                    " use all"
                )
            return
        name, interval = "algorithm.evaluate_every", config.algorithm.evaluate_every
    else:
        name, interval = "evaluation.interval", config.evaluation.interval
    if interval == 0:
        yield f"{name}: got 0 (at the end only), but {scheduler.name} compares on the way, use at most {every}"
    elif isinstance(scheduler, AshaScheduler) and interval > every:
        where = f"from iteration {every} on (sweep.scheduler.{key})"
        yield f"{name}: got {interval}, but {scheduler.name} compares {where}, use at most that"
    elif isinstance(scheduler, PbtScheduler) and every % interval:
        yield f"sweep.scheduler.{key}: got {every}, expected a multiple of {name}, which is {interval}"


def _metric_fault(metric: str, config: AnyConfig) -> str | None:
    """Why the metric cannot occur in metrics.jsonl of such an experiment, and the valid ones."""
    text = isinstance(config, TextExperimentConfig)
    if metric in _PLAIN and not text:
        return None
    prefixes = _TEXT_PREFIXES if text else _PREFIXES
    prefix, slash, rest = metric.partition("/")
    if not slash or prefix not in prefixes:
        if text and prefix == "eval" and rest:
            if config.algorithm.name == "policy_gradient" and (
                rest.partition("/")[0] in _EXACT or rest.endswith("/value")
            ):
                return None
            return f"but held-out dialogues of language models are under eval_sampled/{rest}"
        near = difflib.get_close_matches(prefix, prefixes, 1, 0.8)
        known = f"{'/..., '.join(prefixes)}/..." + ("" if text else f", {', '.join(_PLAIN)}")
        return f"did you mean {near[0]}/{rest or '...'}?" if near else f"expected a key of docs/metrics.md: {known}"
    return _name_fault(prefix, rest.split("/"), config) or _absence(metric, prefix, rest, config)


def _name_fault(prefix: str, parts: list[str], config: AnyConfig) -> str | None:
    """An unknown agent, or a misspelt metric."""
    agents = tuple(language_agents(config)) if isinstance(config, TextExperimentConfig) else playing(config)
    known = (*(agents or ()), *_OF_ALL, *_OF_SCENARIO.get(config.scenario.name, ()))
    own_figures = prefix.startswith("eval") and config.scenario.name in (
        *ADDED["scenario"],
        *ADDED["language_scenario"],
    )
    if prefix not in ("time", "cost") and agents is not None and not own_figures and parts[0] not in known:
        return suggest(parts[0], known)
    last = parts[-1]
    near = difflib.get_close_matches(last, _LAST, 1, 0.8)
    return f"did you mean .../{near[0]}?" if near and last not in (*_LAST, *known) else None


def _absence(metric: str, prefix: str, rest: str, config: AnyConfig) -> str | None:
    """A metric that this experiment does not have, though others do."""
    protocol = config.protocol.name
    if (role := next((part[len("role=") :] for part in rest.split("/") if part.startswith("role=")), None)) is not None:
        roles = table_of(protocol, config.protocol).roles
        if role not in roles:
            return suggest(role, roles) if roles else f"but {protocol} draws no role by episode, leave role={role} out"
    who, _, claim = rest.rpartition("/")
    if who in ("verifier/completeness", "verifier/soundness") and "=" not in claim:
        verdicts = table_of(protocol, config.protocol).verdicts
        if claim not in verdicts or len(verdicts) == 2:
            return (
                suggest(claim, verdicts)
                if len(verdicts) > 2
                else f"but {protocol} has two verdicts here, name {prefix}/{who}"
            )
    if rest == "score_difference":
        table = table_of(protocol, config.protocol)
        if not any(table.wanted_by(prover, REJECT) for prover in table.provers):
            return (
                f"but no prover of {protocol} is after a verdict, so that none is honest or lies, name another metric"
            )
    if without_verifier(config) and rest.startswith("verifier/"):
        example = "eval/rho/own-choose-first" if protocol == "hironaka" else "eval/exploitability"
        if isinstance(config, TextExperimentConfig) and config.algorithm.name != "policy_gradient":
            example = "eval_sampled/player0/return"
        return f"but {protocol} has no verifier, name another metric, for example {example}"
    if isinstance(config, TextExperimentConfig):
        untested = prefix == "eval_sampled" and getattr(config.algorithm, "test_scheme", None) == "none"
        return "but algorithm.test_scheme is none, so that nothing is tested" if untested else None
    played = rest.startswith("verifier/") or rest.endswith(("/return", "episode_length", "score_difference"))
    if prefix == "eval" and played and not config.evaluation.greedy:
        return f"but evaluation.greedy is false, use eval_sampled/{rest}"
    if prefix == "eval_sampled" and played and not config.evaluation.sampled:
        return f"but evaluation.sampled is false, use eval/{rest}"
    return None
