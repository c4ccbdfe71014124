"""Image classification in play: what each agent sees, entry by entry; what a coarse sight hides; every protocol; ids,
groups, pictures."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nip_ray.errors import UserError
from nip_ray.play.conformance import check_scenario
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.rollout import Rollout, own_rows
from nip_ray.protocols import build, check
from nip_ray.scenarios.image_classification.build import build_image_classification
from nip_ray.scenarios.image_classification.scenario import ImageClassification
from nip_ray.seeding import generator
from nip_ray.settings.image_classification import ImageAgentSettings, ImageClassificationSettings, ImageDataSettings
from tests.rllib.experiments import game_id
from tests.rllib.matrix import PROOFS
from tests.scenarios.image_classification.files import image_scenario, random_images, random_pixels, write

SPEECH: dict[str, int] = dict(message_size=2, linear_symbols=3)


def made(protocol: dict[str, Any], **options: Any) -> ImageClassification:
    return image_scenario(build(protocol["name"], **{k: v for k, v in protocol.items() if k != "name"}), **options)


def played(scenario: ImageClassification, count: int = 8, greedy: bool = False) -> Rollout:
    agents = {name: scenario.build_agent(name, i).eval() for i, name in enumerate(scenario.protocol.agents)}
    ids = scenario.ids("train")[torch.arange(count) % scenario.num_train]
    noise = None if greedy else generator(3, "noise")
    return play_rollout(BatchedPlay(scenario), agents, ids, torch.arange(count), noise)


def slow_counts(tokens: Tensor, rounds: int, reads: list[int], width: int, symbols: int, before: int) -> Tensor:
    """(R * channels * M, S) of one copy, entry by entry; tokens (R, A, C, M)."""
    counts = torch.zeros(rounds, len(reads), width, symbols)
    for r in range(before):
        for agent in range(tokens.shape[1]):
            for place, channel in enumerate(reads):
                for m in range(width):
                    if tokens[r, agent, channel, m] >= 0:
                        counts[r, place, m, tokens[r, agent, channel, m]] += 1
    return counts.flatten(0, 2)


@pytest.mark.parametrize("protocol", PROOFS, ids=game_id)
@pytest.mark.parametrize("options", [{}, SPEECH], ids=["plain", "speech"])
def test_every_agent_sees_what_was_said_where_it_reads_and_nothing_else(
    protocol: dict[str, Any], options: dict[str, int]
) -> None:
    scenario = made(protocol, **options)
    check(scenario.protocol)
    rollout, width = played(scenario), scenario.message_size
    for agent in scenario.protocol.agents:
        found = own_rows(scenario, rollout, agent)
        reads = [c for c, name in enumerate(scenario.protocol.channels) if name in scenario.protocol.sees[agent]]
        for n, (copy, round) in enumerate(zip(found.copy_N.tolist(), found.round_N.tolist(), strict=True)):
            rounds, symbols = scenario.protocol.max_rounds, scenario.num_symbols
            history = slow_counts(rollout.main_BRACM[copy], rounds, reads, width, symbols, round)
            assert torch.equal(found.obs["history"][n].flatten(1), history)
            latest = history.view(rounds, -1, symbols)[round - 1] if round else torch.zeros(len(reads) * width, symbols)
            assert torch.equal(found.obs["latest"][n].flatten(1), latest)
            if rollout.linear_BRACM is not None:
                linear = slow_counts(rollout.linear_BRACM[copy], rounds, reads, width, 3, round)
                assert torch.equal(found.obs["linear_history"][n], linear.flatten())
            pixels = scenario.pixels_ICHW[rollout.id_B[copy]].float() / 255
            assert torch.allclose(found.obs["image"][n], pixels, atol=1e-6)


@pytest.mark.parametrize("protocol", PROOFS, ids=game_id)
def test_every_protocol_finds_a_scenario_that_keeps_its_promises(protocol: dict[str, Any]) -> None:
    names = build(protocol["name"], **{k: v for k, v in protocol.items() if k != "name"}).agents
    coarse = {name: dict(sight="coarse", building_block_type="residual_basic") for name in names[-2:]}
    check_scenario(made(protocol, images=random_images(40), agents=coarse, **SPEECH))


def slow_sight(scenario: ImageClassification, whole_CHW: Tensor, named: set[int]) -> Tensor:
    """Every part its mean, but for those named; the parts are what a map of the grid looks like when it is drawn as
    large as the image."""
    seen = whole_CHW.clone()
    parts = torch.arange(scenario.num_symbols).view(1, 1, *scenario.grid)
    drawn_HW = F.interpolate(parts.float(), whole_CHW.shape[1:], mode="nearest")[0, 0]
    for part in range(scenario.num_symbols):
        if part not in named:
            place_HW = drawn_HW == part
            seen[:, place_HW] = whole_CHW[:, place_HW].mean(1, keepdim=True)
    return seen


@pytest.mark.parametrize("size", [(3, 8, 6), (1, 9, 7)])
@pytest.mark.parametrize("name", ["nip", "debate", "merlin_arthur"])
def test_a_coarse_sight_sees_in_full_what_others_named_where_it_reads(name: str, size: tuple[int, int, int]) -> None:
    protocol = build(name)
    sights = {agent: dict(sight="coarse") for agent in protocol.agents if agent != "prover"}
    scenario = image_scenario(protocol, random_images(size=size), agents=sights, message_size=2)
    rollout = played(scenario)
    for index, agent in enumerate(protocol.agents):
        found = own_rows(scenario, rollout, agent)
        reads = [c for c, channel in enumerate(protocol.channels) if channel in protocol.sees[agent]]
        some = False
        for n, (copy, round) in enumerate(zip(found.copy_N.tolist(), found.round_N.tolist(), strict=True)):
            others = [a for a in range(len(protocol.agents)) if a != index]
            named = set(rollout.main_BRACM[copy, :round][:, others][:, :, reads].flatten().tolist()) - {-1}
            whole = scenario.pixels_ICHW[rollout.id_B[copy]].float() / 255
            expected = whole if agent == "prover" else slow_sight(scenario, whole, named)
            assert torch.allclose(found.obs["image"][n], expected, atol=1e-6)
            some = some or bool(named)
        assert some or name == "merlin_arthur" or agent == "prover"


def test_a_central_critic_of_a_coarse_agent_sees_the_whole_image_and_the_label() -> None:
    scenario = image_scenario("mnip", agents={"verifier": dict(sight="coarse")}, central_critic=True)
    found = own_rows(scenario, played(scenario), "verifier")
    whole = scenario.pixels_ICHW[scenario.ids("train")].float() / 255
    network = scenario.build_agent("verifier", 0)
    assert bool((found.obs["state_image"][:, None] == whole[None]).flatten(2).all(2).any(1).all())
    changed = {**found.obs, "state_image": 1 - found.obs["state_image"]}
    assert not torch.equal(network(found.obs)[1], network(changed)[1])
    assert torch.equal(network(found.obs)[0].message, network(changed)[0].message)
    assert set(found.obs["label"].tolist()) <= {0, 1}


def test_digits_stand_in_one_table_with_balanced_labels() -> None:
    scenario = build_image_classification(build("nip"), ImageClassificationSettings())
    train, test = scenario.ids("train"), scenario.ids("test")
    assert train.tolist() + test.tolist() == list(range(len(scenario.label_I)))
    for ids in (train, test):
        assert float(scenario.label_I[ids].float().mean()) == 0.5
    assert scenario.grid == (4, 4)
    assert scenario.num_symbols == 16
    classes, labels = scenario.group_I()["class"], scenario.label_I
    assert [len(set(labels[classes == number].tolist())) for number in range(10)] == [1] * 10
    kinds = scenario.symbol_kinds(train[:3], torch.tensor([0, 5, 15]))
    assert kinds.tolist() == [0, 5, 15]


def test_a_run_can_be_examined_on_a_file_of_images(tmp_path: Path) -> None:
    pixels = random_pixels(6, (1, 8, 8))
    path = write(tmp_path / "images.parquet", pixels, [0, 1, 2, 3, 4, 5])
    given = ImageClassificationSettings(data=ImageDataSettings(num_test=20, test_share=0.3, balanced=False))
    scenario = build_image_classification(build("nip"), given, str(path))
    found = scenario.instance_content(scenario.ids("test"))
    assert torch.allclose(found["pixels"], torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255)
    own = build_image_classification(build("nip"), given)
    content = [made.instance_content(made.ids("train")) for made in (own, scenario)]
    assert torch.allclose(content[0]["pixels"], content[1]["pixels"], atol=0.5 / 255), (
        "training images stay the run's own"
    )
    assert not own.occurring().any()
    assert scenario.occurring().tolist() == [False] * 6
    label = {int(c): int(y) for c, y in zip(own.class_I, own.label_I, strict=True)}
    assert found["label"].tolist() == [label[number] for number in range(6)]


def test_what_cannot_be_built_is_refused_with_its_key() -> None:
    protocol = build("nip")
    cases = [
        (
            ImageClassificationSettings(num_block_groups=4),
            "num_block_groups: got 4, but nothing would be left of 8 x 8 x 1, use at most 3",
        ),
        (ImageClassificationSettings(agents={"judge": ImageAgentSettings()}), r"\['judge'\] do not play 'nip'"),
        (
            ImageClassificationSettings(agents={"prover": ImageAgentSettings(pretrained_weights="/no/such")}),
            "/no/such: no weights here",
        ),
        (ImageClassificationSettings(data=ImageDataSettings(num_train=10_000)), "num_train: got 10000"),
    ]
    for settings, message in cases:
        with pytest.raises(UserError, match=message):
            build_image_classification(protocol, settings)
