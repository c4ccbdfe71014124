"""Roles that an agent chooses: what is written into the seed, who sees it when, who is paid what, in all media, and
what is refused."""

import asyncio
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.evaluation.attack_table import attacking_agents, attacking_roles
from nip_ray.evaluation.claims import sides
from nip_ray.evaluation.message_tree import MessageTree, exact_for
from nip_ray.learning.policy import FORBIDDEN_BELOW
from nip_ray.play.core import BatchedPlay, play_rollout, turn_masks
from nip_ray.play.dialogue import InvalidReply
from nip_ray.play.dialogues import Answer, play_dialogue
from nip_ray.play.rollout import own_rows
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, Protocol, build, check, start, step
from nip_ray.protocols.solo import solo_protocol
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.parse import read_side
from nip_ray.scenarios.code_validation.scenario import build_text_scenario
from nip_ray.settings.code_validation import CodeValidationSettings
from tests.builders import copies, graph_agents, graph_scenario, spread_heads

CONSULTANCY, DEBATE = build("open_consultancy", max_rounds=4), build("open_debate", max_rounds=6)


def decided(protocol: Protocol, **decisions: int) -> torch.Tensor:
    return torch.tensor([[decisions.get(agent, CONTINUE) for agent in protocol.agents]])


@pytest.mark.parametrize("protocol", [CONSULTANCY, DEBATE], ids=lambda protocol: protocol.name)
def test_the_choice_is_paid_for_and_not_the_draw(protocol: Protocol) -> None:
    chooser = protocol.chooser or ""
    for seed, choice, verdict, y in product((0, 1, 65535), (REJECT, ACCEPT, CONTINUE), (REJECT, ACCEPT), (0, 1)):
        state = start(protocol, torch.tensor([y]), torch.tensor([seed]))
        state, _ = step(protocol, state, decided(protocol, **{chooser: choice}))
        side = seed % 2 if choice == CONTINUE else choice
        assert int(state.seed_B) == seed // 2 * 2 + side
        while not bool(state.ended_B):  # what it decides later is no choice any more
            state, outcome = step(protocol, state, decided(protocol, **{chooser: 1 - side, "verifier": verdict}))
        paid = dict(zip(protocol.agents, outcome.reward_BA[0].tolist()))
        assert int(state.seed_B) % 2 == side
        assert paid.pop("verifier") == (1 if verdict == y else -1)
        assert paid.pop(chooser) == float(verdict == side)
        assert not paid or paid == {"prover1": float(verdict != side)}


def test_everybody_is_told_once_it_is_chosen() -> None:
    round_N, seed_N = torch.arange(4), torch.tensor([1, 1, 0, 1])
    for agent in CONSULTANCY.agents:
        assert turn_masks(CONSULTANCY, agent, 1, round_N, seed_N)["told"].tolist() == [[0, 0], [0, 1], [1, 0], [0, 1]]
    may = {
        agent: turn_masks(CONSULTANCY, agent, 1, round_N, seed_N)["may_decide"].tolist() for agent in CONSULTANCY.agents
    }
    assert may == {"prover": [True, False, False, False], "verifier": [False, True, False, True]}


def test_networks_choose_and_their_rows_are_what_they_saw() -> None:
    scenario = graph_scenario(DEBATE)
    agents = {agent: spread_heads(network) for agent, network in graph_agents(scenario).items()}
    ids, seeds = copies(scenario, 40)
    seen: list[Any] = []
    networks = {agent: Watched(network, seen, agent) for agent, network in agents.items()}
    rollout = play_rollout(BatchedPlay(scenario), networks, ids, seeds, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    choice_B = rollout.decision_BRA[:, 0, 0]
    assert {0, 1, 2} == set(choice_B.tolist())
    assert torch.equal(rollout.seed_B % 2, torch.where(choice_B == CONTINUE, seeds % 2, choice_B))
    for agent in DEBATE.agents:  # what learning rebuilds from the ends of episodes is what was seen in play
        rows = own_rows(scenario, rollout, agent)
        played = [obs for name, obs in seen if name == agent]
        for key in ("told", "may_decide"):
            rebuilt = torch.cat([rows.obs[key][rows.round_N == r] for r in sorted(set(rows.round_N.tolist()))])
            assert torch.equal(torch.cat([obs[key] for obs in played]), rebuilt)
    honest_BA = sides(DEBATE, rollout.seed_B.numpy(), rollout.y_B.numpy())
    assert (honest_BA[:, 0] == (2 * (rollout.seed_B % 2 == rollout.y_B) - 1).numpy()).all()
    assert (honest_BA[:, 0] == -honest_BA[:, 1]).all()


class Watched:
    """A network that keeps what it was shown."""

    def __init__(self, network: Any, seen: list[Any], agent: str) -> None:
        self.network, self.seen, self.agent = network, seen, agent

    def __call__(self, obs: Any, *wanted: bool) -> Any:
        self.seen.append((self.agent, obs))
        return self.network(obs, *wanted)


def test_an_attacker_takes_the_better_side() -> None:
    protocol = build("open_consultancy", max_rounds=2)
    assert attacking_agents(DEBATE, ACCEPT) == ("prover0",)
    assert attacking_roles(DEBATE, ACCEPT) == ()
    assert exact_for(protocol)
    assert not exact_for(replace(protocol, turns=((*protocol.turns[0][::-1],),), min_rounds=2))
    scenario = graph_scenario(protocol)
    networks = {agent: spread_heads(network).eval() for agent, network in graph_agents(scenario).items()}
    ids, seeds = copies(scenario, 6)
    values = MessageTree(scenario, networks, ("prover",), ACCEPT, max_nodes=100_000).values(ids, seeds)
    found = []
    for side in (REJECT, ACCEPT):  # by hand: every node or silence, on either side
        play = BatchedPlay(scenario)
        for node in range(-1, scenario.num_symbols):
            play.reset(ids, seeds // 2 * 2 + side)
            first, _ = networks["prover"](play.observe("prover", torch.arange(len(ids))), True, False)
            said = play.main_BRACM
            said[:, 0, 0, 0, 0] = node
            play.go_on(ids, seeds // 2 * 2 + side, said, 1)
            policy, _ = networks["verifier"](play.observe("verifier", torch.arange(len(ids))), True, False)
            chance_N = torch.softmax(policy.decision, -1)[:, ACCEPT]
            found.append(
                chance_N if node < 0 else torch.where(first.message[:, 0, node] > FORBIDDEN_BELOW, chance_N, 0.0)
            )
    exact_B = torch.stack(found).amax(0)
    assert torch.allclose(values[:, 1, 0], exact_B, atol=1e-6)


CODE = {
    name: build_text_scenario(build(name), CodeValidationSettings()) for name in ("open_consultancy", "open_debate")
}
ITEM = CodeItem(3, "Add two numbers.", "print(sum(map(int, input().split())))", 1, 0)


@pytest.mark.parametrize(("name", "chosen"), list(product(CODE, ("accept", "reject"))))
def test_language_models_choose(name: str, chosen: str) -> None:
    scenario = CODE[name]
    asked: list[str] = []

    async def ask(dialogue: Any, agent: str, chat: Any, attempt: int, path: Any) -> Answer:
        asked.append(chat[0]["content"])
        if agent == "verifier":
            assert any(f"Side: {chosen}" in message["content"] for message in chat)
            return Answer("Decision: accept")
        return Answer(
            "Nothing chosen yet."
            if attempt == 0
            else f"It adds.\n**Side: {chosen}**"
            if not dialogue.rounds
            else "Answer: no"
        )

    dialogue = asyncio.run(play_dialogue(scenario, ITEM, 6 + (chosen == "reject"), ask))
    side = ("reject", "accept").index(chosen)
    assert dialogue.seed == 6 + side
    assert dialogue.rounds[0][0].decision == side
    assert dialogue.rounds[0][0].retries == 1
    assert "It adds." in next(iter(dialogue.rounds[0][0].messages.values()))
    chooser = scenario.protocol.chooser or ""
    assert dialogue.total(chooser) == float(side == ACCEPT)
    assert dialogue.total("verifier") == 1
    if name == "open_debate":
        assert dialogue.total("prover1") == float(side == REJECT)
        assert len(dialogue.rounds[1]) == 1
    assert "If the side chosen is to accept, you are paid 1 if" in asked[0]


@pytest.mark.parametrize(
    "reply", ["", "Side: maybe", "Side: accept\nSide: reject", "I am on the side: accept, I think"]
)
def test_no_side_is_no_choice(reply: str) -> None:
    with pytest.raises(InvalidReply, match="must choose one side"):
        read_side(reply)


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "roles": ({"roles": ("accept", "reject")}, r"roles must be \['reject', 'accept'\], in this order"),
    "nobody": ({"chooser": "critic"}, "chooser must be a prover, one of"),
    "the verifier": ({"chooser": "verifier"}, "chooser must be a prover, one of"),
    "two tables": ({"turns": CONSULTANCY.turns * 2}, "in the one table of turns"),
    "verdict first": (
        {"turns": (CONSULTANCY.turns[0][::-1],)},
        "a verdict counts in round 0, before there is a role; set min_rounds to 2",
    ),
}


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_check_names_the_fault(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(replace(CONSULTANCY, **change))


@pytest.mark.parametrize("protocol", [CONSULTANCY, build("helpful_sneaky")], ids=lambda protocol: protocol.name)
def test_a_body_trained_alone_fits(protocol: Protocol) -> None:
    for agent in protocol.agents:
        alone = solo_protocol(protocol, agent)
        check(alone)
        made, real = (graph_scenario(one).build_agent(agent, 0).body() for one in (alone, protocol))
        real.load_state_dict(made.state_dict())
