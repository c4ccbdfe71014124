"""Channels encoded apart: nip's agent is contained exactly, what is said elsewhere does not matter to a closed gate,
gates learn."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nip_ray.learning.policy import Policy
from nip_ray.play.conformance import check_scenario
from nip_ray.play.rollout import own_rows
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import build
from nip_ray.scenarios.channelwise import Channelwise
from nip_ray.scenarios.registry import random_twin
from tests.builders import graph_scenario, rollout_of
from tests.scenarios.image_classification.files import image_scenario

SPEECH: dict[str, int] = {"message_size": 2, "linear_symbols": 3}


def scenario_of(task: str, protocol: str, channels: str = "apart", **options: Any) -> Scenario:
    made = build(protocol, **({} if protocol in ("critique", "merlin_arthur") else {"max_rounds": 4}))
    if task == "graphs":
        return graph_scenario(made, channels=channels, use_batch_norm=False, **options)
    agents = {agent: {"channels": channels, "sight": "coarse"} for agent in made.agents}
    return image_scenario(made, agents=agents, **options)


def seen(scenario: Scenario, agent: str, seed: int = 0) -> dict[str, Tensor]:
    return own_rows(scenario, rollout_of(scenario, random_twin(scenario), 12, seed), agent).obs


def nip_agent_in(
    scenario: Scenario, agent: str, twin: Scenario, role: str, channel: str
) -> tuple[Channelwise, torch.nn.Module]:
    """An agent with nip's weights whose gates are open to one channel alone, and nip's."""
    network, original = scenario.build_agent(agent, 0).eval(), twin.build_agent(role, 1).eval()
    assert isinstance(network, Channelwise)
    network.inside.load_state_dict(original.state_dict())
    place = network.seat.reads.index(scenario.protocol.channels.index(channel))
    with torch.no_grad():
        for gate in (network.decision_gate, network.value_gate):
            if gate is not None:
                gate.copy_(torch.eye(len(gate))[place])
    return network, original


@pytest.mark.parametrize("options", [{}, SPEECH], ids=["plain", "speech"])
@pytest.mark.parametrize("task", ["graphs", "images"])
def test_debate_and_mnip_contain_nip(task: str, options: dict[str, int]) -> None:
    for protocol, prover in (("debate", "prover1"), ("mnip", "prover0")):
        scenario, twin = scenario_of(task, protocol, **options), scenario_of(task, "nip", "together", **options)
        channel = scenario.protocol.channels[scenario.protocol.writes[prover][0]]
        for agent, role in (("verifier", "verifier"), (prover, "prover")):
            network, original = nip_agent_in(scenario, agent, twin, role, channel)
            whole = seen(scenario, agent)
            alone = only(whole, network, channel, scenario)
            with torch.no_grad():
                (policy, value), (same_policy, same_value) = network(whole), original(alone)
            written = network.seat.writes.index(scenario.protocol.channels.index(channel))
            width = scenario.message_size
            ours = policy.message[:, written * width : (written + 1) * width]
            assert torch.allclose(ours, same_policy.message, atol=1e-5)
            assert torch.allclose(value, same_value, atol=1e-5)
            if policy.decision is not None:
                assert torch.allclose(policy.decision, same_policy.decision, atol=1e-5)
            if policy.linear is not None:
                assert torch.allclose(
                    policy.linear[:, written * width : (written + 1) * width], same_policy.linear, atol=1e-5
                )


def only(whole: dict[str, Tensor], network: Channelwise, channel: str, scenario: Scenario) -> dict[str, Tensor]:
    """What nip's agent would have seen: the messages of one channel, cut out by hand."""
    place = network.seat.reads.index(scenario.protocol.channels.index(channel))
    written = network.seat.writes.index(scenario.protocol.channels.index(channel))
    rounds, reads, width, axis = (
        network.seat.rounds,
        len(network.seat.reads),
        scenario.message_size,
        network.inside.history_axis,
    )
    found = dict(whole)
    features = [(r * reads + place) * width + m for r in range(rounds) for m in range(width)]
    found["history"] = whole["history"].index_select(axis, torch.tensor(features))
    found["latest"] = whole["latest"].index_select(axis, torch.tensor([place * width + m for m in range(width)]))
    for name in ("answer_side", "speaks"):
        if name in whole:
            found[name] = whole[name][:, written * width : (written + 1) * width]
    if "linear_history" in whole:
        symbols = scenario.linear_symbols
        apart = whole["linear_history"].view(-1, rounds, reads, width, symbols)
        found["linear_history"] = apart[:, :, place].flatten(1)
    if whole.get("image", torch.zeros(0)).dim() == 5:
        found["image"] = whole["image"][:, place]
    return found


@pytest.mark.parametrize("task", ["graphs", "images"])
def test_a_closed_gate_hears_nothing(task: str) -> None:
    scenario = scenario_of(task, "debate")
    network = scenario.build_agent("verifier", 0).eval()
    whole, other = seen(scenario, "verifier", 0), seen(scenario, "verifier", 1)
    count = min(len(whole["round"]), len(other["round"]))
    whole, other = ({name: rows[:count] for name, rows in obs.items()} for obs in (whole, other))
    axis, channels = network.inside.history_axis, 2
    mixed = dict(whole)
    for name, rounds in (("history", 4), ("latest", 1)):  # the second channel says something else
        odd = torch.tensor([r * channels + 1 for r in range(rounds)])
        mixed[name] = whole[name].index_copy(axis, odd, other[name].index_select(axis, odd))
    if "image" in mixed:
        mixed["image"] = torch.stack([whole["image"][:, 0], other["image"][:, 1], whole["image"][:, 2]], 1)
    assert not torch.equal(mixed["history"], whole["history"])
    for open_, same in (((1.0, 0.0, 0.0), True), ((0.0, 0.0, 1.0), True), ((0.5, 0.5, 0.0), False)):
        with torch.no_grad():
            network.decision_gate.copy_(torch.tensor(open_))
            found: list[Policy] = [network(obs, True, False)[0] for obs in (whole, mixed)]
        assert torch.allclose(found[0].decision, found[1].decision, atol=1e-5) == same
        assert torch.allclose(found[0].message[:, 0], found[1].message[:, 0], atol=1e-5), (
            "a question depends on its own channel at the start"
        )


@pytest.mark.parametrize("task", ["graphs", "images"])
def test_the_gate_of_silence_hears_nobody(task: str) -> None:
    scenario = scenario_of(task, "debate", **SPEECH)
    network = scenario.build_agent("verifier", 0).eval()
    whole, other = seen(scenario, "verifier", 0), seen(scenario, "verifier", 1)
    count = min(len(whole["round"]), len(other["round"]))
    whole, other = ({name: rows[:count] for name, rows in obs.items()} for obs in (whole, other))
    mixed = whole | {name: other[name] for name in ("history", "latest", "linear_history")}
    if "image" in mixed:
        mixed["image"] = torch.cat([other["image"][:, :2], whole["image"][:, 2:]], 1)
    for silence, same in ((1.0, True), (0.5, False)):
        with torch.no_grad():
            network.decision_gate.copy_(torch.tensor([1 - silence, 0.0, silence]))
            found: list[Policy] = [network(obs, True, False)[0] for obs in (whole, mixed)]
        assert torch.allclose(found[0].decision, found[1].decision, atol=1e-5) == same
    silent = whole | {name: torch.zeros_like(whole[name]) for name in ("history", "latest", "linear_history")}
    if "image" in silent:
        silent["image"] = whole["image"][:, 2:].expand(-1, 3, -1, -1, -1)
    with torch.no_grad():
        heard, unheard = (gate_at(network, place)(silent, True, False)[0].decision for place in (0, 2))
    assert torch.allclose(heard, unheard, atol=1e-5), "where nobody speaks there is nothing to disregard"


def gate_at(network: Channelwise, place: int) -> Channelwise:
    """The network with its decision's gate open to one part alone."""
    network.decision_gate.copy_(torch.eye(len(network.decision_gate))[place])
    return network


def test_gates_learn() -> None:
    scenario = scenario_of("graphs", "debate")
    for agent in scenario.protocol.agents:
        network = scenario.build_agent(agent, 0)
        policy, value = network(seen(scenario, agent))
        loss = policy.message.clamp_min(-100).square().sum() + value.sum()
        (loss if policy.decision is None else loss + policy.decision[:, 0].sum()).backward()
        trained = [parameter for group in network.groups() for parameter in group.parameters]
        assert len({id(parameter) for parameter in trained}) == len(list(network.parameters()))
        assert all(
            parameter.grad is not None and parameter.grad.abs().sum() > 0
            for name, parameter in network.named_parameters()
            if "gate" in name
        )


@pytest.mark.parametrize("protocol", ["nip", "debate", "mnip", "critique", "judge_panel", "merlin_arthur"])
def test_every_protocol_can_be_read_apart(protocol: str) -> None:
    check_scenario(scenario_of("graphs", protocol, **SPEECH))


@pytest.mark.parametrize("task", ["graphs", "images"])
def test_each_distinct_row_is_looked_at_once(task: str) -> None:
    scenario = scenario_of(task, "debate")
    network = scenario.build_agent("verifier", 0).eval()
    obs = {name: torch.cat([rows, rows.flip(0)]) for name, rows in seen(scenario, "verifier").items()}
    looked: list[int] = []
    network.inside.register_forward_pre_hook(lambda _, args: looked.append(len(args[0]["round"])))
    with torch.no_grad():
        policy, value = network(obs)
    whole, same = network(obs)  # where something may be learned
    assert looked[0] <= looked[2] / 2 == len(obs["round"])
    assert looked[1] == looked[3] <= len(obs["round"]) / 2, "in silence"
    assert torch.allclose(policy.decision, whole.decision, atol=1e-5)
    assert torch.allclose(policy.message, whole.message, atol=1e-5)
    assert torch.allclose(value, same, atol=1e-5)


@pytest.mark.parametrize("task", ["graphs", "images"])
def test_who_answers_second_still_sees_its_question(task: str) -> None:
    """In debate in turns prover1's channel is silent in the round before its answer; published, its question is gone
    then."""
    for channels, sees in (("apart", True), ("together", False)):
        made = build("debate", max_rounds=4, sequential=True, prover0_first=True)
        if task == "graphs":
            scenario: Scenario = graph_scenario(made, channels=channels, use_batch_norm=False)
        else:
            scenario = image_scenario(made, agents={agent: {"channels": channels} for agent in made.agents})
        rollout = rollout_of(scenario, random_twin(scenario), 12, 0)
        rows = own_rows(scenario, rollout, "prover1")
        assert bool((rows.round_N == 2).all())
        channel = scenario.protocol.channels.index("prover1_channel")
        place = scenario.seats["prover1"].reads.index(channel)
        axis = 3 if task == "graphs" else 1
        latest = rows.obs["latest"].select(axis, place).flatten(1)
        question_N = rollout.main_BRACM[rows.copy_N, 0, scenario.protocol.agents.index("verifier"), channel, 0]
        assert bool((latest.sum(1) == float(sees)).all())
        assert not sees or torch.equal(latest.argmax(1), question_N)
