"""Spans of a run of language agents as a collector of OTLP on loopback gets them."""

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.runs.experiment import run_experiment
from nip_ray.settings.tracking import TracesSettings, TrackingSettings, WandbSettings
from nip_ray.text.dialogues.records import read_calls
from nip_ray.tracking import RunInfo, check_trackers, open_trackers, traces
from tests.text.cooperation import PRICES, config, roles, write_config
from tests.text.loopback import serving
from tests.text.provider import API_KEY, provider_thread

PUBLISHED = {
    value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_") and isinstance(value, str)
}
KEY = "canary-of-a-collectors-key-31"
WEAVE = TracesSettings(enabled=True, weave=True)
ONLINE = WandbSettings(enabled=True, project="proofs", entity="team")


class Collector:
    """What came: spans as dictionaries with the attributes of their resource, and the headers that they came with."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.resources: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.text = ""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        sent = ExportTraceServiceRequest.FromString(body)
        self.requests.append((request.path, dict(request.headers)))
        self.text += str(sent)
        for group in sent.resource_spans:
            self.resources.append(attributes(group.resource.attributes))
            for scope in group.scope_spans:
                self.spans += [
                    {
                        "name": span.name,
                        "id": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "trace": span.trace_id.hex(),
                        "s": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        "error": span.status.code == 2,
                        "events": [event.name for event in span.events],
                        **attributes(span.attributes),
                    }
                    for span in scope.spans
                ]
        return web.Response(body=b"", content_type="application/x-protobuf")

    def named(self, first_word: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"].split()[0] == first_word]


def attributes(pairs: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return [plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {pair.key: plain(pair.value) for pair in pairs}


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector, and its address."""
    collector, app = Collector(), web.Application(client_max_size=2**26)
    app.router.add_post("/{path:.*}", collector.take)
    with serving(app) as port:
        yield collector, f"http://127.0.0.1:{port}"


def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracking: dict[str, Any], **changes: Any) -> Path:
    """A run of two iterations, with a fine-tuning of each agent between them, against a provider that refuses some
    calls at first."""
    rule = {"name": "expert_iteration", "rollouts_per_iteration": 20, "fine_tuning": {"min_examples": 1}}
    made = config(tmp_path, rule, iterations=2) | {"tracking": tracking} | changes
    options: dict[str, Any] = {"situation": "tests.text.cooperation:situation", "prices": PRICES}
    with provider_thread(tmp_path, roles=roles(), faults={"server_error": 0.05}, job_s=0.5, **options) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
        run_experiment(load_config(write_config(tmp_path, made)), tmp_path / "run", quiet=True)
    return tmp_path / "run"


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_is_traced_from_stages_to_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-api-key={KEY}")
    talk = {"talk": {"num_talkers": workers, "num_cpus_per_talker": 0.5}} if workers else {}
    with collecting() as (collector, address):
        run_dir = trained(tmp_path, monkeypatch, {"traces": {"enabled": True, "endpoint": address}}, **talk)
    by_id = {span["id"]: span for span in collector.spans}
    stages = [span for span in collector.spans if not span["parent"]]
    assert [span["name"] for span in sorted(stages, key=lambda span: span["nip_ray.iteration"])].count("sample") == 2
    assert len({span["trace"] for span in stages}) == len(stages)
    calls, dialogues, jobs = (collector.named(word) for word in ("chat", "invoke_workflow", "fine_tune"))
    answered = [record for record in read_calls(run_dir) if record.reply is not None]
    assert {span["nip_ray.call"] for span in calls} == {record.key for record in answered}
    assert len(calls) == len(answered)
    assert sum(span["gen_ai.usage.input_tokens"] for span in calls) == sum(
        r.reply.prompt_tokens for r in answered if r.reply
    )
    assert any("retry" in span["events"] for span in calls)
    for call in calls:
        dialogue = by_id[call["parent"]]
        assert dialogue in dialogues
        assert by_id[dialogue["parent"]]["name"] in ("sample", "test")
        assert call["trace"] == dialogue["trace"] == by_id[dialogue["parent"]]["trace"]
        assert call["gen_ai.agent.name"] in ("prover", "verifier")
    assert len({span["gen_ai.conversation.id"] for span in dialogues}) == len(dialogues)
    assert sorted(span["nip_ray.group"] for span in jobs) == ["prover", "verifier"]
    assert all(span["s"] >= 0.5 for span in jobs)
    sent = {name for span in collector.spans for name in span if name.startswith("gen_ai.")}
    assert sent <= PUBLISHED
    assert {"gen_ai.operation.name", "gen_ai.response.finish_reasons", "gen_ai.workflow.name"} <= sent
    assert "gen_ai.input.messages" not in sent
    assert all(resource["service.name"] == "nip_ray" for resource in collector.resources)
    assert all(headers["x-api-key"] == KEY and path == "/v1/traces" for path, headers in collector.requests)
    assert KEY not in (run_dir / "config.yaml").read_text()
    assert API_KEY not in collector.text


def test_content_goes_on_request_only_and_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    settings = TrackingSettings(traces=TracesSettings(enabled=True, content=True), ray_metrics=False)
    with collecting() as (collector, address):
        tracker = open_trackers(
            replace(settings, traces=replace(settings.traces, endpoint=address)), RunInfo(tmp_path, "a", "b", {})
        )
        with (
            pytest.raises(RuntimeError),
            traces.span("chat m", gen_ai__input__messages=traces.said([{"role": "user", "content": f"it is {KEY}"}])),
        ):
            raise RuntimeError(f"no entry with {KEY}")
        tracker.log({"iteration": 1, "time/iteration_s": 2.0})
        tracker.finish(False)
    call, iteration = sorted(collector.spans, key=lambda span: span["name"])
    assert json.loads(call["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "it is [secret]"}]}
    ]
    assert call["error"]
    assert call["error.type"] == "RuntimeError"
    assert "no entry with [secret]" in collector.text
    assert KEY not in collector.text
    assert iteration["s"] == pytest.approx(2, abs=0.01)
    assert traces.said([{"role": "user", "content": "later"}]) is None, "the run is over"


def test_a_collector_that_is_away_costs_one_warning_and_no_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with collecting() as (_, gone):
        pass
    began = time.perf_counter()
    trained(tmp_path, monkeypatch, {"traces": {"enabled": True, "endpoint": gone}})
    assert time.perf_counter() - began < 30
    warned = [line for line in capsys.readouterr().err.splitlines() if "spans of this run" in line]
    assert len(warned) == 1
    assert "the run continues" in warned[0]


def test_weave_gets_the_same_spans_with_the_key_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "0123456789" * 4
    monkeypatch.setenv("WANDB_API_KEY", key)
    with collecting() as (collector, address):
        monkeypatch.setenv("WF_TRACE_SERVER_URL", f"{address}/weave")
        settings = TrackingSettings(traces=replace(WEAVE, endpoint=address), wandb=ONLINE)
        check_trackers(settings)
        tracker = traces.start(settings, RunInfo(tmp_path, "a", "b", {}))
        with traces.span("sample"):
            pass
        tracker.finish(False)
    assert {path: headers.get("wandb-api-key") for path, headers in collector.requests} == {
        "/v1/traces": None,
        "/weave/otel/v1/traces": key,
    }
    assert len(collector.spans) == 2
    assert {(one["wandb.entity"], one["wandb.project"]) for one in collector.resources} == {("team", "proofs")}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"traces": TracesSettings(enabled=True, endpoint="localhost:4318")},
            r"tracking\.traces\.endpoint: got 'localhost:4318', use an",
        ),
        (
            {"traces": TracesSettings(enabled=True, endpoint="http://a:b@c/d")},
            r"endpoint has a password in it.*OTEL_EXPORTER_OTLP_HEADERS",
        ),
        ({"traces": WEAVE}, r"tracking\.traces\.weave: .*set tracking\.wandb\.enabled"),
        ({"traces": WEAVE, "wandb": replace(ONLINE, entity=None)}, r"tracking\.wandb\.entity or \$WANDB_ENTITY"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_ENTITY", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    with pytest.raises(UserError, match=said):
        check_trackers(TrackingSettings(**settings))


def test_nothing_is_imported_where_nothing_is_traced() -> None:
    code = (
        "import sys; from nip_ray.tracking import traces\nwith traces.span('a'):"
        " traces.event('b')\nprint('opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
