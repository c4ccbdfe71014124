"""Every illegal combination of learning options is refused with its key and a way out; what is legal is not."""

from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check, warnings_of
from nip_ray.errors import UserError

Data = dict[str, Any]


def learning(name: str, **keys: Any) -> Data:
    return {"algorithm": {"name": name, **keys}}


def schedules(**named: Data) -> Data:
    return {"schedules": named}


def agents(**named: Data) -> Data:
    return {"scenario": {"agents": named}}


def sequence(*groups: list[str], **keys: Any) -> Data:
    return learning("stackelberg", stackelberg_sequence=list(groups), **keys)


def weights(**named: Data) -> Data:
    return {"initial_weights": named}


def pretrained(*names: str, **keys: Any) -> Data:
    return {"pretraining": {"agents": list(names), **keys}}


def past(**keys: Any) -> Data:
    return {"opponents": keys}


def searching(**keys: Any) -> Data:
    return {"search": keys}


def probe(**keys: Any) -> Data:
    return {"evaluation": {"message_regression": {"enabled": True, **keys}}}


def dqn(**parts: Data) -> Data:
    """Deep Q-learning of poker, changed."""
    base = KUHN | learning("dqn") | {"evaluation": {"sampled": False}}
    return {name: {**base.get(name, {}), **parts.get(name, {})} for name in (*base, *parts)}


RANDOM: Data = {"kind": "random"}
FROZEN: Data = {"agent_lr_factor": {"actor": 0, "critic": 0}}
CONTIGUOUS: Data = {"kind": "contiguous", "period": 4, "start": 1, "stop": 3}
ALTERNATING: Data = {"kind": "alternating", "period": 4, "first_agent_num_rounds": 2}
DEBATE: Data = {"protocol": {"name": "debate"}}
KUHN: Data = {"protocol": {"name": "kuhn_poker"}, "scenario": {"name": "matrix_game", "game": "kuhn_poker"}}
FORCED: Data = {"protocol": {"name": "nip", "force_guess": "y"}}
NIP_DQN: Data = learning("dqn") | {"evaluation": {"sampled": False}}
PROVER_DQN: Data = learning("dqn", trained_roles=["prover"]) | {"evaluation": {"sampled": False}}
MESSAGE_GAME: Data = {"protocol": {"name": "message_game"}, "scenario": {"name": "message_game"}}
DEFAULT_ROLE = "algorithm.roles._default"
SEQUENCE = "algorithm.stackelberg_sequence"

ILLEGAL: list[tuple[Data, str, str]] = [
    # algorithms
    (learning("reinforce", clip_value=0.0), "algorithm.clip_value", "> 0, true (clip_epsilon) or false"),
    (
        learning("ppo", adaptive_lr=True, anneal_lr=True),
        "algorithm.adaptive_lr",
        "anneal_lr sets the learning rate too",
    ),
    (
        learning("ppo", adaptive_lr=True, adaptive_lr_min=0.1, adaptive_lr_max=0.01),
        "algorithm.adaptive_lr_min",
        "more than adaptive_lr_max",
    ),
    (learning("ppo", adaptive_lr=True, lr=0.1), "algorithm.lr", "between 1e-06 and 0.01"),
    (learning("ppo", anneal_lr=True, adaptive_lr_min=1.0), "algorithm.adaptive_lr_min", "counts with adaptive_lr only"),
    (learning("ppo", kl_target=1.0), "algorithm.kl_target", "counts with loss kl_penalty or adaptive_lr only"),
    (learning("ppo", loss="kl_penalty", clip_epsilon=0.1), "algorithm.clip_epsilon", "counts with loss clip"),
    # Stackelberg
    (sequence(["verifier"]), SEQUENCE, "prover has no place in it"),
    (sequence(["verifier"], ["prover"], ["provr"]), SEQUENCE, "provr is not an agent of nip, did you mean prover?"),
    (sequence(["verifier"], [], ["prover"]), SEQUENCE, "empty group"),
    (sequence(["verifier"], ["prover"], mutual=True), SEQUENCE, "everyone shapes everyone"),
    (learning("stackelberg", variant="spg", mutual=True), "algorithm.mutual", "spg needs leaders and followers"),
    # solo
    (learning("solo", agent="provr"), "algorithm.agent", "got provr, did you mean prover?"),
    (
        learning("solo") | agents(verifier=RANDOM),
        "algorithm.agent",
        "verifier is random (scenario.agents.verifier.kind)",
    ),
    (
        learning("solo") | agents(verifier=FROZEN),
        "algorithm.agent",
        "scenario.agents.verifier.agent_lr_factor.actor is 0",
    ),
    (learning("solo", minibatch_size=257), "algorithm.minibatch_size", "256 frames"),
    (learning("solo") | {"play": {"num_env_runners": 2}}, "play.num_env_runners", "learns alone does not play, set"),
    (KUHN | learning("solo", agent="player0"), "algorithm.name", "no labels to learn from"),
    (learning("solo") | schedules(prover=CONTIGUOUS), "schedules.prover", "verifier learns alone"),
    (learning("solo") | pretrained("verifier"), "pretraining.agents", "learns the labels itself"),
    (
        learning("ppo", agents={"provr": {"entropy_coefficient": 0.1}}),
        "algorithm.agents.provr",
        "not an agent of nip, did you mean prover?",
    ),
    (
        learning("ppo", agents={"prover": {"entropy_coefficient": 0.1}}) | agents(prover=RANDOM),
        "algorithm.agents.prover",
        "never learns",
    ),
    # deep Q-learning
    (dqn(evaluation={"sampled": True}), "evaluation.sampled", "dqn values moves"),
    (dqn(play={"num_copies": 128}), "play.num_copies", "dqn has no use for it"),
    (dqn(algorithm={"warm_up": 200_000}), "algorithm.warm_up", "got 200000, more than buffer_size"),
    (dqn(algorithm={"trained_roles": ["player3"]}), "algorithm.trained_roles", "player3 is not an agent of kuhn_poker"),
    (dqn(algorithm={"roles": {"host": {}}}), "algorithm.roles.host", "not an agent of kuhn_poker"),
    (
        dqn(algorithm={"trained_roles": ["player0"]}, scenario={"agents": {"player0": RANDOM}}),
        "algorithm.trained_roles",
        "player0 has nothing to learn",
    ),
    (
        dqn(algorithm={"roles": {"player0": {"batch_size": 2}}}, learners={"num_learners": 3}),
        "algorithm.roles.player0.batch_size",
        "got 2",
    ),
    (
        dqn(algorithm={"roles": {"_default": {"steps_between_rollouts": 1001}}}),
        f"{DEFAULT_ROLE}.steps_between_rollouts",
        "got 1001",
    ),
    (
        dqn(algorithm={"roles": {"player0": {"lr": {"kind": "inverse"}}}}),
        "algorithm.roles.player0.lr.rate",
        "missing, a schedule",
    ),
    (NIP_DQN, "algorithm.trained_roles", "dqn is for agents whose turn is one symbol, and verifier decides"),
    (NIP_DQN | MESSAGE_GAME, "algorithm.trained_roles", "verifier decides"),
    (
        PROVER_DQN | {"scenario": {"message_size": 2}},
        "scenario.message_size",
        "got 2, but dqn is for agents whose turn is one symbol, use 1",
    ),
    # schedules
    (schedules(provr=ALTERNATING), "schedules.provr", "not an agent of nip, did you mean prover?"),
    (
        schedules(prover={"kind": "contiguous", "start": 1, "stop": 2}),
        "schedules.prover.period",
        "needs period, start, stop",
    ),
    (schedules(prover={"kind": "alternating", "period": 3}), "schedules.prover.first_agent_num_rounds", "missing"),
    (schedules(prover={**CONTIGUOUS, "start": 3}), "schedules.prover.stop", "got 3, but start is 3"),
    (schedules(prover={**CONTIGUOUS, "stop": 5}), "schedules.prover.stop", "more than the period of 4"),
    (schedules(prover={**ALTERNATING, "first_agent_num_rounds": 0}), "schedules.prover", "would never learn"),
    (
        schedules(prover={**ALTERNATING, "first_agent_num_rounds": 4, "first_agent": False}),
        "schedules.prover",
        "would never learn",
    ),
    (schedules(prover=CONTIGUOUS) | {"iterations": 1}, "schedules.prover", "would never learn within 1 iterations"),
    (schedules(prover=CONTIGUOUS) | agents(prover=RANDOM), "schedules.prover", "never learns, whatever its schedule"),
    # opponents from the past
    (past() | learning("solo"), "opponents", "not available with solo"),
    (past() | learning("stackelberg"), "opponents", "use ppo or reinforce"),
    (
        past() | {"protocol": {"name": "nip", "zero_knowledge": True}},
        "opponents",
        "not available under protocol.zero_knowledge",
    ),
    (past(priority="even"), "opponents.priority", "counts with sampling prioritised only"),
    (
        past(sampling="prioritised", priority="even", priority_exponent=3),
        "opponents.priority_exponent",
        "priority hard only",
    ),
    (past(every=50) | {"iterations": 50}, "opponents.every", "none is met within 50 iterations"),
    (past(agents=["provr"]), "opponents.agents", "provr is not an agent of nip, did you mean prover?"),
    (past(agents=["prover"]) | DEBATE | agents(prover0=FROZEN), "opponents.agents", "prover is not an agent of debate"),
    (
        past(agents=["prover0"]) | DEBATE | agents(prover0=FROZEN),
        "opponents.agents",
        "prover0 does not learn (scenario.agents.prover0)",
    ),
    (past(agents=["prover", "prover"]), "opponents.agents", "prover is named 2 times"),
    (past() | agents(prover=RANDOM), "opponents", "only verifier learns"),
    (past(draws=30), "opponents.latest", "leaves 51 of 256 copies for 60 opponents"),
    # provers that search, decisions that learn from more than draws
    (searching() | learning("stackelberg"), "search", "use ppo or reinforce"),
    (searching() | learning("solo"), "search", "not available with solo"),
    (searching() | KUHN, "search", "not available under kuhn_poker, which has no verifier"),
    (searching() | {"protocol": {"name": "solo_verifier"}}, "search", "which has no prover"),
    (searching() | {"protocol": {"name": "open_debate", "max_rounds": 6}}, "search", "prover0 chooses its side"),
    (searching() | {"scenario": {"linear_symbols": 2}}, "search", "scenario.linear_symbols is 2"),
    (searching(agents=["provr"]), "search.agents", "provr is not an agent of nip, did you mean prover?"),
    (searching(agents=["verifier"]), "search.agents", "verifier is not a prover, expected some of prover"),
    (
        searching(agents=["prover"]) | agents(prover=FROZEN),
        "search.agents",
        "prover never learns (scenario.agents.prover)",
    ),
    (searching() | agents(prover=RANDOM), "search", "no prover learns"),
    (searching(agents=["prover", "prover"]), "search.agents", "prover is named 2 times"),
    (searching() | {"protocol": {"name": "judge_panel", "panel_rule": "mean"}}, "search", "panel judges by the mean"),
    (searching() | {"protocol": {"name": "judge_panel", "max_rounds": 6}}, "search", "votes in several rounds"),
    (searching() | FORCED, "search", "verdicts are forced"),
    (
        searching() | {"protocol": {"name": "nip", "payoff": {"prover": {"turns": {"prover": -0.1}}}}},
        "search",
        "more than a table",
    ),
    (
        searching() | {"protocol": {"name": "nip", "shared_reward": True, "verifier_scoring": "brier"}},
        "search",
        "score of the verdict",
    ),
    (learning("ppo", verdict_gradient="label") | FORCED, "algorithm.verdict_gradient", "protocol.force_guess decides"),
    (
        learning("ppo", verdict_gradient="expected") | FORCED,
        "algorithm.verdict_gradient",
        "protocol.force_guess decides",
    ),
    (learning("stackelberg", verdict_gradient="expected"), "algorithm.verdict_gradient", "use ppo or reinforce"),
    (KUHN | learning("ppo", verdict_gradient="label"), "algorithm.verdict_gradient", "kuhn_poker has no verdicts"),
    # first weights
    (weights(provr={"run_dir": "RUN"}), "initial_weights.provr", "did you mean prover?"),
    (
        weights(prover={"run_dir": "RUN"}) | agents(prover=RANDOM),
        "initial_weights.prover",
        "is random (scenario.agents.prover.kind)",
    ),
    (weights(prover={}), "initial_weights.prover.run_dir", "missing, name the folder"),
    (weights(prover={"run_dir": "/no/such/run"}), "initial_weights.prover.run_dir", "/no/such/run: no run here"),
    (weights(prover={"run_dir": "UNTRAINED"}), "initial_weights.prover.run_dir", "no checkpoint yet"),
    (
        weights(prover={"run_dir": "RUN", "checkpoint": 3}),
        "initial_weights.prover.checkpoint",
        "none of iteration 3, there is 50, 100",
    ),
    (
        weights(prover={"run_dir": "RUN"}) | pretrained("prover"),
        "initial_weights.prover",
        "pretraining.agents names prover too",
    ),
    # pretraining
    (pretrained("provr"), "pretraining.agents", "provr is not an agent of nip, did you mean prover?"),
    (
        pretrained("prover") | agents(prover=RANDOM),
        "pretraining.agents",
        "prover is random (scenario.agents.prover.kind)",
    ),
    (KUHN | pretrained("player0"), "pretraining.agents", "no labels"),
    # what messages say
    (
        probe(agents=["judge"]),
        "evaluation.message_regression.agents",
        "judge is not an agent of nip, expected one of prover, verifier",
    ),
    (KUHN | probe(), "evaluation.message_regression.enabled", "no labels"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders as the rules see them: a run with two checkpoints, one with none, and no run."""
    root = tmp_path_factory.mktemp("runs")
    for name in (
        "RUN/checkpoints/000050",
        "RUN/checkpoints/000100",
        "RUN/checkpoints/.000150.tmp-1",
        "UNTRAINED/checkpoints",
    ):
        (root / name).mkdir(parents=True)
    for name in ("RUN", "UNTRAINED"):
        (root / name / "config.yaml").write_text("name: other\n", encoding="utf-8")
    return {name: str(root / name) for name in ("RUN", "UNTRAINED")}


def placed(data: Data, runs: dict[str, str]) -> Data:
    """`data` with the folders of `runs` for their names."""
    named = data.get("initial_weights", {})
    made = {
        agent: {**source, **({"run_dir": runs.get(source["run_dir"], source["run_dir"])} if source else {})}
        for agent, source in named.items()
    }
    return {**data, "initial_weights": made}


@pytest.mark.parametrize(("data", "key", "said"), ILLEGAL, ids=[f"{i}-{key}" for i, (_, key, _) in enumerate(ILLEGAL)])
def test_illegal(runs: dict[str, str], data: Data, key: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        check(config_from_dict(placed(data, runs)))
    message = str(caught.value)
    assert message.startswith(f"{key}: "), message
    assert said in message
    assert "; " not in message, "one fault, one answer"


LEGAL: list[Data] = [
    learning("reinforce"),
    learning("reinforce", baseline="critic", clip_value=True),
    learning("stackelberg"),
    learning("stackelberg", mutual=True),
    learning("stackelberg", variant="spg", clip_value=0.1),
    sequence(["prover"], ["verifier"]),
    sequence(["prover", "verifier"]),
    DEBATE | sequence(["verifier"], ["prover1", "prover0"]),
    learning("ppo", adaptive_lr=True),
    learning("solo"),
    learning("solo", agent="prover", minibatch_size=256) | agents(verifier=RANDOM),
    learning("solo", minibatch_size=1)
    | agents(verifier={"agent_lr_factor": {"actor": 1, "critic": 1}, "body_lr_factor": FROZEN["agent_lr_factor"]}),
    learning("solo", minibatch_size=5) | schedules(verifier=CONTIGUOUS),
    PROVER_DQN,
    schedules(prover={}),
    schedules(prover=ALTERNATING, verifier={**ALTERNATING, "first_agent": False}),
    schedules(prover=CONTIGUOUS) | {"iterations": 2},
    weights(prover={"run_dir": "RUN"}),
    weights(prover={"run_dir": "RUN", "checkpoint": 50, "agent": "verifier"}) | pretrained("verifier"),
    pretrained("prover", "verifier"),
    pretrained("prover") | agents(prover={"body_lr_factor": {"actor": 0, "critic": 0}}),
    pretrained("prover") | agents(prover=FROZEN),
    probe(),
    probe(agents=["verifier"]),
    past(agents=["verifier"]),
    KUHN | past(sampling="prioritised", priority="even", draws=4),
    KUHN,
]


@pytest.mark.parametrize("data", LEGAL, ids=range(len(LEGAL)))
def test_legal(runs: dict[str, str], data: Data) -> None:
    check(config_from_dict(placed(data, runs)))


def test_a_zero_knowledge_game_has_two_more_agents(runs: dict[str, str]) -> None:
    secret = {"protocol": {"name": "nip", "zero_knowledge": True}}
    everyone = ["verifier"], ["prover", "adversarial_verifier", "simulator"]
    check(config_from_dict(secret | sequence(*everyone)))
    check(config_from_dict(secret | pretrained("simulator")))
    with pytest.raises(UserError, match="simulator have no place"):
        check(config_from_dict(secret | sequence(["verifier"], ["prover"])))
    with pytest.raises(UserError, match="simulator is not an agent of nip"):
        check(config_from_dict(pretrained("simulator")))


def test_other_runs_are_looked_up_from_where_we_are(runs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(runs["RUN"]).parent)
    check(config_from_dict(weights(prover={"run_dir": "RUN"})))
    monkeypatch.chdir("/")
    with pytest.raises(UserError, match="RUN: no run here"):
        check(config_from_dict(weights(prover={"run_dir": "RUN"})))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (learning("reinforce", critic_loss="l2"), "critic_loss: got l2, but it counts with baseline critic only"),
        (
            learning("stackelberg", variant="lola", clip_epsilon=0.1),
            "clip_epsilon: got 0.1, but it counts with variant",
        ),
        (
            learning("stackelberg", variant="spg", shaping_lr=0.5),
            "shaping_lr: got 0.5, but it counts with variant lola",
        ),
        (learning("stackelberg", variant="psos", ihvp_rank=9), "ihvp_rank: got 9, but it counts with variant spg or"),
        (learning("stackelberg", variant="spg", ihvp_rank=9), ""),
    ],
)
def test_settings_without_an_effect_are_warned_of(data: Data, said: str) -> None:
    """Not refused: sweeps and command lines change the variant over shared settings."""
    found = [line for line in warnings_of(config_from_dict(data)) if "counts with" in line]
    assert [line.startswith(f"algorithm.{said}") for line in found] == [True] * bool(said)
