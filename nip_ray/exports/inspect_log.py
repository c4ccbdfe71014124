"""`export_inspect`: the stored test of a run of language models as a log of Inspect, which `inspect view` and its readers take.

Decisions that matter here:
- a sample is a dialogue; an item that was tested several times has as many epochs. The figures of the log are those of
  `evaluation.json`, computed by the same function from the same dialogues, with their intervals as metadata of the metrics;
- what each agent was shown is not stored by a run, and made again from the dialogue. Tokens and times of calls are not in the log.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.config.plugins import import_plugins
from nip_ray.config.text_rules import chat_shapes, groups, language_agents
from nip_ray.errors import UserError, require
from nip_ray.play.dialogue import Dialogue, LanguageScenario, beginning, shape_chat
from nip_ray.protocols import from_settings
from nip_ray.scenarios.language import LanguageScenarioKind, language_kind
from nip_ray.storage.folder import CONFIG, EXPORTED, RunFolder, read_export
from nip_ray.text.dialogues.runner import read_dialogues, rollout_file
from nip_ray.text.items import stored_items
from nip_ray.text.parts import load_state
from nip_ray.text.training.metrics import dialogue_record
from nip_ray.version import __version__

SUFFIXES = (".eval", ".json")


def export_inspect(run_dir: Path | str, out: Path | str | None = None, iteration: int | None = None) -> Path:
    """Write the dialogues of a test of a run; returns the file.

    out: a file that ends in .eval or .json (none: RUN_DIR/inspect/NAME_ITERATION.eval), which is replaced. iteration: that was tested
    (none: the last one, as in `evaluation.json`). Raises UserError for a run of networks, one without such a test, and a file that cannot
    be written or read.
    """
    folder = RunFolder.open(run_dir)
    config = load_config(folder.path / CONFIG, checked=False)
    if not isinstance(config, TextExperimentConfig):
        raise UserError(f"{run_dir}: its agents are networks, and Inspect's logs are of language models; `nip-ray export hf` takes it")
    require("inspect_ai", "inspect")
    import_plugins(config.plugins)
    if (folder.path / EXPORTED).is_file():
        raise UserError(f"{run_dir}: is an export, which holds no dialogues of a test; name the run")
    chosen = tested_iteration(folder.path, config, iteration)
    target = folder.path / "inspect" / f"{config.name}_{chosen:06d}.eval" if out is None else Path(out)
    if target.suffix not in SUFFIXES:
        raise UserError(f"--out {target}: name a file that ends in {' or '.join(SUFFIXES)}")
    log = _log(folder, config, chosen)
    from inspect_ai.log import write_eval_log

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_eval_log(log, str(target))
    except OSError as error:
        raise UserError(f"--out {target}: cannot be written ({error.strerror}), name a file in a folder that can be") from error
    return target


def tested_iteration(run_dir: Path, config: TextExperimentConfig, iteration: int | None) -> int:
    """`iteration`, or the last one that was tested. Raises UserError where there is no such test."""
    if (run_dir / EXPORTED).is_file():
        return read_export(RunFolder.open(run_dir))["iteration"]
    tested = [number for number in range(1, config.iterations + 1) if rollout_file(run_dir, "test", number - 1).is_file()]
    if not tested:
        raise UserError(f"{run_dir}: this run has no test dialogues; algorithm.test_scheme or evaluate_every says when there are some")
    if iteration is not None and iteration not in tested:
        raise UserError(f"--iteration {iteration}: was not tested, expected one of {', '.join(map(str, tested))}")
    return tested[-1] if iteration is None else iteration


def models_at(folder: RunFolder, iteration: int) -> dict[str, str]:
    """Group -> the model that speaks for it in an export, or that spoke for it when `iteration` (from 1) was tested; of runs that learn
    from tokens, at the end.
    """
    if (folder.path / EXPORTED).is_file():
        return dict(read_export(folder)["models"])
    state = load_state(folder)
    return dict(state.history[iteration - 1]) if iteration <= len(state.history) else state.models()


def shown(model: str) -> str:
    """A model's name for readers: of a folder on this machine its last part."""
    return Path(model).name if Path(model).is_absolute() else model


def _log(folder: RunFolder, config: TextExperimentConfig, iteration: int) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalPlan, EvalPlanStep, EvalResults, EvalSpec, EvalStats
    from inspect_ai.model import ModelConfig

    kind = language_kind(config.scenario)
    scenario = kind.build(from_settings(config.protocol), config.scenario)
    protocol = scenario.protocol
    items = (stored_items(folder.path, kind) or {}).get("test", [])
    dialogues = read_dialogues(rollout_file(folder.path, "test", iteration - 1), {item.id: item for item in items})
    named, settings = models_at(folder, iteration), language_agents(config)
    models = {agent: f"{settings[agent].provider}/{shown(named[group])}" for group, agents in groups(config).items() for agent in agents}
    samples = list(_samples(kind, scenario, items, dialogues, models, {a: (chat_shapes(config)[a], settings[a]) for a in models}))
    record = dialogue_record(dialogues, protocol, groups=kind.groups)
    environment = folder.read_json("environment.json") if (folder.path / "environment.json").is_file() else {}
    created = environment.get("started", "1970-01-01T00:00:00+00:00")
    state = load_state(folder)
    about = {"run": config.name, "iteration": iteration, "seed": config.seed, "protocol": protocol.name, "scenario": config.scenario.name}
    spec = EvalSpec(
        eval_id=f"{state.run_id}-{iteration:06d}",
        run_id=state.run_id,
        task_id=state.run_id,
        created=created,
        task=config.name,
        dataset=EvalDataset(
            name=f"{config.scenario.name}, test",
            samples=len({s.id for s in samples}),
            sample_ids=list(dict.fromkeys(s.id for s in samples)),
        ),
        model=models[protocol.viewpoint],
        model_roles={agent: ModelConfig(model=model) for agent, model in models.items()},
        config=EvalConfig(epochs=max((sample.epoch for sample in samples), default=1)),
        packages={"nip_ray": environment.get("nip_ray", __version__)},
        metadata=about,
    )
    results = EvalResults(
        total_samples=len(samples),
        completed_samples=len(samples),
        scores=_figures(record, protocol.agents, protocol.verifier is not None, len(samples)),
        metadata={"evaluation": record},
    )
    plan = EvalPlan(name="nip_ray", steps=[EvalPlanStep(solver="nip_ray/play", params={"protocol": protocol.name})])
    return EvalLog(
        status="success", eval=spec, plan=plan, results=results, stats=EvalStats(started_at=created, completed_at=created), samples=samples
    )


def _samples(
    kind: LanguageScenarioKind,
    scenario: LanguageScenario,
    items: Sequence[Any],
    dialogues: Sequence[Dialogue],
    models: Mapping[str, str],
    asked: Mapping[str, Any],
) -> Iterator[Any]:
    from inspect_ai.log import EvalSample

    from nip_ray.exports.inspect_samples import PAY, VERDICT, messages_of, outcome_of, output_of, pay_score, sample_parts, verdict_score

    places, epochs = {item.id: number for number, item in enumerate(items)}, Counter[Any]()
    for dialogue in dialogues:
        item = dialogue.item
        epochs[item.id] += 1
        outcome = outcome_of(dialogue, scenario.protocol)
        judged = {} if scenario.protocol.verifier is None else {VERDICT: verdict_score(outcome)}
        yield EvalSample(
            **sample_parts(kind, scenario.protocol, item, places[item.id]),
            epoch=epochs[item.id],
            messages=messages_of(dialogue, scenario.protocol, models),
            output=output_of(dialogue, scenario.protocol, models),
            scores={**judged, PAY: pay_score(outcome)},
            events=list(_events(scenario, dialogue, models, asked)),
            uuid=f"{item.id}-{epochs[item.id]}",
        )


def _events(scenario: LanguageScenario, dialogue: Dialogue, models: Mapping[str, str], asked: Mapping[str, Any]) -> Iterator[Any]:
    """A span for each turn, and in it the call: what the agent was shown, and what it replied."""
    from inspect_ai.event import ModelEvent, SpanBeginEvent, SpanEndEvent
    from inspect_ai.model import GenerateConfig, ModelOutput

    from nip_ray.exports.inspect_samples import chat_messages

    for number, turns in enumerate(dialogue.rounds):
        before = beginning(dialogue, number)
        for turn in turns:
            shape, own = asked[turn.agent]
            place = f"{number + 1}-{turn.agent}"
            told = {"agent": turn.agent, "round": number + 1, "retries": turn.retries, "invalid": turn.invalid}
            yield SpanBeginEvent(id=place, span_id=place, name=f"{turn.agent}, round {number + 1}", metadata=told)
            yield ModelEvent(
                model=models[turn.agent],
                role=turn.agent,
                input=chat_messages(shape_chat(scenario.fenced_chat(before, turn.agent), shape)),
                tools=[],
                tool_choice="none",
                config=GenerateConfig(max_tokens=own.reply_tokens, temperature=own.temperature, top_p=own.top_p),
                output=ModelOutput.from_content(models[turn.agent], turn.raw, "max_tokens" if turn.truncated else "stop"),
                span_id=place,
            )
            yield SpanEndEvent(id=place, span_id=place)


def _figures(record: Mapping[str, Mapping[str, Any]], agents: Sequence[str], judged: bool, count: int) -> list[Any]:
    """The means of the samples' scores, as `evaluation.json` has them."""
    from inspect_ai.log import EvalMetric, EvalScore

    from nip_ray.exports.inspect_samples import FIGURES, PAY, VERDICT

    named = [(name, f"verifier/{name}", VERDICT) for name in FIGURES if judged] + [(agent, f"{agent}/return", PAY) for agent in agents]
    return [
        EvalScore(
            name=name,
            scorer=scorer,
            reducer="mean",
            scored_samples=count,
            metrics={
                "mean": EvalMetric(
                    name="mean", value=record[key]["estimate"], metadata={part: record[key][part] for part in ("lower", "upper", "n")}
                )
            },
        )
        for name, key, scorer in named
        if record[key]["estimate"] is not None
    ]
