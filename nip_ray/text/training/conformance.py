"""A check that a learning rule of language models meets the requirements of runs, in one call.

Decisions that matter here:

- It really plays and learns, on short chains of moves: rules with fine-tuning jobs with random replies of the right
  form, rules on tokens with models of a few thousand weights. Two runs, one undisturbed and one stopped after every
  stage, must agree.
- The rule's functions are also called with the dialogues of that run: they must be pure, and an agent may learn only
  its own replies.
- A key of the rule that nothing reads is a fault. Reads are seen by settings that record them, also under the other
  choices of its keys.
"""

import copy
import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args, get_origin

import torch

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.keys import keys_of
from nip_ray.config.load import config_to_yaml, plain
from nip_ray.config.rules import check
from nip_ray.config.text_rules import groups
from nip_ray.errors import UserError
from nip_ray.learning.token_losses import AgentTurns, clipped_surrogate, loss_of
from nip_ray.settings.policy_gradient import RatioClipSettings, TokenTrainingSettings
from nip_ray.settings.text_training import TextTrainingSettings
from nip_ray.storage.folder import RunFolder
from nip_ray.text.dialogues.runner import Node, leaves
from nip_ray.text.parts import Prepared, load_state, prepare, save_state
from nip_ray.text.training.credit import advantages_of
from nip_ray.text.training.expert_iteration import LearningAgent, Preferences
from nip_ray.text.training.rules import TEXT_ALGORITHMS, TextRule, fine_tuning_set, read_played
from nip_ray.text.training.trainer import begin, new_state

_ITEMS = 8
_PLAYED = ("name", "group_size", "num_responses")  # keys that the run itself reads
_TASK: dict[str, Any] = {
    "name": "conformance",
    "seed": 1,
    "protocol": {"name": "nip", "max_rounds": 3},
    "scenario": {"name": "state_tracking", "length": 4, "num_train": 60, "num_test": 2},
}
_MODELS: Mapping[bool, dict[str, Any]] = {
    False: {
        "agents": {"_default": {"provider": "nobody", "model": "nobody"}},
        "providers": {"nobody": {"name": "dummy"}},
    },
    True: {
        "agents": {"_default": {"model": "words", "max_tokens": 4, "max_invalid_replies": 1}},
        "providers": {"local": {"name": "local", "method": "full", "word_model": {"hidden_size": 16, "num_layers": 1}}},
    },
}
"""By whether the rule is on tokens."""


def check_text_algorithm(settings: Any) -> None:
    """Raise one UserError that lists the faults of the registered rule with these settings, if any.

    Takes some seconds. The rule's own errors, and refusals of its config, pass through.
    """
    if isinstance(settings, type) or not hasattr(settings, "name"):
        raise UserError(
            f"check_text_algorithm: got {reprlib.repr(settings)}, expected settings of a rule, such as MySettings()"
        )
    rule = TEXT_ALGORITHMS.get(settings.name)
    if rule is None or rule.settings is not type(settings):
        raise UserError(f"algorithm {settings.name!r}: is not registered; call nip_ray.plugins.register_text_algorithm")
    on_tokens, config = rule.advantages is not None, _config(settings, rule.advantages is not None)
    prepared, played = prepare(config), []
    with TemporaryDirectory() as made:
        whole, stopped = Path(made) / "whole", Path(made) / "stopped"
        if not on_tokens:
            _run(config, prepared, whole, stop=False)
            played = read_played(rule, whole, {item.id: item for item in prepared.items["train"]}, 0)
        faults = [*(_token_faults(rule, settings) if on_tokens else _job_faults(rule, settings, prepared, played))]
        faults += _unread(rule, settings, prepared, played)
        if not faults:  # further faults would also show here, less clearly
            if on_tokens:
                _run(config, prepared, whole, stop=False)
            _run(config, prepared, stopped, stop=True)
            faults = list(_run_faults(config, rule, prepared, whole, stopped))
    if faults:
        raise UserError(f"algorithm {settings.name!r}: " + "; ".join(dict.fromkeys(faults)))


def _config(settings: Any, on_tokens: bool) -> TextExperimentConfig:
    """A small experiment with these settings, apart from the amount of play and the warm-up."""
    small: dict[str, Any] = {"num_test_items": 2, "num_test_repeats": 1, "format_warmup": 0}
    if on_tokens:
        rollouts = _ITEMS * settings.group_size
        small |= {
            "warmup_steps": 20,
            "warmup_batch_size": 32,
            "warmup_learning_rate": 1e-2,
            "warmup_agents": None,
            "evaluate_every": 0,
        }
        small |= {
            "rollouts_per_iteration": rollouts,
            "checkpoint_every": 1,
            "keep_checkpoints": None,
            "curriculum": [],
            "agents": {},
        }
    else:
        small |= {"rollouts_per_iteration": _ITEMS, "test_scheme": "last", "fine_tuning": {"min_examples": 1}}
    models = _MODELS[on_tokens]
    data = {**_TASK, "iterations": 2 if on_tokens else 3, "providers": models["providers"]}
    data |= {"scenario": {**_TASK["scenario"], "agents": models["agents"]}, "algorithm": {**plain(settings), **small}}
    config = TextExperimentConfig.model_validate(data)
    check(config)
    return config


def _run(config: TextExperimentConfig, prepared: Prepared, path: Path, stop: bool) -> None:
    """All stages. stop: each in a new trainer, as in another process."""
    state = new_state(config)
    with RunFolder.create(path, config_to_yaml(config)) as folder:
        save_state(folder, state)
        while not state.over:
            trainer = begin(config, folder, prepared, state)
            try:
                trainer.run_stage()
                while not (stop or trainer.state.over):
                    trainer.run_stage()
            finally:
                trainer.close()
            state = load_state(folder) if stop else trainer.state


def _run_faults(
    config: TextExperimentConfig, rule: TextRule, prepared: Prepared, whole: Path, stopped: Path
) -> Iterator[str]:
    """Metrics are finite, some agent learns, and stopping changes nothing."""
    found: list[list[dict[str, Any]]] = []
    for path in (whole, stopped):
        with RunFolder.open(path) as folder:  # without what depends on the clock, or on names of jobs
            kept = [
                {name: row[name] for name in row if not name.startswith(("time/", "cost/"))} for row in folder.metrics()
            ]
        found.append(kept)
    rows, others = found
    figures = [(name, value) for row in rows for name, value in row.items()]
    for name, value in figures:
        if not isinstance(value, int | float) or not math.isfinite(value):
            yield f"{name} is {value!r}, expected a finite number"
    learned = "/grad_norm" if rule.advantages is not None else "/examples"
    if not any(value for name, value in figures if name.startswith("learn/") and name.endswith(learned)):
        yield f"no agent learned anything in {config.iterations} iterations"
    if rows != others or _learned(config, rule, prepared, whole) != _learned(config, rule, prepared, stopped):
        pairs = ((name, one[name], other.get(name)) for one, other in zip(rows, others, strict=True) for name in one)
        yield (
            "a run that is stopped and resumed has other metrics"
            f" ({next((name for name, a, b in pairs if a != b), 'the rest')}); use no state but the agent's and the"
            " memory of advantages, and draw from agent.random()"
        )


def _learned(config: TextExperimentConfig, rule: TextRule, prepared: Prepared, path: Path) -> list[Any]:
    """The lines that were learned from, or, on tokens, the weights."""
    if rule.advantages is not None:
        return [file.read_bytes() for file in sorted(path.glob("local/models/*/model.safetensors"))]
    items = {item.id: item for item in prepared.items["train"]}
    return [
        fine_tuning_set(config, prepared.scenario, path, items, iteration, agents).lines
        for iteration in range(config.iterations)
        for agents in groups(config).values()
    ]


def _job_faults(rule: TextRule, settings: Any, prepared: Prepared, played: Sequence[Any]) -> Iterator[str]:
    """For a rule with fine-tuning jobs: an agent's training replies are usable replies of its own."""
    dialogues = [
        dialogue
        for one in played
        for dialogue in ([leaf.dialogue for leaf in leaves(one)] if isinstance(one, Node) else [one])
    ]
    turns, found = [turn for dialogue in dialogues for taken in dialogue.rounds for turn in taken], 0
    protocol = prepared.scenario.protocol
    for name in protocol.agents:
        agent, before = LearningAgent(name, prepared.scenario, settings, 0, 1), copy.deepcopy(list(played))
        made, again = _taught(rule, played, agent), _taught(rule, played, agent)
        if made != again:
            yield f"{_way(rule)} returns something else when it is called again; draw from agent.random()"
        if list(played) != before:
            yield f"{_way(rule)} changes the dialogues that it is given"
        own = {turn.raw for turn in turns if turn.agent == name and not turn.invalid}
        own |= (
            {prepared.scenario.verdict_text(y) for y in range(len(protocol.verdicts))}
            if name in protocol.verifiers
            else set()
        )
        for chat, replies in made:
            if not own.issuperset(
                [*replies, *(message["content"] for message in chat if message["role"] == "assistant")]
            ):
                yield f"{name!r} learns a reply that it never gave; learn an agent's own turns (agent.example)"
            if not chat or chat[-1]["role"] == "assistant":
                yield (
                    f"{name!r} learns from a chat that is empty or ends in a reply; make it by scenario.fenced_chat or"
                    " training_chat"
                )
        found += len(made)
    if not found:
        yield f"{_way(rule)} finds nothing to learn from in {len(dialogues)} dialogues of random replies"


def _taught(rule: TextRule, played: Sequence[Any], agent: LearningAgent) -> list[tuple[Any, tuple[str, ...]]]:
    """(chat, replies) that one agent learns."""
    found = rule.learned(played, agent)
    if isinstance(found, Preferences):
        return [(pair.chat, (pair.preferred, pair.rejected)) for pair in found.pairs]
    return [(one.chat, (one.completion,)) for one in found]


def _way(rule: TextRule) -> str:
    return "examples" if rule.examples is not None else "pairs" if rule.pairs is not None else "advantages"


def _token_faults(rule: TextRule, settings: Any) -> Iterator[str]:
    """For a rule on tokens: on random numbers, on groups of one and of equal returns."""
    assert rule.advantages is not None
    random = torch.Generator().manual_seed(0)
    return_N, group_N = torch.randn(12, generator=random), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3])
    memory: dict[str, float] = {}
    for number, paid_N in enumerate((return_N, torch.where(group_N == 1, 0.1, return_N), torch.zeros(12))):
        turns, before = AgentTurns("verifier", paid_N, group_N, torch.arange(12)), dict(memory)
        found, after = advantages_of(rule.advantages, turns, memory, settings)
        again, after_again = advantages_of(
            rule.advantages, replace(turns, return_N=paid_N.clone()), dict(before), settings
        )
        if not torch.equal(found.advantage_N, again.advantage_N) or after != after_again or memory != before:
            yield "advantages depends on more than its arguments, or changes them; return the new memory"
        if not number and not found.advantage_N.any():
            yield "advantages gives every turn 0"
        memory = dict(after)
    random.manual_seed(1)
    old_NT = -torch.rand(4, 3, generator=random)
    old_NT[0, 0] = -60.0  # a token that has become likely, by far
    mask_NT = torch.tensor([[1.0, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
    gradients = []
    for sign in (1.0, -1.0):
        log_prob_NT = (-torch.rand(4, 3, generator=torch.Generator().manual_seed(2)) * mask_NT).requires_grad_()
        advantage_N = sign * torch.tensor([1.0, -2.0, 0.5, 1.5])
        loss_NT, figures = loss_of(rule.loss, log_prob_NT, old_NT * mask_NT, advantage_N, mask_NT, settings)
        if not all(value_NT.isfinite().all() for value_NT in (loss_NT, *figures.values())):
            yield "loss is not finite where a token's probability has changed by far; clamp the ratio"
            return
        gradients.append(torch.autograd.grad((loss_NT * mask_NT).sum(), log_prob_NT, allow_unused=True)[0])
    if any(gradient is None for gradient in gradients) or torch.equal(*gradients):
        yield "loss has no gradient with respect to log_prob_NT that depends on the advantages"


def _unread(rule: TextRule, settings: Any, prepared: Prepared, played: Sequence[Any]) -> Iterator[str]:
    """Keys of the rule that nothing reads under any choice of one of them."""
    clip, keys = [RatioClipSettings] if rule.loss is clipped_surrogate else [], keys_of(type(settings))
    common = {name for base in (TextTrainingSettings, TokenTrainingSettings, *clip) for name in keys_of(base)}
    own, seen = [name for name in keys if name not in common and name not in _PLAYED], set[str]()
    variants = [settings]
    for name in own:
        annotation = keys[name].annotation
        choices = (
            get_args(annotation) if get_origin(annotation) is Literal else (True, False) if annotation is bool else ()
        )
        variants += [replace(settings, **{name: choice}) for choice in choices if choice != getattr(settings, name)]
    for chosen in variants:
        if any(chosen.faults()):
            continue
        noting = _noting(chosen, seen)
        if rule.advantages is not None:
            list(_token_faults(rule, noting))
            continue
        for name in prepared.scenario.protocol.agents:
            _taught(rule, played, LearningAgent(name, prepared.scenario, noting, 0, 1))
        rule.told(played, prepared.scenario.protocol, noting)
    yield from (
        f"{name}: nothing reads this key; use it in {_way(rule)} or leave it out" for name in own if name not in seen
    )


def _noting(settings: Any, seen: set[str]) -> Any:
    """The same settings, recording which names are read."""

    def get(self: Any, name: str) -> Any:
        seen.add(name)
        return object.__getattribute__(self, name)

    made = object.__new__(type(type(settings).__name__, (type(settings),), {"__getattribute__": get}))
    for name in keys_of(type(settings)):
        object.__setattr__(made, name, getattr(settings, name))
    return made
