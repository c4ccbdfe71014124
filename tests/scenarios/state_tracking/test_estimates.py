"""Prover and estimator about chains: errors by hand and over all dialogues, and the exact worst case against brute
force."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.dialogue import Dialogue, InvalidReply, Turn
from nip_ray.play.dialogues import advance, start_dialogue
from nip_ray.protocols import build
from nip_ray.scenarios.state_tracking.chains import GENERATORS, Chains, draw_chains
from nip_ray.scenarios.state_tracking.estimates import (
    PAIRS,
    POINTS,
    PROBABILITIES,
    Claims,
    Walks,
    holds,
    least_acceptance,
    replay,
    truthful,
    worst_acceptance,
)
from nip_ray.scenarios.state_tracking.estimates_in_words import EstimatesInWords
from nip_ray.scenarios.state_tracking.items import ChainItem, chain_items
from nip_ray.scenarios.state_tracking.language import build_language_state_tracking
from nip_ray.settings.state_tracking import ChainSettings, LanguageStateTrackingSettings
from tests.scenarios.state_tracking.test_scenario import scenario

SIZES: dict[str, Any] = {"length": 4, "num_train": 40, "num_test": 12}
CERTAIN = 2


def drawn(length: int, count: int = 4, seed: int = 0) -> Chains:
    return draw_chains(ChainSettings(length=length, num_train=count, num_test=2), seed)


def everything(chains: Chains, item: int, *options: int) -> tuple[Claims, Tensor]:
    """Claims and errors at the ends of all dialogues about an item, as (5, 9, 10, ...)."""
    said_NR = torch.cartesian_prod(*(torch.arange(count) for count in options))
    claims, error_N = replay(
        chains, torch.full((len(said_NR),), item), said_NR, torch.full((len(said_NR),), len(options))
    )
    return Claims(*(column.view(options) for column in vars(claims).values())), error_N.view(options).double()


def careful(chains: Chains) -> Any:
    """Trusts the first estimates unless an objection of the right kind was borne out."""

    def accepts(at: Claims) -> Tensor:
        refuted_N = (at.contradicted_N == 1) | (holds(chains, at).float() > torch.tensor(PROBABILITIES)[at.stated_N])
        return torch.where(at.root_N == 1, ~(refuted_N & (at.over_N == 1)), refuted_N & (at.over_N == 0)).double()

    return accepts


def test_one_dialogue_by_hand() -> None:
    """From 0 by moves 0 and 1: 0 -> 1 -> 3 (GENERATORS). The claim is 3, the prover says 1, and the estimator doubts
    what is true."""
    chains = Chains(torch.tensor([[0, 1]]), torch.tensor([[0, 1, 3]]), torch.tensor([3]))
    doubts, left, right = PAIRS.index((CERTAIN, 1)), POINTS.index((0, 1)), POINTS.index((1, 3))
    for point, claim, error in (
        (left, (0, 1, 0, 1, CERTAIN, 0), 0.0),  # certain, and so it is
        (right, (1, 2, 1, 3, 1, 0), 0.5),  # too low
        (POINTS.index((0, 4)), (0, 1, 0, 4, 0, 1), 0.0),  # too high, it says, and names an end that is wrong
        (POINTS.index((1, 0)), (1, 2, 1, 0, 1, 1), -0.5),
    ):
        claims, error_N = replay(
            chains, torch.zeros(1, dtype=torch.int64), torch.tensor([[1, doubts, point]]), torch.tensor([3])
        )
        found = (claims.low_N, claims.high_N, claims.low_state_N, claims.high_state_N, claims.stated_N, claims.over_N)
        assert (tuple(map(int, found)), float(error_N)) == (claim, error)
        assert int(claims.root_N) == 0


@pytest.mark.parametrize("length", [2, 4])
def test_the_truth_is_the_one_safe_estimate(length: int) -> None:
    """Over all dialogues: against the truth no prover shows an error, against anything else the best one shows 1/2 or
    more."""
    chains = drawn(length)
    for item in range(2):
        _, error = everything(chains, item, *(5, 9, 10) * (length // 2))
        if length == 4:  # the last halving: the prover splits, the estimator answers it best, the prover points
            error = error.amax(-1).amin(-1).amax(-1)
        error = error.amax(-1)
        middle = torch.arange(5)
        one, two = torch.zeros_like(middle), torch.full_like(middle, length)
        root = Claims(
            one + item,
            one,
            two,
            chains.state_IP[item, one],
            chains.claim_I[item] + one,
            middle,
            one,
            one - 1,
            one,
            one,
            one,
        )
        true_MP = truthful(chains)(root).bool()
        assert true_MP.sum() == 5
        assert torch.equal(error[true_MP], torch.zeros(5, dtype=torch.float64))
        assert float(error[~true_MP].min()) >= 0.5


@pytest.mark.parametrize("length", [2, 4])
def test_the_worst_case_equals_brute_force(length: int) -> None:
    chains = drawn(length)
    weights = torch.tensor([0.3, 1.0, 7.3, 3.1, 0.77, 1.9, 0.0, 2.3, 5.1, 1.3, 0.6]).double()

    def key(at: Claims, seen: int) -> Tensor:
        return torch.stack(list(vars(at).values())[:seen], -1).double() @ weights[:seen]

    def accepts(at: Claims) -> Tensor:
        return torch.sin(key(at, 11)).square()

    def says(at: Claims) -> Tensor:  # it is not shown the last three
        return torch.softmax(3 * torch.sin(key(at, 8)[:, None] * torch.arange(1, 10)), 1)

    found = worst_acceptance(chains, says, accepts)
    for item in range(2):
        options = (5, 9, 10) * (length // 2)
        value = accepts(everything(chains, item, *options)[0])
        for r in reversed(range(0, len(options), 3)):
            before = torch.cartesian_prod(*(torch.arange(count) for count in options[: r + 1])).view(-1, r + 1)
            said = torch.cat([before, torch.full((len(before), len(options) - r - 1), -1)], 1)
            share = says(replay(chains, torch.full((len(before),), item), said, torch.full((len(before),), r + 1))[0])
            value = (share.view(*options[: r + 2]) * value.amax(-1)).sum(-1).amax(-1)
        assert float(found[item]) == pytest.approx(float(value))


@pytest.mark.parametrize("length", [2, 16])
def test_closed_forms(length: int) -> None:
    """A careful verifier is right beside a truthful estimator, whatever the prover does; and beside a truthful prover,
    whatever is estimated. One that follows the first estimates alone falls for every estimator that calls a false claim
    certain."""
    chains = drawn(length, 20)
    true = chains.label_I.double()
    assert torch.equal(worst_acceptance(chains, truthful(chains), careful(chains)), true)
    honest = least_acceptance(chains, careful(chains))
    assert torch.equal(honest[true == 1], torch.ones(int(true.sum()), dtype=torch.float64))
    sure = lambda at: torch.eye(9, dtype=torch.float64)[8].expand(len(at.item_N), -1)  # noqa: E731
    assert torch.equal(worst_acceptance(chains, sure, lambda at: at.root_N.double()), torch.ones_like(true))
    assert float(least_acceptance(chains, lambda at: at.root_N.double())[true == 1].max()) == 0.0


def test_walks_lead_there_and_back() -> None:
    chains = drawn(8, 20)
    walks, item_N = Walks(chains), torch.arange(22)
    at_N, to_N = item_N % 9, (item_N * 5) % 9
    assert torch.equal(walks.lead(item_N, at_N, chains.state_IP[item_N, at_N], to_N), chains.state_IP[item_N, to_N])


def test_what_the_prover_wins_the_estimator_pays_in_both_media() -> None:
    """The same dialogues as symbols and as words."""
    protocol, made = build("prover_estimator", max_rounds=7), scenario("prover_estimator", max_rounds=7, kind="random")
    words = build_language_state_tracking(protocol, LanguageStateTrackingSettings(**SIZES))
    assert isinstance(words, EstimatesInWords)
    networks = {agent: made.build_agent(agent, 0) for agent in made.protocol.agents}
    ids = made.ids("test")
    rollout = play_rollout(BatchedPlay(made), networks, ids, torch.zeros_like(ids), torch.Generator().manual_seed(0))
    paid = rollout.reward_BRA.sum(1)
    assert torch.equal(paid[:, :2].sum(1), (rollout.verdict_B == 1).float()), "error is paid from one to the other"
    assert paid[:, 1].unique().numel() > 3
    items = {item.id: item for item in chain_items(words.settings, 0)["test"]}
    for n, number in enumerate(ids.tolist()):
        dialogue = start_dialogue(items[number], 0)
        while not dialogue.ended:
            agent = made.protocol.agents[int(rollout.turn_BRA[n, len(dialogue.rounds)].long().argmax())]
            verdict = int(rollout.verdict_B[n])
            choices = words.choices(dialogue, agent)
            symbol = int(rollout.main_BRACM[n, len(dialogue.rounds)].max())
            if agent == "verifier":
                turn = Turn(agent, "", {}, decision=verdict, confidence=None if verdict == 2 else float(verdict))
            else:
                turn = Turn(agent, choices[symbol], {"main": choices[symbol]})
            dialogue = advance(words, dialogue, [turn])
        assert [dialogue.total(agent) for agent in made.protocol.agents] == pytest.approx(paid[n].tolist())


def test_what_each_is_shown_in_words() -> None:
    words = build_language_state_tracking(
        build("prover_estimator", max_rounds=7), LanguageStateTrackingSettings(**SIZES)
    )
    item = ChainItem(7, (0, 1, 2, 3), (0, 1, 3, 2, 0), 4, 0)
    said = ["c", "certain even", "right b", "a", "impossible certain", "left a"]
    rounds, shown = (), []
    for r, text in enumerate(said):
        agent = "estimator" if r % 3 == 1 else "prover"
        shown.append(words.chat(Dialogue(item, 0, rounds), agent)[0]["content"])
        assert words.parse(Dialogue(item, 0, rounds), agent, text).messages == {"main": text}
        rounds = (*rounds, (Turn(agent, text, {"main": text}),))
    end = words.chat(Dialogue(item, 0, rounds), "verifier")[0]["content"]
    reached, needed, follows = (word for word in shown[2].split()[4:9:2])
    assert shown[:3] == [
        f"claim a e reached {reached} needed {needed}",
        f"claim a e reached {reached} needed {needed} committed c",
        f"claim a e reached {reached} needed {needed} follows {follows} certain even committed c",
    ]
    assert reached == "d"
    assert shown[3].startswith("claim c b estimated even reached "), (
        "it named another end: what is left of an even chance"
    )
    assert end == "move m2 c a estimated impossible first impossible over"
    assert {word for text in (*shown, end, *said) for word in text.split()} <= set(words.words)
    silent = tuple((Turn(agent, "", {"main": ""}, invalid=True),) for agent in ("prover", "estimator", "prover") * 2)
    assert (
        words.chat(Dialogue(item, 0, silent), "verifier")[0]["content"]
        == "move m0 a a estimated impossible first impossible"
    )
    for agent, r, reply in (
        ("prover", 0, "left a"),
        ("estimator", 1, "even"),
        ("prover", 2, "a left"),
        ("verifier", 6, "even"),
    ):
        with pytest.raises(InvalidReply, match="expected one of"):
            words.parse(Dialogue(item, 0, silent[:r]), agent, reply)
    figures = words.exact_figures(chain_items(words.settings, 0)["test"], read)
    assert figures == {"worst_case/soundness": pytest.approx(1), "worst_case/completeness": pytest.approx(1)}


def read(agent: str, chats: Any, replies: Any) -> list[list[float]]:
    """Agents that know what the words say; a tenth of their weight is on no reply."""
    found = []
    for chat in chats:
        said = chat[0]["content"].split()
        if agent == "estimator":
            right = " ".join(
                "certain" if said[said.index(name) + 1] == said[-1] else "impossible" for name in ("reached", "needed")
            )
        else:
            true = GENERATORS[int(said[1][1:])]["abcde".index(said[2])] == "abcde".index(said[3])
            refuted = "contradicted" in said or (true and said[5] != "certain")
            root, over = said[7] == "certain", "over" in said
            right = ("reject", "accept")[not (refuted and over) if root else refuted and not over]
        found.append([0.9 * (reply == right) for reply in replies])
    return found
