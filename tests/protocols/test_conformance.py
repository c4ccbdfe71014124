"""A protocol of one's own in a few lines, and every fault that `check` must name."""

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.protocols import (
    ACCEPT,
    REJECT,
    Payment,
    Protocol,
    ProtocolParams,
    build,
    check,
    for_verdict,
    register,
    start,
    step,
)


def cross_examination(params: ProtocolParams) -> Protocol:
    """Two advocates give evidence; each is questioned by the other, the seed says who goes first; the judge hears both
    and decides."""

    def half(witness: str, examiner: str) -> list[tuple[tuple[str, str], ...]]:
        return [((witness, "stand"),), ((examiner, "stand"), ("judge", f"{witness}_note")), ((witness, "stand"),)]

    bench = [(("judge", "accuser_note"), ("judge", "defender_note"))]
    accuser, defender = half("accuser", "defender"), half("defender", "accuser")
    return Protocol(
        name="cross_examination",
        agents=("judge", "accuser", "defender"),
        channels=("stand", "accuser_note", "defender_note"),
        sees={
            "judge": ("stand", "accuser_note", "defender_note"),
            "accuser": ("stand", "accuser_note"),
            "defender": ("stand", "defender_note"),
        },
        turns=(tuple(accuser + defender + bench), tuple(defender + accuser + bench)),
        max_rounds=params.max_rounds or 7,
        min_rounds=params.min_rounds or 7,
        payment=Payment.from_params(params, {"accuser": REJECT, "defender": ACCEPT}, "judge"),
        verifier="judge",
        force_guess=params.force_guess,
    )


GOOD = cross_examination(ProtocolParams())


def test_own_protocol_registers_in_forty_lines() -> None:
    assert len(inspect.getsource(cross_examination).splitlines()) + 2 <= 40  # one line to import, one to register
    register("cross_examination", cross_examination)
    built = build("cross_examination", prover_reward=3.0)
    assert built.payment.payoff["accuser"] == for_verdict(REJECT, 3.0)
    assert built == replace(GOOD, payment=built.payment)
    with pytest.raises(UserError, match="cross_examination"):
        build("no such protocol")


def test_own_protocol_plays() -> None:
    check(GOOD)
    assert (GOOD.verifier_index, GOOD.provers, GOOD.verifier_turns) == (0, ("accuser", "defender"), 3)
    opening = GOOD.active(torch.zeros(2, dtype=torch.int64), torch.tensor([4, 5]))
    assert opening.nonzero().tolist() == [[0, 1, 0], [1, 2, 0]]
    state = start(GOOD, torch.tensor([0, 1, 1]), torch.tensor([4, 5, 65535]))
    decision_BA = torch.tensor([[0, 1, 1], [0, 1, 1], [2, 0, 0]])
    for _ in range(6):
        state, outcome = step(GOOD, state, decision_BA)
        assert outcome.reward_BA.eq(0).all()
        assert not state.ended_B.any()
    state, outcome = step(GOOD, state, decision_BA)
    assert outcome.reward_BA.tolist() == [[1.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]
    assert state.done_B.tolist() == [True, True, False]
    assert state.exhausted_B.tolist() == [False, False, True]


JUDGE = (("judge", "stand"),)
SILENT_FOURTH = (*GOOD.turns[0][:4], (), *GOOD.turns[0][5:])
JUDGE_NEVER = ((("accuser", "stand"),),)
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "blind writer": (
        {"sees": {**GOOD.sees, "defender": ("defender_note",)}},
        "'defender' writes to 'stand' but does not see it",
    ),
    "blind verifier": (
        {"sees": {**GOOD.sees, "judge": ("stand", "accuser_note")}},
        "'judge' writes to 'defender_note' but does not see",
    ),
    "silent round": ({"turns": (SILENT_FOURTH, GOOD.turns[1])}, r"no agent speaks in round 4 \(seed class 0\)"),
    "mute verifier": ({"turns": (JUDGE_NEVER,)}, r"the verifier has no turn.*never decide \(seed class 0\)"),
    "decides too early": (
        {"turns": (GOOD.turns[0][:6],), "max_rounds": 6, "min_rounds": 6},
        "the verifier has no turn from round 5 on",
    ),
    "not a number": (
        {"payment": Payment({"judge": for_verdict(ACCEPT, float("nan"))})},
        r"payoff\['judge'\]: must be a finite number",
    ),
    "too large for float32": (
        {"payment": Payment({"accuser": for_verdict(ACCEPT, 1e39)})},
        r"payoff\['accuser'\].*float32",
    ),
    "paid for no verdict": ({"payment": Payment({"judge": ((0, 0), (0, 0))})}, r"payoff\['judge'\] must have a row"),  # type: ignore[dict-item]
    "payment for nobody": (
        {"payment": Payment({"verifier": for_verdict(ACCEPT, 1)})},
        r"payoff\['verifier'\]: no agent",
    ),
    "turns of nobody": (
        {"payment": Payment(turns={"judge": {"clerk": 1.0}})},
        r"turns\['judge'\]\['clerk'\] must name two agents",
    ),
    "turns without a price": (
        {"payment": Payment(turns={"judge": {"judge": float("inf")}})},
        "must be a finite number",
    ),
    **{
        f"function {what}": ({"payment": replace(GOOD.payment, function=function)}, f"payment.function.*{said}")
        for what, function, said in (
            ("of nobody", lambda ends: {"clerk": ends.confidence_B}, "mapping of some of"),
            ("of one amount", lambda ends: {"judge": ends.confidence_B.sum()}, "shape"),
            ("of batches", lambda ends: {"judge": ends.confidence_B.cumsum(0)}, "depends on other copies"),
            ("of chance", lambda ends: {"judge": torch.rand(len(ends.y_B))}, "second call"),
            ("without end", lambda ends: {"judge": 1 / ends.confidence_B}, "finite"),
            ("with traces", lambda ends: {"judge": ends.confidence_B.mul_(0)}, "must not change"),
        )
    },
    "unknown channel in sees": (
        {"sees": {**GOOD.sees, "judge": (*GOOD.channels, "gallery")}},
        "channel 'gallery', which does not exist",
    ),
    "unknown channel in turns": (
        {"turns": ((JUDGE, (("judge", "gallery"),)),)},
        r"\('judge', 'gallery'\), which is not an agent and",
    ),
    "unknown agent in turns": (
        {"turns": ((JUDGE, (("clerk", "stand"),)),)},
        r"\('clerk', 'stand'\), which is not an agent and",
    ),
    "unknown agent in sees": ({"sees": {**GOOD.sees, "clerk": ()}}, "`sees` must name every agent.*clerk"),
    "unknown verifier": ({"verifier": "jury"}, "verifier 'jury' is not among the agents"),
    "agent twice": (
        {"agents": ("judge", "accuser", "defender", "accuser")},
        "agents must be named, each once.*accuser.*accuser",
    ),
    "no channels": ({"channels": ()}, "channels must be named, each once"),
    "no rounds": ({"max_rounds": 0}, r"max_rounds must be at least 1 \(got 0\)"),
    "min above max": ({"min_rounds": 8}, r"min_rounds must lie between 1 and max_rounds 7 \(got 8\)"),
    "no seed class": ({"turns": ()}, "`turns` needs at least one seed class"),
    "turns one level too shallow": ({"turns": GOOD.turns[0]}, "`turns`"),
    "goal of nobody": (
        {"payment": replace(GOOD.payment, goals={"witness": ACCEPT})},
        r"goals\['witness'\].*must map a prover",
    ),
    "goal that is no verdict": (
        {"payment": replace(GOOD.payment, goals={"accuser": 2})},
        r"goals\['accuser'\] = 2.*reject \(0\) or",
    ),
    "unknown force_guess": ({"force_guess": "two"}, "force_guess"),
}


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_check_names_the_fault(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        check(replace(GOOD, **change))
    assert str(caught.value).startswith("protocol 'cross_examination': ")


def test_check_lists_several_faults_at_once() -> None:
    with pytest.raises(UserError) as caught:
        check(
            replace(
                GOOD, sees={**GOOD.sees, "defender": ("balcony",)}, verifier="jury", channels=(*GOOD.channels, "stand")
            )
        )
    for part in ("each once", "'jury'", "'balcony'", "'defender' writes to 'stand'"):
        assert part in str(caught.value)
