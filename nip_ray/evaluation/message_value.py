"""The value of the provers' messages: the accuracy lost when the verifier reads others.

Decisions that matter here:
- all play is greedy, on the same instances and episode seeds: losses are paired by instance;
- instances are shuffled first, since a split may be sorted by label, and a neighbour's messages would then be right;
- `silenced`: the verifier reads no messages. `shuffled`: in each round it reads the provers' messages of the same round
  about another instance, drawn at random from the batch, so that symbols keep their frequency and lose their meaning;
  without another instance with the turn, it reads none. `other_instance`: the provers observe another instance (each
  the next of a random cycle through all) throughout, and answer the verifier's questions about that one. With one
  instance neither exists;
- `without`: one of several provers is silenced, e.g. to measure what a judge gains from a critic;
- a verifier with worthless messages loses nothing by any of them; one that merely meets unfamiliar input loses by
  `silenced` and not by the others.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.evaluation.aggregates import paired_difference
from nip_ray.evaluation.attackers import silence
from nip_ray.evaluation.intervals import proportion
from nip_ray.learning.policy import Action
from nip_ray.play.core import BatchedPlay, Edit, Player, Turn
from nip_ray.play.panels import VERDICT, judged
from nip_ray.play.staged import BATCH, stage_all
from nip_ray.seeding import generator

WAYS = ("silenced", "shuffled", "other_instance")


def message_value(
    play: BatchedPlay,
    networks: Mapping[str, nn.Module],
    id_B: Tensor,
    seed_B: Tensor,
    right_B: Tensor,
    seed: int,
    who: str = VERDICT,
) -> dict[str, Any]:
    """{"heard": accuracy, way: {"accuracy", "lost"}} as records, for each of `WAYS`, and {"without": {prover: the
    same}} of several provers; {} without a verifier or a prover.

    right_B: (B,) bool, where the verifier is right with the messages (greedy play, same ids and episode seeds). who:
    the verdict, or a member of a panel.
    """
    protocol, count = play.protocol, len(id_B)
    if protocol.verifier is None or not protocol.provers:
        return {}
    order_B = torch.randperm(count, generator=generator(seed, "message value"))
    id_B, seed_B, right_B = (x_B[order_B.to(x_B.device)] for x_B in (id_B, seed_B, right_B))
    heard_B = right_B.cpu().numpy()
    batch = math.ceil(count / math.ceil(count / BATCH))  # of similar size, so that the last has other instances
    found: dict[str, Any] = {"heard": proportion(int(heard_B.sum()), count).record()}

    def changed(way: str, provers: Sequence[str]) -> dict[str, Any]:
        players = {agent: Player(network) for agent, network in networks.items()}
        for prover in provers:
            if way == "other_instance":
                # in random order, so that it is a random cycle
                players[prover] = Player(networks[prover], shown_B=id_B.roll(-1))
            else:
                edit = silence if way == "silenced" else _shuffling(generator(seed, "shuffled", prover))
                players[prover] = Player(networks[prover], edit=edit)
        rollout = stage_all(play, players, id_B, seed_B, batch).rollout
        changed_B = (judged(protocol, rollout)[who].verdict_B == rollout.y_B).cpu().numpy()
        accuracy = proportion(int(changed_B.sum()), len(changed_B))
        return {"accuracy": accuracy.record(), "lost": paired_difference(heard_B, changed_B).record()}

    found |= {way: changed(way, protocol.provers) for way in (WAYS if count > 1 else WAYS[:1])}
    if len(protocol.provers) > 1:
        found["without"] = {prover: changed("silenced", [prover]) for prover in protocol.provers}
    return found


def _shuffling(order: torch.Generator) -> Edit:
    """Replace an agent's message by its own on another instance: a permutation of the copies where it has a turn."""

    def shuffled(turn: Turn) -> Action:
        count = len(turn.copy_N)
        if count == 1:
            return silence(turn)
        # a random cycle: no copy keeps its own
        round_trip_N = torch.randperm(count, generator=order)
        source_N = torch.empty_like(round_trip_N)
        source_N[round_trip_N] = round_trip_N.roll(1)
        source_N = source_N.to(turn.copy_N.device)
        return {name: part if name == "decision" else part[source_N] for name, part in turn.action.items()}

    return shuffled
