"""The batched step against a slow one: plain Python, one copy at a time, every rule spelled out per protocol, no
tables, no tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.protocols import Protocol, ProtocolState, StepOutcome, build, start, step
from nip_ray.settings.protocol import PayoffSettings

ORDERED = ("nip", "debate", "mnip", "consultancy")
FIXED_LIMITS = {"adp": (2, 1), "merlin_arthur": (2, 1), "solo_verifier": (1, 1), "multi_channel_test": (8, 2)}
NAMES = (*ORDERED, *FIXED_LIMITS)
AMOUNTS = (
    "prover_reward",
    "verifier_reward",
    "verifier_incorrect_penalty",
    "verifier_terminated_penalty",
    "verifier_no_guess_reward",
)
DEFAULT_AMOUNTS = (1.0, 1.0, -1.0, -1.0, 0.0)
ORDERS = [(name, first, False, True) for name in ("nip", "consultancy") for first in (True, False)]
ORDERS += [
    (n, v, s, p) for n in ("debate", "mnip") for v in (True, False) for s in (True, False) for p in (True, False)
]
SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)


@dataclass(frozen=True)
class Rules:
    """One protocol with its parameters, as plain values."""

    name: str
    verifier_first: bool = True
    sequential: bool = False
    prover0_first: bool = True
    max_rounds: int = 8
    min_rounds: int = 1
    amounts: tuple[float, ...] = DEFAULT_AMOUNTS
    shared_reward: bool = False
    force_guess: str | None = None
    payoff: Mapping[str, PayoffSettings] = field(default_factory=dict)

    def agents(self) -> list[str]:
        if self.name in ("nip", "adp"):
            return ["prover", "verifier"]
        if self.name == "solo_verifier":
            return ["verifier"]
        if self.name == "multi_channel_test":
            return ["prover0", "prover1", "prover2", "verifier"]
        return ["prover0", "prover1", "verifier"]

    def channels(self) -> list[str]:
        if self.name in ("debate", "mnip"):
            return ["prover0_channel", "prover1_channel"]
        if self.name == "multi_channel_test":
            return ["main", "prover0_verifier", "prover_chat"]
        return ["main"]

    def sees(self, agent: str, channel: str) -> bool:
        if self.name == "mnip" and agent != "verifier":
            return channel == agent + "_channel"
        if channel == "prover0_verifier":
            return agent in ("prover0", "verifier")
        if channel == "prover_chat":
            return agent != "verifier"
        return True

    def speaks(self, agent: str, channel: str, round: int, seed: int) -> bool:
        if self.name == "nip":
            verifiers_move = round % 2 == (0 if self.verifier_first else 1)
            return verifiers_move == (agent == "verifier")
        if self.name == "consultancy":
            verifiers_move = round % 2 == (0 if self.verifier_first else 1)
            return agent == ("verifier" if verifiers_move else f"prover{seed % 2}")
        if self.name == "adp":
            return agent == ("prover" if round == 0 else "verifier")
        if self.name == "merlin_arthur":
            if round == 0:
                return agent == ("prover0" if seed % 2 == 0 else "prover1")
            return agent == "verifier"
        if self.name == "solo_verifier":
            return round == 0
        if self.name == "multi_channel_test":
            if channel == "main":
                speaker: str | None = ["prover1", "prover2", "verifier"][round % 3]
            elif channel == "prover0_verifier":
                speaker = [None, "prover0", "verifier"][round % 3]
            else:
                speaker = ["prover0", "prover1", "prover2"][round % 3]
            return agent == speaker
        return self.speaks_with_two_provers(agent, channel, round)

    def speaks_with_two_provers(self, agent: str, channel: str, round: int) -> bool:
        if agent != "verifier" and channel != agent + "_channel":
            return False
        if not self.sequential:
            verifiers_move = round % 2 == (0 if self.verifier_first else 1)
            return verifiers_move == (agent == "verifier")
        place = round % 3
        if agent == "verifier":
            return place == (0 if self.verifier_first else 2)
        goes_first = (agent == "prover0") == self.prover0_first
        place_of_first = 1 if self.verifier_first else 0
        return place == (place_of_first if goes_first else place_of_first + 1)

    def verifier_moves(self, round: int, seed: int) -> bool:
        return any(self.speaks("verifier", channel, round, seed) for channel in self.channels())

    def can_decide(self) -> bool:
        """Whether the limits leave the verifier a turn in which its decision counts, under even and odd seeds."""
        rounds = range(self.min_rounds - 1, self.max_rounds)
        return all(any(self.verifier_moves(round, seed) for round in rounds) for seed in (0, 1))

    def params(self) -> dict[str, Any]:
        """What to hand to `build`: only what the protocol has a use for."""
        made: dict[str, Any] = dict(zip(AMOUNTS, self.amounts, strict=True))
        made |= {"force_guess": self.force_guess, "payoff": self.payoff}
        if self.name != "solo_verifier":
            made["shared_reward"] = self.shared_reward
        if self.name in ("solo_verifier", "multi_channel_test") or self.shared_reward:
            del made["prover_reward"]
        if self.name in ORDERED:
            made |= {
                "verifier_first": self.verifier_first,
                "max_rounds": self.max_rounds,
                "min_rounds": self.min_rounds,
            }
        if self.name in ("debate", "mnip"):
            made |= {"sequential": self.sequential} | ({"prover0_first": self.prover0_first} if self.sequential else {})
        return made


@dataclass
class Copy:
    """One copy of a protocol."""

    rules: Rules
    y: int
    seed: int
    round: int = 0
    done: bool = False
    terminated: bool = False
    agents_done: bool = False  # the same for every agent: nobody is finished before the verifier has decided

    def play(self, decision: int) -> tuple[list[float], bool, bool, int]:
        """One round: (rewards in agent order, decided now, rounds ran out now, the decision that counted or 2)."""
        rules = self.rules
        prover_pay, right, wrong, ran_out, no_guess = rules.amounts
        if self.done or self.terminated:
            return [0.0] * len(rules.agents()), False, False, 2
        if rules.force_guess == "zero":
            decision = 0
        elif rules.force_guess == "one":
            decision = 1
        elif rules.force_guess == "y":
            decision = self.y
        guesses = rules.verifier_moves(self.round, self.seed)
        made = guesses and decision != 2 and self.round >= rules.min_rounds - 1
        out_of_rounds = self.round >= rules.max_rounds - 1 and not made
        if made:
            verifier_gets = right if decision == self.y else wrong
        elif out_of_rounds:
            verifier_gets = ran_out
        elif guesses:
            verifier_gets = no_guess
        else:
            verifier_gets = 0.0
        rewards = []
        for agent in rules.agents():
            if agent == "verifier" or rules.shared_reward:
                rewards.append(verifier_gets)
            elif made and self.wants(agent) == decision:
                rewards.append(prover_pay)
            else:
                rewards.append(0.0)
        verdict = decision if made else 2
        rewards = [
            self.corrected(agent, paid, verdict, out_of_rounds)
            for agent, paid in zip(rules.agents(), rewards, strict=True)
        ]
        self.round += 1
        if made:
            self.done = True
            self.agents_done = True
        if out_of_rounds:
            self.terminated = True
        return rewards, made, out_of_rounds, verdict

    def corrected(self, agent: str, paid: float, verdict: int, out_of_rounds: bool) -> float:
        """What this round pays an agent whose payoff has entries, where `paid` is what it would pay without."""
        entries = self.rules.payoff.get(agent, PayoffSettings())
        if verdict != 2:
            given = getattr(entries, f"{'true' if verdict == self.y else 'false'}_{'accept' if verdict else 'reject'}")
        else:
            given = entries.undecided if out_of_rounds else None
        more = 0.0
        for speaker, amount in entries.turns.items():
            if any(self.rules.speaks(speaker, channel, self.round, self.seed) for channel in self.rules.channels()):
                if speaker != "verifier":
                    more += amount
                elif verdict == 2 and not out_of_rounds:
                    given = amount
        return (paid if given is None else given) + more

    def wants(self, agent: str) -> int | None:
        """The verdict that a prover is paid for."""
        if self.rules.name in ("nip", "adp", "mnip"):
            return 1
        if self.rules.name in ("debate", "merlin_arthur", "consultancy"):
            return 0 if agent == "prover0" else 1
        return None


@st.composite
def random_payoff(draw: st.DrawFn, agents: list[str]) -> dict[str, PayoffSettings]:
    """Entries of some agents' tables; amounts add up without rounding."""
    amount = st.integers(-8, 8).map(lambda eighths: eighths / 8)
    entries = {
        key: st.none() | amount for key in ("true_accept", "false_accept", "true_reject", "false_reject", "undecided")
    }
    turns = st.dictionaries(st.sampled_from(agents), amount, max_size=2)
    return draw(st.dictionaries(st.sampled_from(agents), st.builds(PayoffSettings, **entries, turns=turns), max_size=2))


@st.composite
def random_rules(draw: st.DrawFn) -> Rules:
    """Any protocol in any ordering, with any limits under which the verifier can decide, and any amounts."""
    amount = st.floats(-3, 3, width=32, allow_subnormal=False)
    made = Rules(
        name=draw(st.sampled_from(NAMES)),
        amounts=tuple(draw(st.tuples(*[amount] * 5))),
        shared_reward=draw(st.booleans()),
        force_guess=draw(st.sampled_from([None, None, None, "zero", "one", "y"])),
    )
    made = replace(made, payoff=draw(random_payoff(made.agents())))
    try:
        build(made.name, **made.params())
    except UserError as error:  # entries may leave another amount without a use
        made = replace(made, payoff={}) if "has no use for it" in str(error) else made
    if made.name in FIXED_LIMITS:
        max_rounds, min_rounds = FIXED_LIMITS[made.name]
        return replace(made, max_rounds=max_rounds, min_rounds=min_rounds)
    _, first, sequential, prover0_first = draw(st.sampled_from([order for order in ORDERS if order[0] == made.name]))
    made = replace(made, verifier_first=first, sequential=sequential, prover0_first=prover0_first)
    limits = [(high, low) for high in range(1, 12) for low in range(1, high + 1)]
    made = [replace(made, max_rounds=high, min_rounds=low) for high, low in limits]
    return draw(st.sampled_from([rules for rules in made if rules.can_decide()]))


def random_copies(rules: Rules, random: Random, batch: int, *, anywhere: bool = False) -> list[Copy]:
    """Fresh copies, or (`anywhere`) copies in any round, ended or not."""
    copies = [
        Copy(rules, random.randrange(2), random.choice([0, 1, 65534, 65535, random.randrange(2**16)]))
        for _ in range(batch)
    ]
    if anywhere:
        for copy in copies:
            copy.round = random.randrange(rules.max_rounds)
            copy.done = copy.agents_done = random.random() < 0.2
            copy.terminated = not copy.done and random.random() < 0.2
    return copies


def random_decisions(rules: Rules, random: Random, batch: int) -> list[list[int]]:
    """One row a copy: the verifier mostly continues; the other columns hold what must never be read."""
    patience = random.choice([0.0, 0.5, 0.8, 1.0])
    rows = []
    for _ in range(batch):
        verdict = 2 if random.random() < patience else random.randrange(2)
        rows.append([verdict if agent == "verifier" else random.randrange(-3, 9) for agent in rules.agents()])
    return rows


def state_of(copies: list[Copy]) -> ProtocolState:
    """The tensors that describe these copies."""
    width = len(copies[0].rules.agents())
    return ProtocolState(
        round_B=torch.tensor([c.round for c in copies]),
        seed_B=torch.tensor([c.seed for c in copies]),
        y_B=torch.tensor([c.y for c in copies]),
        agent_done_BA=torch.tensor([[c.agents_done] * width for c in copies]),
        done_B=torch.tensor([c.done for c in copies]),
        exhausted_B=torch.tensor([c.terminated for c in copies]),
        vote_BM=torch.empty(len(copies), 0),
        grade_BM=torch.empty(len(copies), 0),
    )


def tensors(record: ProtocolState | StepOutcome) -> dict[str, Tensor]:
    return {f.name: getattr(record, f.name) for f in fields(record)}


def assert_same(left: ProtocolState | StepOutcome, right: ProtocolState | StepOutcome) -> None:
    for key, value in tensors(left).items():
        other = tensors(right)[key]
        assert value.dtype == other.dtype, key
        assert torch.equal(value, other), key


def assert_step_is_slow_step(
    protocol: Protocol, copies: list[Copy], state: ProtocolState, decisions: list[list[int]]
) -> ProtocolState:
    """Play one round both ways, compare everything, return the batched state."""
    after, outcome = step(protocol, state, torch.tensor(decisions))
    verifier = copies[0].rules.agents().index("verifier")
    slow = [copy.play(row[verifier]) for copy, row in zip(copies, decisions, strict=True)]
    rewards, decided, ran_out, counted = zip(*slow, strict=True)
    assert_same(
        outcome, StepOutcome(torch.tensor(rewards), torch.tensor(decided), torch.tensor(ran_out), torch.tensor(counted))
    )
    assert_same(after, state_of(copies))
    assert after.ended_B.tolist() == [copy.done or copy.terminated for copy in copies]
    return after


@SETTINGS
@given(random_rules(), st.integers(0, 2**32), st.integers(1, 7))
def test_masks_follow_the_turn_order(rules: Rules, noise: int, batch: int) -> None:
    protocol, random = build(rules.name, **rules.params()), Random(noise)
    agents, channels = rules.agents(), rules.channels()
    assert (protocol.agents, protocol.channels) == (tuple(agents), tuple(channels))
    assert (protocol.max_rounds, protocol.min_rounds) == (rules.max_rounds, rules.min_rounds)
    for agent in agents:
        assert set(protocol.sees[agent]) == {channel for channel in channels if rules.sees(agent, channel)}
    where = [(random.randrange(rules.max_rounds), random.randrange(2**16)) for _ in range(batch)]
    round_B, seed_B = torch.tensor(where).unbind(1)
    expected = [[[rules.speaks(agent, channel, *at) for channel in channels] for agent in agents] for at in where]
    assert protocol.active(round_B, seed_B).tolist() == expected
    assert protocol.verifier_turns == sum(rules.verifier_moves(round, 0) for round in range(rules.max_rounds))


@SETTINGS
@given(random_rules(), st.integers(0, 2**32), st.integers(1, 7))
def test_whole_episodes_equal_the_slow_ones(rules: Rules, noise: int, batch: int) -> None:
    protocol, random = build(rules.name, **rules.params()), Random(noise)
    copies = random_copies(rules, random, batch)
    state = start(protocol, torch.tensor([c.y for c in copies]), torch.tensor([c.seed for c in copies]))
    assert_same(state, state_of(copies))
    for _ in range(rules.max_rounds + 2):  # two rounds more than any episode has
        state = assert_step_is_slow_step(protocol, copies, state, random_decisions(rules, random, batch))
    assert bool(state.ended_B.all())
    assert not bool((state.done_B & state.exhausted_B).any())


@SETTINGS
@given(random_rules(), st.integers(0, 2**32), st.integers(1, 7))
def test_one_step_from_anywhere_equals_the_slow_one(rules: Rules, noise: int, batch: int) -> None:
    protocol, random = build(rules.name, **rules.params()), Random(noise)
    copies = random_copies(rules, random, batch, anywhere=True)
    assert_step_is_slow_step(protocol, copies, state_of(copies), random_decisions(rules, random, batch))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]}-v{order[1]:d}s{order[2]:d}p{order[3]:d}")
def test_limits_are_refused_exactly_when_the_verifier_could_not_decide(order: tuple[str, bool, bool, bool]) -> None:
    for max_rounds in range(1, 6):
        for min_rounds in range(1, max_rounds + 2):
            rules = Rules(*order, max_rounds=max_rounds, min_rounds=min_rounds)
            if rules.can_decide():
                build(rules.name, **rules.params())
            else:
                with pytest.raises(UserError, match="min_rounds" if min_rounds > max_rounds else "never decide"):
                    build(rules.name, **rules.params())
