"""More than two verdicts: who is paid what, what the figures mean, which dialogues and configs are refused."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check as check_config
from nip_ray.errors import UserError
from nip_ray.evaluation.claims import shares, sides
from nip_ray.play.dialogues import rulebook
from nip_ray.protocols import Payment, Protocol, build, check, for_being_right
from nip_ray.protocols.conformance import refuse_labels
from nip_ray.settings.protocol import PayoffEntries, PayoffSettings
from tests.protocols.test_roles import paid

NAMES = ("red", "green", "blue", "grey")
ONE = build("consultancy", one_prover=True, verdicts=NAMES, max_rounds=2, min_rounds=2, verifier_first=False)
SNEAKY, DEBATE = (
    build("helpful_sneaky", verdicts=NAMES),
    build("debate", verdicts=NAMES, max_rounds=2, min_rounds=2, verifier_first=False),
)
TABLE = (
    (1.0, -1.0, -1.0, -1.0, 0.5),
    (-1.0, 1.0, -7.0, -1.0, 0.5),
    (-1.0, -1.0, 1.0, -1.0, 0.5),
    (-1.0, -1.0, -1.0, 1.0, 0.5),
)


def test_what_each_is_paid() -> None:
    """The tensor step and the rulebook of dialogues, for every label, verdict and role, against what the protocols are
    said to pay."""
    for y, decision, seed in product(range(4), range(5), (0, 1, 2, 3, 65535)):
        judged = 1.0 if decision == y else -1.0
        helpful = SNEAKY.role_of(seed) == "helpful"
        decided = decision != ONE.undecided
        assert paid(ONE, seed, y, decision) == {"prover": float(decision == seed % 4), "verifier": judged}
        assert paid(SNEAKY, seed, y, decision) == {
            "prover": float(decided and (decision == y) == helpful),
            "verifier": judged,
        }
        assert paid(DEBATE, seed, y, decision) == {
            **{f"prover{v}": float(decision == v) for v in range(4)},
            "verifier": judged,
        }
        confidence = 1.0 if decided else None
        for protocol in (SNEAKY, DEBATE):
            assert rulebook(protocol).settle(1, seed, y, confidence, (), decision).rewards == paid(
                protocol, seed, y, decision
            )
        outcome = rulebook(ONE).settle(1, seed, y, confidence, (("prover", seed % 4),), decision)
        assert (outcome.verdict, outcome.confidence, outcome.ended) == (decision, confidence, True)
    payoff = {"verifier": PayoffSettings(table=TABLE), "prover2": PayoffSettings(undecided=-2)}
    priced = build("debate", verdicts=NAMES, payoff=payoff, max_rounds=2, min_rounds=2, verifier_first=False)
    assert [paid(priced, 0, 1, decision)["verifier"] for decision in range(5)] == list(TABLE[1])
    assert (paid(priced, 0, 1, 4)["prover2"], paid(priced, 0, 1, 2)["prover2"]) == (-2, 1)
    bonus = replace(DEBATE, payment=replace(DEBATE.payment, function=lambda ends: {"verifier": ends.confidence_B}))
    check(bonus)
    assert [paid(bonus, 0, 1, decision)["verifier"] for decision in (1, 2, 4)] == [2, 0, -1]


def test_who_chooses_chooses_a_verdict() -> None:
    chooses = build("open_consultancy", verdicts=NAMES[:3])
    seeds = torch.tensor([0, 7, 65535, 65535])
    after = chooses.chosen(torch.zeros_like(seeds), seeds, torch.tensor([2, 1, 2, 3]))
    assert [chooses.role_of(int(seed)) for seed in after] == ["blue", "green", "blue", chooses.role_of(65535)]
    assert int(after.max()) < 2**16


def test_figures_are_what_they_are_said_to_be() -> None:
    """Against their definitions, counted one episode at a time."""
    random = np.random.default_rng(0)
    y_B, verdict_B, seed_B = (
        random.integers(4, size=500),
        random.integers(5, size=500),
        random.integers(2**16, size=500),
    )
    episodes = list(zip(y_B.tolist(), verdict_B.tolist(), seed_B.tolist()))

    def share(name: str, protocol: Protocol) -> tuple[int, int]:
        hit_B, of_B = shares(protocol, verdict_B, y_B, seed_B)[name]
        assert not (hit_B & ~of_B).any()
        return int(hit_B.sum()), int(of_B.sum())

    def counted(hits: list[bool]) -> tuple[int, int]:
        return sum(hits), len(hits)

    assert share("completeness", ONE) == counted([v == y for y, v, s in episodes if s % 4 == y])
    assert share("soundness", ONE) == counted([v == y for y, v, s in episodes if s % 4 != y])
    assert share("completeness/blue", ONE) == counted([v == y for y, v, s in episodes if s % 4 == y == 2])
    assert share("soundness/blue", ONE) == counted([v not in (2, 4) for y, v, s in episodes if s % 4 == 2 != y])
    assert share("soundness", SNEAKY) == counted([v == y for y, v, s in episodes if s % 2 == 1])
    assert share("soundness/blue", SNEAKY) == counted(
        [v not in (2, 4) for y, v, s in episodes if s % 2 == 1 and y != 2]
    )
    for everyone in (DEBATE, build("solo_verifier", verdicts=NAMES)):
        assert share("soundness", everyone) == share("completeness", everyone) == share("accuracy", everyone)
        assert share("soundness/red", everyone) == counted([v not in (0, 4) for y, v, s in episodes if y != 0])
    two = build("nip")
    sound_B, of_B = shares(two, verdict_B % 3, y_B % 2, seed_B)["soundness"]
    assert (sound_B == ((verdict_B % 3 == 0) & (y_B % 2 == 0))).all()
    assert (of_B == (y_B % 2 == 0)).all()
    side_BA = sides(SNEAKY, seed_B, y_B)
    assert (side_BA[:, 0] == np.where(seed_B % 2 == 0, 1, -1)).all()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("nip", {}, r"protocol.verdicts: nip is defined for reject and accept alone"),
    ("judge_panel", {}, r"protocol.verdicts: judge_panel is defined for reject and accept alone"),
    ("debate", dict(verdicts=("no", "yes")), r"protocol.verdicts: got no, yes, expected reject and accept"),
    ("debate", dict(verdicts=("a", "b", "a")), r"verdicts must be names of letters, digits and _, each once"),
    ("debate", dict(verdicts=("a", "b", "undecided")), r"verdicts: 'undecided' is what having none is called"),
    ("debate", dict(verifier_scoring="brier"), r"verifier_scoring brier: is defined for two verdicts"),
    (
        "debate",
        dict(payoff={"verifier": PayoffSettings(false_accept=-5)}),
        r"payoff.verifier.false_accept: is for two verdicts",
    ),
    ("debate", dict(payoff={"verifier": PayoffSettings(table=TABLE[:3])}), r"payoff.verifier.table: must have 4 rows"),
    (
        "helpful_sneaky",
        dict(payoff={"prover": PayoffSettings(by_role={"sneaky": PayoffEntries(true_accept=1)})}),
        r"payoff.prover.by_role.sneaky.true_accept: is for two verdicts",
    ),
]


@pytest.mark.parametrize(("name", "params", "said"), REFUSED, ids=[said[:40] for _, _, said in REFUSED])
def test_what_is_defined_for_two_is_refused_by_name(name: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build(name, **{"verdicts": NAMES, **params})


def test_a_table_must_fit_its_verdicts() -> None:
    unfit = replace(DEBATE, payment=Payment({"verifier": for_being_right(1, -1, -1)}))
    with pytest.raises(UserError, match="verdicts: has 4, but its payment is made for 2"):
        check(unfit)
    for labels, said in (
        ([0, 1, 4], "has the labels 4, but 'debate' has 4 verdicts"),
        ([0, 1, 3], "has the label of blue"),
    ):
        with pytest.raises(UserError, match=said):
            refuse_labels(DEBATE, "mine", labels)
    for scenario, data, said in (
        ("graph_isomorphism", {}, "protocol.verdicts: got 4, but graph_isomorphism has two labels"),
        ("image_classification", {}, "got 4, but scenario.data.binarisation merge makes 2 labels"),
        (
            "image_classification",
            {"binarisation": "classes"},
            "got 4, but scenario.data.binarisation classes makes 10 labels",
        ),
    ):
        config = config_from_dict(
            {"protocol": {"name": "debate", "verdicts": list(NAMES)}, "scenario": {"name": scenario, "data": data}}
        )
        with pytest.raises(UserError, match=said):
            check_config(config)
