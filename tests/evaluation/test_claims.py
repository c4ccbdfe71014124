"""Agent score difference: closed forms by protocol, who counts as honest, and an interval that covers as often as it
says."""

import numpy as np
import pytest

from nip_ray.evaluation.claims import score_difference, shares, sides
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, build


def drawn(seed: int, n: int = 500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Episode seeds, labels, and verdicts of which some are undecided."""
    random = np.random.default_rng(seed)
    return (
        random.integers(0, 1000, n),
        random.integers(0, 2, n),
        random.choice([REJECT, ACCEPT, CONTINUE], n, p=[0.5, 0.4, 0.1]),
    )


def test_one_prover_for_acceptance_earns_completeness_less_soundness_error() -> None:
    protocol = build("nip")
    seed_B, y_B, verdict_B = drawn(0)
    return_BA = np.stack([verdict_B == ACCEPT, np.full(len(y_B), 9.0)], axis=1).astype(float)
    found = score_difference(return_BA, sides(protocol, seed_B, y_B))
    expected = (verdict_B[y_B == 1] == ACCEPT).mean() - (verdict_B[y_B == 0] == ACCEPT).mean()
    assert found.estimate == pytest.approx(expected, abs=1e-9)


def test_in_a_debate_right_verdicts_less_wrong_ones() -> None:
    protocol = build("debate")
    seed_B, y_B, verdict_B = drawn(1)
    return_BA = np.stack([verdict_B == REJECT, verdict_B == ACCEPT, np.zeros(len(y_B))], axis=1).astype(float)
    found = score_difference(return_BA, sides(protocol, seed_B, y_B))
    gain_B = np.where(verdict_B == CONTINUE, 0.0, np.where(verdict_B == y_B, 1.0, -1.0))
    assert found.estimate == pytest.approx(gain_B.mean(), abs=1e-9)
    assert found.lower is not None
    half = 1.9647293909876649 * gain_B.std(ddof=1) / np.sqrt(500)  # Student's, of 499 degrees of freedom
    assert found.estimate is not None
    assert found.estimate - found.lower == pytest.approx(half, abs=1e-9)


@pytest.mark.parametrize("name", ["helpful_sneaky", "consultancy"])
def test_where_a_role_is_drawn_it_decides(name: str) -> None:
    protocol = build(name, **({"one_prover": True} if name == "consultancy" else {}))
    seed_B, y_B, _ = drawn(2)
    side_BA = sides(protocol, seed_B, y_B)
    role_B = [protocol.role_of(seed) for seed in seed_B.tolist()]
    honest = [
        role == "helpful" or (role, y) in {("accept", 1), ("reject", 0)}
        for role, y in zip(role_B, y_B.tolist(), strict=True)
    ]
    assert side_BA[:, 0].tolist() == [1 if one else -1 for one in honest]
    assert not side_BA[:, 1].any(), "a verifier is neither"


def test_who_is_after_no_verdict_is_neither() -> None:
    for protocol in (build("solo_verifier"), build("message_game"), build("kuhn_poker")):
        assert not sides(protocol, np.arange(4), np.array([0, 1, 0, 1])).any()
    assert score_difference(np.ones((3, 2)), np.array([[1, 0]] * 3)).estimate is None, "nobody lied"
    assert score_difference(np.ones((2, 2)), np.array([[1, 0], [-1, 0]])).lower is None, "nobody departs from the means"


def test_several_plays_of_an_instance_are_no_more_instances() -> None:
    seed_B, y_B, verdict_B = drawn(3)
    return_BA, side_BA = np.stack([verdict_B == ACCEPT, y_B], axis=1).astype(float), sides(build("nip"), seed_B, y_B)
    once = score_difference(return_BA, side_BA)
    thrice = score_difference(
        *(np.repeat(x, 3, axis=0) for x in (return_BA, side_BA)), np.repeat(np.arange(len(y_B)), 3)
    )
    assert [thrice.estimate, thrice.lower, thrice.upper] == pytest.approx(
        [once.estimate, once.lower, once.upper], abs=1e-9
    )
    assert thrice.n == once.n


@pytest.mark.parametrize("name", ["nip", "debate"])
def test_the_interval_covers_as_often_as_it_says(name: str) -> None:
    """Accepted: 8 of 10 true claims, 3 of 10 false ones; so 0.5 for one prover, and (0.8 + 0.7) / 2 right of all in a
    debate."""
    protocol, random, held = build(name), np.random.default_rng(4), 0
    truth = {"nip": 0.5, "debate": 0.5}[name]
    for _ in range(2000):
        y_B = random.integers(0, 2, 200)
        accept_B = random.random(200) < np.where(y_B == 1, 0.8, 0.3)
        pay = [~accept_B, accept_B, accept_B] if name == "debate" else [accept_B, accept_B]
        found = score_difference(np.stack(pay, axis=1).astype(float), sides(protocol, np.zeros(200, dtype=int), y_B))
        assert found.lower is not None
        assert found.upper is not None
        held += found.lower <= truth <= found.upper
    assert 0.94 <= held / 2000 <= 0.97


@pytest.mark.parametrize("name", ["consultancy", "merlin_arthur"])
@pytest.mark.parametrize("one_prover", [False, True])
def test_a_prover_without_a_turn_argues_for_nothing(name: str, one_prover: bool) -> None:
    """Of three verdicts: the episode's prover (or role) argues for one, whoever of them it is."""
    options = {"one_prover": True} if one_prover else {}
    protocol, random = build(name, verdicts=("zero", "one", "two"), **options), np.random.default_rng(5)
    seed_B, y_B, verdict_B = random.integers(0, 999, 600), random.integers(0, 3, 600), random.integers(0, 4, 600)
    argued_B = seed_B % 3
    found = {
        key: (int(hit_B.sum()), int(of_B.sum()))
        for key, (hit_B, of_B) in shares(protocol, verdict_B, y_B, seed_B).items()
    }
    true_B, right_B = argued_B == y_B, verdict_B == y_B
    assert found["completeness"] == ((right_B & true_B).sum(), true_B.sum())
    assert found["soundness"] == ((right_B & ~true_B).sum(), (~true_B).sum())
    own_B = true_B & (y_B == 1)
    assert found["completeness/one"] == ((right_B & own_B).sum(), own_B.sum())
    lied_B = ~true_B & (argued_B == 1)
    assert found["soundness/one"] == ((lied_B & (verdict_B != 1) & (verdict_B != 3)).sum(), lied_B.sum())
    side_BA = sides(protocol, seed_B, y_B)
    assert (np.abs(side_BA).sum(1) == 1).all()
