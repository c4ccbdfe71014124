"""The zero-knowledge wrapper as a table, and its step against a slow one in plain Python: two conversations that end
apart."""

from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.protocols import ACCEPT, Payment, Protocol, ProtocolParams, build, check, start, step, wrap
from tests.builders import PROTOCOLS, protocol_id

NAMES = ("nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier", "multi_channel_test")
ENDS = ("_standard", "_adversarial", "_simulator")


def pair(name: str, **params: Any) -> tuple[Protocol, Protocol]:
    """A protocol and its wrapped twin; parameters of zero knowledge go to the twin alone."""
    extra = {k: v for k, v in params.items() if k.startswith(("simulator_", "aux_", "zero_"))}
    return build(name, **{k: v for k, v in params.items() if k not in extra}), build(
        name, **params, zero_knowledge=True
    )


@pytest.mark.parametrize(
    "given",
    [one for one in PROTOCOLS if not (build(one[0], **one[1]).roles or one[0] == "judge_panel")],
    ids=protocol_id,
)
def test_every_protocol_conforms_and_keeps_its_turns(given: tuple[str, dict[str, Any]]) -> None:
    base, protocol = pair(given[0], **given[1])
    check(protocol)
    assert (protocol.max_rounds, protocol.min_rounds, protocol.payment) == (
        base.max_rounds,
        base.min_rounds,
        base.payment,
    )
    assert protocol.agents == (*base.agents, "adversarial_verifier", "simulator")
    assert protocol.provers == base.provers
    assert protocol.deciders == ("verifier", "adversarial_verifier", "simulator")
    assert build(given[0], **given[1], zero_knowledge=True, zero_knowledge_legacy=True).deciders == (
        "verifier",
        "adversarial_verifier",
    )
    assert len(protocol.turns) == len(base.turns)
    twins = {"adversarial_verifier": "verifier", "simulator": "verifier"}
    speaks_in = {"verifier": (0,), "adversarial_verifier": (1,), "simulator": (2,)}
    for round, seed in product(range(base.max_rounds), (0, 1, 65535)):
        at = torch.tensor([round]), torch.tensor([seed])
        expected = base.active(*at)[0]
        found = protocol.active(*at)[0].unflatten(1, (3, len(base.channels)))
        for a, agent in enumerate(protocol.agents):
            turn_C = expected[base.agents.index(twins.get(agent, agent))]
            for copy in range(3):
                assert torch.equal(found[a, copy], turn_C & (copy in speaks_in.get(agent, (0, 1)))), (agent, copy)


@pytest.mark.parametrize("name", NAMES)
def test_who_sees_what(name: str) -> None:
    base, protocol = pair(name)
    ends = {"verifier": ENDS[:1], "adversarial_verifier": ENDS[1:2], "simulator": ENDS[2:]}
    for agent in protocol.agents:
        own = base.sees[agent if agent in base.agents else "verifier"]
        assert protocol.sees[agent] == tuple(channel + end for end in ends.get(agent, ENDS[:2]) for channel in own)


@pytest.mark.parametrize("name", ["message_game", "matrix_game", "kuhn_poker"])
def test_games_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"zero_knowledge.*{name}"):
        build(name, zero_knowledge=True)


@pytest.mark.parametrize(
    "params",
    [{"simulator_reward_coefficient": 2.0}, {"aux_prover_reward_coefficient": 0.0}, {"zero_knowledge_legacy": True}],
    ids=str,
)
def test_parameters_without_zero_knowledge_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"protocol.{next(iter(params))}.*zero_knowledge"):
        build("nip", **params)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e39])
@pytest.mark.parametrize("key", ["simulator_reward_coefficient", "aux_prover_reward_coefficient"])
def test_amounts_that_make_no_sense_are_refused(key: str, value: float) -> None:
    with pytest.raises(UserError, match="must be a finite number >= 0"):
        build("nip", zero_knowledge=True, **{key: value})


def test_what_cannot_be_wrapped() -> None:
    base = build("nip")
    with pytest.raises(UserError, match="has no verifier"):
        wrap(replace(base, verifier=None), ProtocolParams())
    with pytest.raises(UserError, match="has it already"):
        wrap(build("nip", zero_knowledge=True), ProtocolParams())
    renamed = replace(
        base,
        agents=("simulator", "verifier"),
        sees=dict.fromkeys(("simulator", "verifier"), ("main",)),
        turns=(((("verifier", "main"),), (("simulator", "main"),)),),
        payment=Payment.from_params(ProtocolParams(), {"simulator": ACCEPT}),
    )
    check(renamed)
    with pytest.raises(UserError, match=r"agents called \['simulator'\]"):
        wrap(renamed, ProtocolParams())


def faulty(protocol: Protocol, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        check(replace(protocol, **changes))
    return str(caught.value)


def test_conformance_of_wrapped_tables() -> None:
    protocol = build("debate", zero_knowledge=True)
    extra = protocol.zero_knowledge
    assert "three different agents" in faulty(protocol, zero_knowledge=replace(extra, adversary="verifier"))
    assert "three different agents" in faulty(protocol, zero_knowledge=replace(extra, simulator="nobody"))
    for silent, left in (("simulator", ()), ("adversarial_verifier", ("prover0_channel_adversarial",))):
        turns = tuple(
            tuple(tuple(t for t in turns if t[0] != silent or t[1] in left) for turns in table)
            for table in protocol.turns
        )
        said = faulty(protocol, turns=turns)
        assert f"{silent!r} must " in said
        assert ("as many channels" in said) == bool(left)
    assert "must map a prover" in faulty(protocol, payment=replace(protocol.payment, goals={"simulator": ACCEPT}))


@dataclass
class Copy:
    """One copy in plain Python: the base protocol's own step is not used."""

    base: Protocol
    params: ProtocolParams
    y: int
    seed: int
    round: int = 0
    verdict: int | None = None
    adversary_done: bool = False
    over: bool = False
    exhausted: bool = False

    def asks(self) -> bool:
        table = self.base.turns[self.seed % len(self.base.turns)]
        return any(agent == "verifier" for agent, _ in table[self.round % len(table)])

    def play(self, verifier: int, adversary: int, similarity: float) -> list[float]:
        """Rewards of a round in the order of the wrapped agents."""
        pay, base = self.params, self.base
        if self.over:
            return [0.0] * (len(base.agents) + 2)
        if pay.force_guess is not None:
            verifier = adversary = {"zero": 0, "one": 1, "y": self.y}[pay.force_guess]
        decides, last = self.asks() and self.round >= base.min_rounds - 1, self.round == base.max_rounds - 1
        own, verdict_now = 0.0, None
        if self.verdict is None:
            if decides and verifier != 2:
                self.verdict = verdict_now = verifier
                own = pay.verifier_reward if verifier == self.y else pay.verifier_incorrect_penalty
            elif last:
                self.exhausted, own = True, pay.verifier_terminated_penalty
            elif self.asks():
                own = pay.verifier_no_guess_reward
        if decides and adversary != 2:
            self.adversary_done = True
        self.over = last or (self.verdict is not None and self.adversary_done)
        self.round += 1
        alike = pay.simulator_reward_coefficient * similarity
        rewards = []
        for agent in base.agents:
            if agent == "verifier":
                rewards.append(own)
                continue
            goal = base.payment.goals.get(agent)
            earned = pay.prover_reward if verdict_now is not None and goal == verdict_now else 0.0
            rewards.append((own if pay.shared_reward else earned) + pay.aux_prover_reward_coefficient * alike)
        return [*rewards, -alike, alike]

    def done(self) -> list[bool]:
        """Per agent, as `ProtocolState.agent_done_BA`."""
        verdict = self.over and self.verdict is not None
        return [self.verdict is not None if a == "verifier" else verdict for a in self.base.agents] + [
            self.adversary_done,
            verdict,
        ]


AMOUNTS: dict[str, Any] = dict(
    prover_reward=3.0,
    verifier_reward=5.0,
    verifier_incorrect_penalty=-7.0,
    verifier_terminated_penalty=-11.0,
    verifier_no_guess_reward=0.25,
    simulator_reward_coefficient=1.5,
    aux_prover_reward_coefficient=0.5,
)
GAMES: list[tuple[str, dict[str, Any]]] = [
    ("nip", {}),
    ("nip", dict(min_rounds=3, max_rounds=7, shared_reward=True, prover_reward=1.0)),
    ("debate", dict(sequential=True)),
    ("mnip", dict(verifier_first=False, max_rounds=4)),
    ("merlin_arthur", {}),
    ("solo_verifier", dict(prover_reward=1.0)),
    ("multi_channel_test", dict(prover_reward=1.0)),
    ("nip", dict(force_guess="y", min_rounds=3)),
    ("debate", dict(force_guess="zero")),
]


@pytest.mark.parametrize("game", GAMES, ids=str)
def test_steps_equal_the_slow_ones(game: tuple[str, dict[str, Any]]) -> None:
    params = {**AMOUNTS, **game[1]}
    base, protocol = pair(game[0], **params)
    random, batch = Random(str(game)), 60
    copies = [Copy(base, ProtocolParams(**params), random.randrange(2), random.randrange(2**16)) for _ in range(batch)]
    patience = [(random.choice([0.0, 0.6, 1.0]), random.choice([0.0, 0.6, 1.0])) for _ in copies]
    state = start(protocol, torch.tensor([c.y for c in copies]), torch.tensor([c.seed for c in copies]))
    for _ in range(base.max_rounds + 2):
        said = [[2 if random.random() < waits else random.randrange(2) for waits in both] for both in patience]
        alike = [random.choice([0.0, random.uniform(-2, 2)]) for _ in copies]
        decisions = [[random.randrange(3) for _ in protocol.agents] for _ in copies]  # the rest must not be read
        for row, (verifier, adversary) in zip(decisions, said, strict=True):
            row[base.agents.index("verifier")], row[-2] = verifier, adversary
        before = [c.verdict for c in copies]
        state, outcome = step(protocol, state, torch.tensor(decisions), similarity_B=torch.tensor(alike))
        slow = [c.play(both[0], both[1], s) for c, both, s in zip(copies, said, alike, strict=True)]
        torch.testing.assert_close(outcome.reward_BA, torch.tensor(slow))
        verdict = [
            2 if c.verdict is None or then is not None else c.verdict for c, then in zip(copies, before, strict=True)
        ]
        assert outcome.decision_B.tolist() == verdict
        assert outcome.decided_B.tolist() == [v != 2 for v in verdict]
        assert state.done_B.tolist() == [c.over and not c.exhausted for c in copies]
        assert state.exhausted_B.tolist() == [c.exhausted for c in copies]
        assert state.ended_B.tolist() == [c.over for c in copies]
        assert state.agent_done_BA.tolist() == [c.done() for c in copies]
        assert state.round_B.tolist() == [c.round for c in copies]
    assert all(c.over for c in copies)
    if game[0] == "nip" and not game[1]:
        assert {(c.exhausted, c.adversary_done) for c in copies} == {
            (e, d) for e in (True, False) for d in (True, False)
        }
