"""Instances of a run: the content of each, and its evaluation results (`nip-ray evaluate RUN_DIR --instances FILE`)."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.errors import UserError
from nip_ray.evaluation.examine import Examination
from nip_ray.play.core import BatchedPlay
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol, from_settings
from nip_ray.storage.folder import RunFolder

# not content of an observation
_OF_PROTOCOL = ("round", "speaks", "may_decide", "told", "history", "latest", "answer_side")


def content_of(scenario: Scenario, ids: Tensor, agent: str) -> dict[str, Tensor]:
    """The content of every instance; or, if its scenario has none, its label and the first observation of `agent`."""
    if (content := scenario.instance_content(ids)) is not None:
        return content
    play = BatchedPlay(scenario)
    play.reset(ids, torch.zeros_like(ids))
    seen = play.observe(agent, torch.arange(len(ids)))
    return {**{key: value for key, value in seen.items() if key not in _OF_PROTOCOL}, "label": scenario.label_I[ids]}


def same_content(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return True if two runs have the same instances in the same order, as far as both record these."""
    return all(
        one[key].shape == other[key].shape and bool((one[key] == other[key]).all()) for key in one.keys() & other.keys()
    )


@torch.no_grad()
def instances_of_networks(examination: Examination, networks: Mapping[str, nn.Module]) -> Iterator[dict[str, Any]]:
    """A record of each instance, in greedy play and then in sampled play; docs/verbs/evaluate.md has its keys."""
    scenario = examination.scenario
    protocol, trained_B = scenario.protocol, examination.trained_with()
    groups = {name: label_I.tolist() for name, label_I in scenario.group_I().items()}
    for mode in ("greedy", "sampled"):
        rollout = examination.rollout(networks, greedy=mode == "greedy")
        return_BA = rollout.reward_BRA.double().sum(1).tolist()
        endings = zip(
            rollout.id_B.tolist(),
            rollout.y_B.tolist(),
            rollout.verdict_B.tolist(),
            rollout.length_B.tolist(),
            strict=True,
        )
        for place, (id, y, verdict, rounds) in enumerate(endings):
            yield {
                "id": id,
                "mode": mode,
                **_judged(protocol, y, verdict),
                "rounds": rounds,
                "returns": dict(zip(protocol.agents, return_BA[place], strict=True)),
                **{name: values[id] for name, values in groups.items()},
                **({} if trained_B is None else {"trained_with": bool(trained_B[place])}),
            }


def instances_of_text(folder: RunFolder, config: TextExperimentConfig) -> Iterator[dict[str, Any]]:
    """The same for the dialogues of the last test of language models, sampled ones; items tested again have several."""
    from nip_ray.scenarios.language import language_kind
    from nip_ray.text.items import stored_items
    from nip_ray.text.training.metrics import last_dialogues

    kind, protocol = language_kind(config.scenario), from_settings(config.protocol)
    items = {item.id: item for item in (stored_items(folder.path, kind) or {}).get("test", [])}
    found = last_dialogues(folder.path, config.iterations, items)
    if found is None:
        raise UserError(f"--instances: {folder.path} holds no test dialogues; leave it out")
    for dialogue in found[1]:
        yield {
            "id": dialogue.item.id,
            "mode": "sampled",
            **_judged(protocol, dialogue.item.y, dialogue.verdict),
            "rounds": len(dialogue.rounds),
            "returns": {agent: dialogue.total(agent) for agent in protocol.agents},
            **{name: group(dialogue.item) for name, group in kind.groups.items()},
        }


def _judged(protocol: Protocol, y: int, verdict: int) -> dict[str, Any]:
    """Label and verdict in words, and whether they agree; {} in a game without a verifier."""
    if protocol.verifier is None:
        return {}
    told = "undecided" if verdict == protocol.undecided else protocol.verdicts[verdict]
    return {"label": protocol.verdicts[y], "verdict": told, "correct": verdict == y}
