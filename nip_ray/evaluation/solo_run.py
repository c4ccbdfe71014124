"""The score of a verifier trained alone, from its run folder: the other half of the baseline without a prover."""

from collections.abc import Mapping
from typing import Any

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.players import agent_settings
from nip_ray.errors import UserError
from nip_ray.settings.graph_isomorphism import GraphIsomorphismSettings
from nip_ray.storage.folder import CONFIG, RunFolder

_KEY = "evaluation.solo_run"


Score = tuple[int, int]
"""Pairs judged rightly, and pairs."""


def solo_run_score(config: ExperimentConfig) -> tuple[Score, Score | None] | None:
    """The score of `evaluation.solo_run` on the held-out pairs, and on those that are not training pairs (None if
    all are), greedy; None if no run is named.

    Raises UserError unless that is a finished run of a verifier alone, on the same data and with as many
    message-passing layers, that was evaluated on all held-out pairs.
    """
    from nip_ray.config.load import load_stored_config

    path = config.evaluation.solo_run
    if path is None:
        return None
    if not isinstance(config.scenario, GraphIsomorphismSettings):
        raise UserError(
            f"{_KEY}: the baseline that it is for is one of graph_isomorphism (got {config.scenario.name}), leave"
            " it out"
        )
    try:
        folder = RunFolder.open(path)
    except UserError as error:
        raise UserError(f"{_KEY}: {error}; name a finished run, or go without (--set {_KEY}=null)") from None
    with folder:
        other = load_stored_config(folder.path / CONFIG)
        if not isinstance(other, ExperimentConfig) or "solo" not in (
            other.algorithm.name,
            other.protocol.name.partition("_")[0],
        ):
            raise UserError(
                f"{_KEY}: {path}: its verifier does not play alone, name a run of algorithm solo or protocol"
                " solo_verifier"
            )
        if other.scenario.name != config.scenario.name or _seen(other) != _seen(config):
            raise UserError(
                f"{_KEY}: {path}: has other scenario.data or another num_gnn_layers of the verifier, take the same"
            )
        if not (folder.path / "evaluation.json").is_file():
            raise UserError(f"{_KEY}: {path}: has no evaluation.json, let it finish first")
        document = folder.read_json("evaluation.json")
    whole, unseen = (_score(part) for part in (document, document.get("unseen") or {}))
    if whole is None or other.evaluation.max_instances is not None:
        raise UserError(
            f"{_KEY}: {path}: was not evaluated on all held-out pairs, train it with evaluation.greedy and no"
            " max_instances"
        )
    return whole, unseen


def _score(document: Mapping[str, Any]) -> Score | None:
    record = document.get("greedy", {}).get("verifier/accuracy", {})
    return (round(record["estimate"] * record["n"]), record["n"]) if record.get("n") else None


def _seen(config: ExperimentConfig) -> tuple[Any, Any]:
    return getattr(config.scenario, "data", None), getattr(agent_settings(config, "verifier"), "num_gnn_layers", None)
