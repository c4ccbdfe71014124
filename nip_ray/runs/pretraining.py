"""Pretraining: agents learn the labels alone, each under a protocol where it decides at once, before the experiment.

Decisions that matter here:
- an agent starts with the same weights and observation statistics as in the experiment, and only its body is returned
  (with `include_heads` also the decision head, if it decides in the experiment too);
- learning-rate factors are ignored: a body that is pretrained and then frozen has factor 0 in the experiment;
- results are cached by content: the key is a hash of all inputs of training, including initial weights and
  observations, so that neither a moved data file nor a changed one gives the wrong body. A cache file is written in one
  step and verified before it is read; a damaged one is trained again.
Source: the pretraining of Hammond and Adam-Day's library, with bodies that do learn.
"""

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.players import agent_settings
from nip_ray.config.plugins import import_plugins
from nip_ray.errors import TrainingError, UserError
from nip_ray.evaluation.intervals import proportion
from nip_ray.learning.groups import FlatOptimizer, ParameterGroup, in_minibatches
from nip_ray.learning.policy import accuracy, decision_loss
from nip_ray.learning.supervised import fit
from nip_ray.play.rollout import Dialogue
from nip_ray.play.scenario import Scenario
from nip_ray.scenarios.registry import build_agents, played_scenario
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.solo import PretrainingSettings, SoloSettings
from nip_ray.storage.files import write_atomically
from nip_ray.version import __version__

FORMAT = "nip_ray.pretrained"
VERSION = 1
_BATCH = 512  # instances at once without learning

Report = Callable[[str, int, dict[str, float]], None]


@dataclass(frozen=True)
class Pretrained:
    """The result of pretraining one agent.

    weights: entries of the state of its network in the experiment. figures: plain JSON values: `loss` and `accuracy` by
    epoch, `held_out` accuracy with its interval, the cache's `key`, and whether it was `cached`. notes: for the user.
    """

    weights: dict[str, Tensor]
    figures: dict[str, Any]
    notes: tuple[str, ...]


def pretrain(config: ExperimentConfig, cache: Path, report: Report | None = None) -> dict[str, Pretrained]:
    """Train the agents in `config.pretraining`, or load them from the cache folder `cache`.

    report: called with (agent, epochs done, {"loss", "accuracy"}) after each trained epoch. Raises UserError for an
    agent that has nothing to pretrain or a folder that cannot be written, TrainingError for a non-finite loss.
    """
    import_plugins(config.plugins)
    real = played_scenario(config.protocol, config.scenario, config.algorithm)
    fresh = build_agents(real, config.scenario, config.seed)
    made = {}
    for agent in config.pretraining.agents:
        pupil = _pupil(config, agent, fresh)
        found, figures, notes = _learned(config, pupil, cache, report or (lambda *_: None))
        with_head = config.pretraining.include_heads and agent in real.protocol.deciders
        made[agent] = Pretrained({**found["body"], **(found["head"] if with_head else {})}, figures, notes)
    return made


@dataclass(frozen=True)
class _Pupil:
    """An agent alone, in one round. body, head: names of its network's state entries that decisions depend on."""

    agent: str
    round: int
    network: nn.Module
    scenario: Scenario
    body: tuple[str, ...]
    head: tuple[str, ...]

    def decides(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        names = {*self.body, *self.head}
        return [parameter for name, parameter in self.network.named_parameters() if name in names]

    def silent_turns(self, id_N: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Its observations of some instances in its round without any messages, and their labels (N,)."""
        scenario = self.scenario
        id_N = id_N.to(scenario.label_I.device)
        protocol = scenario.protocol
        shape = (len(id_N), protocol.max_rounds, 1, len(protocol.channels), scenario.message_size)
        silence = torch.full(shape, -1, device=id_N.device)
        said = Dialogue(silence, silence if scenario.linear_symbols else None)
        round_N = torch.full_like(id_N, min(self.round, protocol.max_rounds - 1))
        return scenario.observe(self.agent, id_N, said, round_N, torch.zeros_like(id_N)), scenario.label_I[id_N]


def _pupil(config: ExperimentConfig, agent: str, fresh: dict[str, nn.Module]) -> _Pupil:
    """The agent in its own scenario, with its initial weights of the experiment."""
    alone = played_scenario(config.protocol, config.scenario, SoloSettings(agent=agent)).to(_device(config))
    network = alone.build_agent(agent, stable_seed(config.seed, "agent", agent))
    first, own = fresh[agent].state_dict(), network.state_dict()
    kept = {name: value for name, value in first.items() if name in own and value.shape == own[name].shape}
    network.load_state_dict({**own, **kept})
    network.to(_device(config)).eval()  # no noise yet, and running statistics do not change
    body = network.body()  # type: ignore[operator]
    if body is None:
        raise UserError(f"pretraining.agents: {agent!r} has no body that could be trained; leave it out")
    prefix = next(name for name, module in network.named_modules() if module is body)
    inside = tuple(name for name in own if name.startswith(f"{prefix}."))
    pupil = _Pupil(agent, config.pretraining.in_round - 1, network, alone, inside, ())
    parameters = dict(network.named_parameters())
    obs, y_N = pupil.silent_turns(alone.ids("train")[:2])
    loss = decision_loss(network(obs, True, False)[0], y_N)
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    head = tuple(
        name for name, gradient in zip(parameters, found, strict=True) if gradient is not None and name not in inside
    )
    return replace(pupil, head=head)


def _learned(
    config: ExperimentConfig, pupil: _Pupil, cache: Path, report: Report
) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """(weights by part, figures, notes): from the cache, or trained and then stored there."""
    key = _key(config, pupil)
    path = cache / f"{key}.pt"
    notes: tuple[str, ...] = ()
    try:
        kept = _read(path, key)
    except _Damaged as reason:
        kept, notes = None, (f"{path} is damaged ({reason}); {pupil.agent} is pretrained again",)
    cached = kept is not None
    if kept is None:
        kept = _trained(pupil, config.pretraining, config.seed, report)
        _write(path, key, kept)
    return kept["weights"], {**kept["figures"], "cached": cached, "key": key}, notes


def _trained(pupil: _Pupil, settings: PretrainingSettings, seed: int, report: Report) -> dict[str, Any]:
    """Train the network of `pupil`; return its weights by part, on the CPU, and the metrics."""
    curves: dict[str, list[float]] = {"loss": [], "accuracy": []}
    for epoch, found in enumerate(_epochs(pupil, settings, seed)):
        if not math.isfinite(found["loss"]):
            raise TrainingError(
                f"pretraining {pupil.agent!r}: the loss of epoch {epoch + 1} is not finite; lower pretraining.lr"
            )
        for name, value in found.items():
            curves[name].append(value)
        report(pupil.agent, epoch + 1, found)
    state = pupil.network.state_dict()
    parts = {"body": pupil.body, "head": pupil.head}
    weights = {part: {name: state[name].detach().cpu().clone() for name in names} for part, names in parts.items()}
    pupil.network.eval()
    correct, ids = 0.0, pupil.scenario.ids("test")
    with torch.no_grad():
        for id_N in ids.split(_BATCH):
            obs, y_N = pupil.silent_turns(id_N)
            correct += float(accuracy(pupil.network(obs, True, False)[0], y_N)) * len(y_N)
    return {"weights": weights, "figures": {**curves, "held_out": proportion(round(correct), len(ids)).record()}}


def _epochs(pupil: _Pupil, settings: PretrainingSettings, seed: int) -> Iterator[dict[str, float]]:
    """Train, epoch by epoch; yields the means of loss and accuracy over each epoch's instances."""
    optimizer = FlatOptimizer([ParameterGroup("actor", "decides", pupil.decides(), 1.0)], settings.lr)
    ids = pupil.scenario.ids("train").cpu()
    pupil.network.train()
    for epoch in range(settings.num_epochs):
        if settings.anneal_lr:
            optimizer.set_learning_rate(settings.lr * (1 - epoch / settings.num_epochs))
        sums = torch.zeros(2, dtype=torch.float64)

        def loss(index_N: Tensor, sums: Tensor = sums) -> Tensor:
            obs, y_N = pupil.silent_turns(ids[index_N])
            policy, _ = pupil.network(obs, True, False)
            found = decision_loss(policy, y_N)
            sums += torch.stack([found.detach(), accuracy(policy, y_N)]).cpu().double() * len(y_N)
            return found

        order = torch.randperm(len(ids), generator=generator(seed, "pretraining", pupil.agent, epoch))
        device = pupil.scenario.label_I.device
        # noise and dropout use torch's global generators: seeded here, and then restored
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(stable_seed(seed, "pretraining noise", pupil.agent, epoch))
            fit(loss, optimizer, in_minibatches(order, settings.minibatch_size), settings.max_grad_norm)
        mean_loss, mean_accuracy = (sums / len(ids)).tolist()
        yield {"loss": mean_loss, "accuracy": mean_accuracy}


class _Damaged(Exception):
    """Why a file of the cache cannot be used."""


def _key(config: ExperimentConfig, pupil: _Pupil) -> str:
    """A hash of everything that the result depends on."""
    own = asdict(agent_settings(config, pupil.agent))
    protocol = pupil.scenario.protocol
    facts = {
        "version": [FORMAT, VERSION, __version__],
        "device": pupil.scenario.label_I.device.type,
        "seed": config.seed,
        "agent": [pupil.agent, {name: value for name, value in own.items() if not name.endswith("lr_factor")}],
        # the origin of data does not matter; their content is hashed below
        "scenario": {name: value for name, value in asdict(config.scenario).items() if name not in ("agents", "data")},
        "protocol": [
            protocol.max_rounds,
            protocol.channels,
            protocol.sees,
            protocol.turns,
            *([protocol.roles] if protocol.roles else []),
        ],
        "pretraining": {
            n: v for n, v in asdict(config.pretraining).items() if n not in ("agents", "cache", "include_heads")
        },
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    _absorb(digest, pupil.network.state_dict())
    for split in ("train", "test"):
        for id_N in pupil.scenario.ids(split).split(_BATCH):
            obs, y_N = pupil.silent_turns(id_N)
            _absorb(digest, {**obs, "y": y_N})
    return digest.hexdigest()[:32]


def _absorb(digest: Any, tensors: dict[str, Tensor]) -> None:
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.numpy().tobytes())


def _write(path: Path, key: str, content: dict[str, Any]) -> None:
    """Write one line with the key and a checksum, then `content` by `torch.save`."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    header = {"format": FORMAT, "version": VERSION, "key": key, "sha256": hashlib.sha256(payload).hexdigest()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"pretraining.cache: {path.parent} cannot be made ({error.strerror}); name another folder"
        ) from None
    write_atomically(path, json.dumps(header).encode() + b"\n" + payload)


def _read(path: Path, key: str) -> dict[str, Any] | None:
    """The content that `_write` wrote under `key`, None if missing. Raises _Damaged for anything else."""
    try:
        line, _, payload = path.read_bytes().partition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _Damaged(error.strerror) from None
    try:
        header = json.loads(line)
        sound = (header["format"], header["version"], header["key"]) == (FORMAT, VERSION, key)
        stated = header["sha256"]
    except (ValueError, LookupError, TypeError):
        raise _Damaged("its first line is not ours") from None
    if not sound or hashlib.sha256(payload).hexdigest() != stated:
        raise _Damaged("it does not match its checksum" if sound else "it belongs to something else")
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen kinds
        raise _Damaged(f"it holds something else than tensors and plain values: {type(error).__name__}") from None


def _device(config: ExperimentConfig) -> str:
    """The device on which the main process learns."""
    return "cuda" if config.learners.num_gpus_per_learner > 0 and torch.cuda.is_available() else "cpu"
