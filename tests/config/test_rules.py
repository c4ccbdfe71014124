"""Every illegal combination is refused with its key and a way out; what is legal is not."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check, protocol_name, protocol_parameters, warnings_of
from nip_ray.errors import UserError
from nip_ray.protocols import build
from nip_ray.protocols.tables import BOUND_TO_SCENARIO, SHIPPED

Data = dict[str, Any]


def refusal(data: Data) -> str:
    with pytest.raises(UserError) as caught:
        check(config_from_dict(data))
    return str(caught.value)


def agents(**named: Data) -> Data:
    return {"scenario": {"agents": named}}


def gi(**keys: Any) -> Data:
    return {"scenario": keys}


def pairs(**keys: Any) -> Data:
    return {"scenario": {"data": keys}}


def protocol(name: str, **keys: Any) -> Data:
    return {"protocol": {"name": name, **keys}}


def ppo(**keys: Any) -> Data:
    return {"algorithm": keys}


def images(protocol: str = "nip", **keys: Any) -> Data:
    return {"protocol": {"name": protocol}, "scenario": {"name": "image_classification", **keys}}


def classed(**keys: Any) -> Data:
    return images(data=keys)


def spoken(**keys: Any) -> Data:
    hosted = {"provider": "hosted", "model": "m"}
    task = {"name": "code_validation", "agents": {"_default": hosted, "prover": hosted | keys}}
    providers = {"hosted": {"name": "openai"}, "local": {"name": "local"}}
    return {"scenario": task, "protocol": {"name": "nip"}, "algorithm": {"name": "malt"}, "providers": providers}


def spoken_in_json(provider: Data) -> Data:
    data = spoken()
    return data | {
        "scenario": data["scenario"] | {"decision_format": "json"},
        "providers": data["providers"] | {"hosted": provider},
    }


COARSE = {"sight": "coarse"}
UNEQUAL = {"actor": 1, "critic": 0.5}
OWN: Data = {"plugins": ["examples/own_protocol.py"]}
MESSAGE_GAME: Data = {"protocol": {"name": "message_game"}, "scenario": {"name": "message_game"}}
AHEAD: Data = {"play": {"num_env_runners": 1, "max_staleness": 1}}


@pytest.mark.parametrize(
    ("data", "key", "said"),
    [
        # language models
        (spoken(extra_body="{"), "scenario.agents.prover.extra_body", "JSON object"),
        (
            spoken(extra_body='{"seed": 1, "top_k": 2}'),
            "scenario.agents.prover.extra_body",
            "seed has an option of its own",
        ),
        (spoken(extra_body='{"model": null}'), "scenario.agents.prover.extra_body", "model has an option of its own"),
        (
            spoken() | {"providers": {"hosted": {"name": "openai", "base_url": "host:80/v1"}}},
            "providers.hosted.base_url",
            "has no http:// or https://",
        ),
        (
            spoken_in_json({"name": "training_service"}),
            "scenario.decision_format",
            "hosted (of verifier) cannot hold replies to a schema",
        ),
        (spoken(reasoning_effort="high"), "scenario.agents.prover.max_reasoning_tokens", "leave room"),
        (
            spoken(provider="local", model="default", extra_body='{"top_k": 2}'),
            "scenario.agents.prover.extra_body",
            "takes no such",
        ),
        # protocol
        (protocol("nipp"), "protocol.name", "did you mean nip?"),
        (
            MESSAGE_GAME | {"protocol": {"name": "message_game", "zero_knowledge": True}},
            "protocol.zero_knowledge",
            "not available in",
        ),
        (
            protocol("nip", verifier_scoring="brier", payoff={"verifier": {"false_accept": -5}}),
            "protocol",
            "brier is honest only",
        ),
        (
            protocol("nip", zero_knowledge_legacy=True),
            "protocol.zero_knowledge_legacy",
            "set protocol.zero_knowledge to true",
        ),
        (
            protocol("nip", simulator_reward_coefficient=2),
            "protocol.simulator_reward_coefficient",
            "counts with zero_knowledge only",
        ),
        (
            protocol("nip", zero_knowledge=True) | ppo(skip_silent_messages=True),
            "algorithm.skip_silent_messages",
            "set it to false",
        ),
        (
            protocol("judge_panel", max_rounds=4) | ppo(skip_silent_messages=True),
            "algorithm.skip_silent_messages",
            "a message that comes with a decision is read",
        ),
        (
            protocol("nip", zero_knowledge=True) | agents(prover={"kind": "manual"}),
            "scenario.agents.prover.kind",
            "one conversation",
        ),
        (agents(simulator={}), "scenario.agents.simulator", "not an agent of nip"),
        (protocol("adp", verifier_first=False), "protocol.verifier_first", "adp has no use for it"),
        (protocol("nip", sequential=True), "protocol.sequential", "nip has no use for it"),
        (protocol("adp", max_rounds=8), "protocol.max_rounds", "adp always has 2"),
        (protocol("nip", min_rounds=9), "protocol.min_rounds", "round 9 on, but there are only 8"),
        (protocol("nip", min_rounds=8), "protocol.min_rounds", "last turn is round 7 (counted from 1)"),
        (protocol("nip", max_rounds=1, verifier_first=False), "protocol.max_rounds", "never has a turn"),
        (protocol("nip", verifier_reward=float("inf")), "protocol.verifier_reward", "finite"),
        (
            protocol("nip", payoff={"prover": {"true_accept": float("inf")}}),
            "protocol.payoff.prover.true_accept",
            "finite",
        ),
        (
            spoken() | protocol("nip", verifier_scoring="log"),
            "protocol.verifier_scoring",
            "set scenario.verdict_scale to one_to_seven",
        ),
        (
            protocol("nip", verifier_scoring="log") | {"algorithm": {"name": "solo"}},
            "protocol.verifier_scoring",
            "solo does not learn from it",
        ),
        (
            protocol("judge_panel", panel_rule="mean") | {"algorithm": {"name": "stackelberg"}},
            "protocol.panel_rule",
            "stackelberg does not learn from it",
        ),
        (
            protocol("judge_panel", panel_rule="mean", judges=13),
            "protocol.judges",
            "got 13, but under the mean 12 may judge at most",
        ),
        (spoken() | protocol("judge_panel", panel_rule="mean"), "protocol.panel_rule", "votes have no confidence here"),
        (
            protocol("judge_panel", zero_knowledge=True),
            "protocol.zero_knowledge",
            "not defined with several deciders, as in 'judge_panel'",
        ),
        (
            protocol("judge_panel", payoff={"verifier": {"undecided": 0}}),
            "protocol.payoff.verifier",
            "no agent 'verifier' of judge_panel",
        ),
        (
            protocol("judge_panel", min_rounds=3),
            "protocol.min_rounds",
            "decisions count from round 3 on, but there are only 2",
        ),
        (protocol("nip", judges=2), "protocol.judges", "nip has no use for it"),
        (protocol("nip", panel_rule="veto"), "protocol.panel_rule", "nip has no use for it"),
        (protocol("judge_panel") | gi(name="state_tracking"), "protocol.name", "but state_tracking is played under"),
        (protocol("judge_panel") | {"algorithm": {"name": "solo"}}, "algorithm.agent", "got verifier"),
        (protocol("nip", payoff={"judge": {}}), "protocol.payoff.judge", "expected one of prover, verifier"),
        (OWN | protocol("criticised", sequential=True), "protocol.sequential", "criticised has no use for it"),
        (OWN | protocol("criticised") | agents(judge={}), "scenario.agents.judge", "not an agent of criticised"),
        (OWN | protocol("criticized"), "protocol.name", "did you mean criticised? (none of `plugins` registers it)"),
        ({"protocol": {"name": "message_game"}}, "scenario.name", "played in message_game only"),
        ({"scenario": {"name": "message_game"}}, "protocol.name", "under the protocol message_game only"),
        ({**MESSAGE_GAME, "protocol": {"name": "message_game", "sequential": True}}, "protocol.sequential", "no use"),
        (
            {**MESSAGE_GAME, "protocol": {"name": "message_game", "min_rounds": 3}},
            "protocol.min_rounds",
            "message_game always has 8",
        ),
        (
            protocol("mnip") | {"scenario": {"name": "state_tracking"}},
            "protocol.name",
            "state_tracking is played under solo_verifier",
        ),
        (
            protocol("bisection") | {"scenario": {"name": "state_tracking", "length": 8}},
            "scenario.length",
            "one move of 16",
        ),
        (
            protocol("prover_estimator"),
            "scenario.name",
            "prover_estimator pays for estimates, which state_tracking measures",
        ),
        (protocol("bisection", max_rounds=8), "protocol.max_rounds", "an odd number (two for each halving"),
        # agents
        (agents(provr={}), "scenario.agents.provr", "did you mean prover?"),
        (protocol("debate") | agents(prover={}), "scenario.agents.prover", "did you mean prover"),
        (protocol("solo_verifier") | agents(prover={}), "scenario.agents.prover", "not an agent of solo_verifier"),
        (
            agents(prover={"agent_lr_factor": UNEQUAL}),
            "scenario.agents.prover.agent_lr_factor",
            "set scenario.shared_body to false",
        ),
        (protocol("adp") | agents(prover={"kind": "manual"}), "scenario.agents.prover.kind", "nip only (got adp)"),
        (gi(message_size=2, agents={"prover": {"kind": "manual"}}), "scenario.message_size", "use 1"),
        (
            agents(prover={"num_heads": 3}),
            "scenario.agents.prover.num_heads",
            "does not divide d_transformer 16, use 2 heads",
        ),
        (
            protocol("adp") | {"scenario": {"name": "state_tracking", "agents": {"prover": {"num_heads": 3}}}},
            "scenario.agents.prover.num_heads",
            "does not divide d 64, use 2 heads",
        ),
        (agents(_default={"kind": "random"}), "scenario.agents", "no agent learns (prover, verifier)"),
        # learning
        (ppo(lr=float("inf")), "algorithm.lr", "expected finite number > 0"),
        (ppo(minibatch_size=7), "algorithm.minibatch_size", "use at least 8"),
        (ppo(minibatch_size=2049), "algorithm.minibatch_size", "2048 frames (256 copies of 8 rounds)"),
        (ppo(minibatch_copies=257), "algorithm.minibatch_copies", "at most the 256 copies"),
        (ppo(minibatch_copies=8, minibatch_size=32), "algorithm.minibatch_copies", "leave one of them out"),
        (ppo(clip_value=0.0), "algorithm.clip_value", "> 0, true (clip_epsilon) or false"),
        (ppo(loss="kl_penalty", kl_beta=0), "algorithm.kl_beta", "> 0"),
        (
            {"learners": {"num_learners": 3}},
            "learners.num_learners",
            "256 copies in an iteration cannot be shared evenly, use 2",
        ),
        (
            {"learners": {"num_learners": 16}},
            "algorithm.minibatch_size",
            "16 learners (learners.num_learners), use at least 128",
        ),
        ({"play": {"num_gpus_per_env_runner": 0.5}}, "play.num_gpus_per_env_runner", "raise play.num_env_runners"),
        (
            {"play": {"max_staleness": 1}},
            "play.max_staleness",
            "that learn are those that play, set it to 0 or raise play.num_env_runners",
        ),
        (
            AHEAD | {"algorithm": {"name": "stackelberg"}},
            "play.max_staleness",
            "stackelberg does not correct for the weights that played",
        ),
        (
            AHEAD | {"algorithm": {"name": "reinforce", "max_importance_weight": None}},
            "algorithm.max_importance_weight",
            "got none",
        ),
        ({"evaluation": {"greedy": False, "sampled": False}}, "evaluation.greedy", "nothing would be evaluated"),
        # data
        (pairs(train="/no/such.npz"), "scenario.data.train", "/no/such.npz: no such file"),
        (pairs(test="/no/such.npz"), "scenario.data.test", "nip-ray data graph-isomorphism"),
        (pairs(train=__file__, test=__file__), "scenario.data.test", "this is the training file"),
        (pairs(graph_sizes=[7, 7]), "scenario.data.graph_sizes", "each value once"),
        (pairs(graph_sizes=[6, 7]), "scenario.data.graph_sizes", "no pair with score 3 or more has fewer than 7 nodes"),
        (pairs(non_iso_prop_score_1=0.9), "scenario.data.non_iso_prop_score_2", "1.1, expected at most 1"),
        (
            pairs(non_iso_prop_score_1=0.8, min_wl_score=3),
            "scenario.data.min_wl_score",
            "no made negative has that score",
        ),
        # images
        (classed(source="files"), "scenario.data.train", "missing, the source files needs a parquet file"),
        (classed(source="mnist", train="/no/train.parquet"), "scenario.data.train", "/no/train.parquet: no such file"),
        (classed(source="files", train=__file__, test=__file__), "scenario.data.test", "this is the training file"),
        (classed(binarisation="select_two", selected_classes=[3, 3]), "scenario.data.selected_classes", "got [3, 3]"),
        (
            classed(source="cifar10", binarisation="select_two", selected_classes=[3, 10]),
            "scenario.data.selected_classes",
            "got 10",
        ),
        (
            classed(source="files", train=__file__, test=f"{Path(__file__).parent}/test_load.py", test_share=0.3),
            "scenario.data.test_share",
            "counts where no held-out images are named only (test is), leave one of the two out",
        ),
        (
            classed(source="mnist", test_share=0.3),
            "scenario.data.test_share",
            "counts where a source has no held-out images",
        ),
        (
            images(agents={"verifier": COARSE | {"pretrained_weights": __file__}}),
            "scenario.agents.verifier.sight",
            "leave one of the two",
        ),
        (
            images(agents={"prover": {"pretrained_weights": "/no/weights"}}),
            "scenario.agents.prover.pretrained_weights",
            "no such file",
        ),
        (
            images(num_block_groups=4),
            "scenario.num_block_groups",
            "got 4, but nothing would be left of 8 x 8, use at most 3",
        ),
        (images(central_critic=True), "scenario.central_critic", "a value that sees more than the policy needs a body"),
        (
            images(agents={"prover": {"body_lr_factor": UNEQUAL}}),
            "scenario.agents.prover.body_lr_factor",
            "but they share a body",
        ),
        ({"plugins": ["/no/such.py"]}, "plugins.0", "no such file"),
        ({"plugins": ["json", "no_such_module_of_mine"]}, "plugins.1", "no module named 'no_such_module_of_mine'"),
    ],
)
def test_illegal(data: Data, key: str, said: str) -> None:
    message = refusal(data)
    assert message.startswith(f"{key}: "), message
    assert said in message
    assert "; " not in message, "one fault, one answer"


@pytest.mark.parametrize(
    "data",
    [
        {},
        MESSAGE_GAME,
        {"iterations": 1},  # shorter than every interval: then there is one evaluation and one checkpoint, at the end
        protocol("nip", min_rounds=7),
        protocol("adp", max_rounds=2, min_rounds=1),
        protocol("debate", sequential=True, prover0_first=False, verifier_first=False),
        protocol("debate", zero_knowledge=True, aux_prover_reward_coefficient=100, zero_knowledge_legacy=True)
        | agents(adversarial_verifier={}, simulator={"kind": "random"}),
        protocol("solo_verifier", zero_knowledge=True),
        protocol("solo_verifier") | agents(_default={}),
        agents(prover={"kind": "random", "num_heads": 3, "body_lr_factor": UNEQUAL}),
        agents(prover={"num_heads": 3, "num_transformer_layers": 0}),
        agents(prover={"agent_lr_factor": {"actor": 0, "critic": 0}}),
        agents(prover={}, verifier={}, _default={"kind": "manual", "num_heads": 3}) | protocol("nip"),
        gi(shared_body=False, agents={"prover": {"body_lr_factor": UNEQUAL}}),
        ppo(minibatch_size=2048),
        ppo(minibatch_copies=256),
        {"learners": {"num_learners": 8}},
        {"play": {"num_copies": 3, "num_env_runners": 4}, "learners": {"num_learners": 6}},
        AHEAD | {"learners": {"num_learners": 2}, "algorithm": {"name": "reinforce"}},
        pairs(graph_sizes=[5, 6], non_iso_prop_score_1=0.3, non_iso_prop_score_2=0.7),
        pairs(graph_sizes=[5, 6], train=__file__, test=str(Path(__file__).parent)),
        *(
            images(protocol)
            for protocol in ("nip", "adp", "debate", "mnip", "merlin_arthur", "solo_verifier", "multi_channel_test")
        ),
        # a folder has a part for each
        classed(source="files", train=str(Path(__file__).parent), test=str(Path(__file__).parent)),
        {"plugins": [__file__, "json.decoder"]},
        protocol(
            "nip", payoff={"verifier": {"false_accept": -5, "turns": {"prover": -0.1}}, "prover": {"undecided": -1}}
        ),
        OWN | protocol("criticised", max_rounds=5) | agents(critic={"kind": "random"}),
    ],
)
@pytest.mark.usefixtures("no_plugins")
def test_legal(data: Data) -> None:
    check(config_from_dict(data))


def test_who_learns_for_nothing_is_named() -> None:
    """Not those who do not learn, nor where a table, or the similarity of zero knowledge, pays."""
    nothing = dict.fromkeys(("true_accept", "false_accept", "true_reject", "false_reject", "undecided"), 0)
    many, paid = protocol("multi_channel_test"), {"prover1": {"turns": {"prover1": -1.0}}}
    for data, said in (
        (many, ["protocol multi_channel_test: prover0, prover1, prover2 learn, but"]),
        (many | agents(prover0={"kind": "random"}), ["protocol multi_channel_test: prover1, prover2 learn, but"]),
        (protocol("multi_channel_test", payoff=paid) | agents(prover0={"kind": "random"}), [": prover2 learns, but"]),
        (protocol("multi_channel_test", zero_knowledge=True), []),
        (protocol("nip"), []),
        (
            protocol("judge_panel", payoff=dict.fromkeys(("judge0", "judge1", "judge2"), nothing)),
            [": judge0, judge1, judge2 learn, but"],
        ),
        (MESSAGE_GAME, []),
        (protocol("nip", prover_reward=-1.0), ["prover argues for 'accept', and is paid more for another verdict"]),
        (protocol("adp", verifier_no_guess_reward=1.0), ["protocol: verifier_no_guess_reward without effect"]),
        (
            protocol("nip", max_rounds=2, verifier_first=False, payoff={"prover": {"turns": {"verifier": 1.0}}}),
            ["payoff.prover.turns.verifier w"],
        ),
        (
            protocol("nip", zero_knowledge=True, simulator_reward_coefficient=0.0),
            [": adversarial_verifier, simulator learn, but"],
        ),
        (
            protocol("nip", verifier_reward=5.0) | {"algorithm": {"name": "solo"}},
            ["protocol: verifier_reward without effect"],
        ),
    ):
        found = list(warnings_of(config_from_dict(data)))
        assert len(found) == len(said)
        assert all(part in text for part, text in zip(said, found, strict=True))


def test_all_faults_come_at_once() -> None:
    message = refusal(
        {"plugins": ["/no.py"]} | protocol("adp", sequential=True) | ppo(minibatch_size=1) | agents(judge={})
    )
    assert [fault.partition(":")[0] for fault in message.split("; ")] == [
        "protocol.sequential",
        "scenario.agents.judge",
        "algorithm.minibatch_size",
        "plugins.0",
    ]


def test_what_nobody_learns_can_still_be_evaluated() -> None:
    config = config_from_dict(agents(_default={"kind": "manual"}))
    check(config, training=False)
    with pytest.raises(UserError, match="no agent learns"):
        check(config)


@pytest.mark.parametrize("name", SHIPPED)
def test_rules_refuse_what_build_refuses(name: str) -> None:
    """And nothing else, over every order and a spread of limits."""
    for order in product((True, False), repeat=3):
        orders = dict(zip(("verifier_first", "sequential", "prover0_first"), order, strict=True))
        for longest, first in product((None, 1, 2, 3, 8), (None, 1, 2, 3, 7, 8)):
            params = orders | {"max_rounds": longest, "min_rounds": first}
            if name == "message_game" and first is not None:
                continue  # whose table takes its own min_rounds whatever it is given
            config = config_from_dict(
                protocol(name, **params)
                | gi(name={**BOUND_TO_SCENARIO, "prover_estimator": "state_tracking"}.get(name, "graph_isomorphism"))
            )
            faults = [*protocol_name(config), *protocol_parameters(config)]
            try:
                build(name, **params)
                refused = ""
            except UserError as error:
                refused = str(error)
            assert bool(faults) is bool(refused), (params, faults, refused)
