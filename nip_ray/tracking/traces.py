"""OpenTelemetry spans of stages, dialogues, calls and fine-tuning jobs, for monitoring with a collector.

Decisions that matter here:
- off by default: without `tracking.traces` OpenTelemetry is not imported, and `span` only checks one variable. A
  process traces one run at a time, in its own provider: other libraries' traces in the process are unaffected;
- a stage is the root of a trace, with its dialogues below it and their calls below those, in any process. Names are
  those of OpenTelemetry's conventions for generative AI, and others have the prefix `nip_ray.`;
- calls have our own spans, not those of `opentelemetry-instrumentation-openai-v2`: that wraps
  `chat.completions.create`, which our client does not use, does not cover local models, agents and costs, and sends
  texts with secrets. A call that is answered from the records has no span; a job has one when it is over, from its
  first submission on;
- messages are sent only if configured, without secrets. Keys come from the environment ($OTEL_EXPORTER_OTLP_HEADERS);
- an unreachable collector costs one warning and no waiting: spans are sent in a thread, and dropped if they cannot be
  sent.
"""

import importlib.util
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from nip_ray.errors import UserError
from nip_ray.progress import say
from nip_ray.secrets import Redactor
from nip_ray.settings.tracking import TrackingSettings
from nip_ray.storage.wandb_source import api_key, require_key
from nip_ray.tracking.base import RunInfo, Tracker
from nip_ray.version import __version__

PATH = "/v1/traces"
WEAVE = "https://trace.wandb.ai"
"""The address of Weave's hosted service for spans, below /otel."""
FLUSH_S = 5.0
"""Maximum time that a process waits at its end for unsent spans."""
PAUSE_S = 60.0
"""Pause before sending to an unreachable collector again."""
_TIMEOUT_S, _MAX_WAITING = 5.0, 20_000

Told = Callable[..., None]
"""Adds attributes to a span that has not ended."""


def check(settings: TrackingSettings) -> None:
    """Raise UserError if the library, or a requirement of Weave, is missing, and for an invalid endpoint."""
    traces = settings.traces
    if importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        raise UserError(
            "tracking.traces.enabled needs an extra (there is no OTLP exporter): pip install 'nip_ray[traces]'"
        )
    if traces.endpoint is not None:
        parts = urlsplit(traces.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(
                f"tracking.traces.endpoint: got {traces.endpoint!r}, use an address of OTLP over HTTP such as"
                " http://localhost:4318"
            )
        if parts.username or parts.password:
            raise UserError(
                "tracking.traces.endpoint has a password in it; give it as a header in $OTEL_EXPORTER_OTLP_HEADERS"
            )
    if not traces.weave:
        return
    if not settings.wandb.enabled or settings.wandb.mode != "online":
        raise UserError(
            "tracking.traces.weave: spans go to Weave beside an online run, set tracking.wandb.enabled: true and mode:"
            " online"
        )
    if not (settings.wandb.entity or os.environ.get("WANDB_ENTITY")):
        raise UserError(
            "tracking.traces.weave needs to know whose project it is: set tracking.wandb.entity or $WANDB_ENTITY"
        )
    require_key("tracking.traces.weave is true", "or set it to false")
    if api_key() is None:
        raise UserError(
            "tracking.traces.weave takes the key of $WANDB_API_KEY or `wandb login` alone; an identity token is not"
            " enough"
        )


class _Tracing:
    """The spans of one run in this process."""

    def __init__(self, settings: TrackingSettings, run: RunInfo) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        about = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or "nip_ray", "service.version": __version__}
        about |= {
            "nip_ray.run.id": run.run_id,
            "nip_ray.run.name": run.name,
            **({"nip_ray.run.group": run.group} if run.group else {}),
        }
        if settings.traces.weave:
            about["wandb.entity"] = str(settings.wandb.entity or os.environ.get("WANDB_ENTITY"))
            about["wandb.project"] = settings.wandb.project or os.environ.get("WANDB_PROJECT") or "nip_ray"
        keys = [provider.get("api_key_variable") for provider in run.config.get("providers", {}).values()]
        self.content, self.redact = settings.traces.content, Redactor(key for key in keys if key)
        logger = logging.getLogger("opentelemetry")
        self._handler = _OneWarning(self.redact)
        logger.addHandler(self._handler)
        logger.propagate = False
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._processors = [
            BatchSpanProcessor(_patient(exporter), max_queue_size=_MAX_WAITING, export_timeout_millis=_TIMEOUT_S * 1000)
            for exporter in _exporters(settings)
        ]
        for processor in self._processors:
            self._provider.add_span_processor(processor)
        self.tracer = self._provider.get_tracer("nip_ray", __version__)

    def flush(self) -> None:
        """Wait for unsent spans, `FLUSH_S` at most."""
        ends = time.monotonic() + FLUSH_S
        for processor in self._processors:
            processor.force_flush(max(0, int(1000 * (ends - time.monotonic()))))

    def close(self) -> None:
        """End tracing."""
        self._provider.shutdown()
        logging.getLogger("opentelemetry").removeHandler(self._handler)


def _exporters(settings: TrackingSettings) -> list[Any]:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    endpoint = settings.traces.endpoint
    address = None if endpoint is None else endpoint.rstrip("/").removesuffix(PATH) + PATH
    made = [OTLPSpanExporter(endpoint=address, timeout=_TIMEOUT_S)]
    if settings.traces.weave:
        own = os.environ.get("WANDB_BASE_URL", "").rstrip("/")
        base = os.environ.get("WF_TRACE_SERVER_URL") or (f"{own}/traces" if own else WEAVE)
        made.append(
            OTLPSpanExporter(
                f"{base.rstrip('/')}/otel{PATH}", headers={"wandb-api-key": api_key() or ""}, timeout=_TIMEOUT_S
            )
        )
    return made


def _patient(exporter: Any) -> Any:
    """The exporter, with a pause of `PAUSE_S` after a failure."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Patient(SpanExporter):
        not_before = 0.0

        def export(self, spans: Sequence[Any]) -> SpanExportResult:
            if time.monotonic() < self.not_before:
                return SpanExportResult.FAILURE
            result = exporter.export(spans)
            if result is not SpanExportResult.SUCCESS:
                self.not_before = time.monotonic() + PAUSE_S
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

    return Patient()


class _OneWarning(logging.Handler):
    """Logs the first of OpenTelemetry's complaints, without secrets, and no other."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._redact, self._said = redact, False

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and not self._said:
            self._said = True
            reason = self._redact(record.getMessage()).splitlines()[0]
            say(f"warning: spans of this run are being lost ({reason:.300}); the run continues")


_active: _Tracing | None = None


def begin(settings: TrackingSettings, run: RunInfo) -> None:
    """Trace `run` in this process from now on, if configured; does nothing if it is already traced."""
    global _active
    if settings.traces.enabled and _active is None:
        _active = _Tracing(settings, run)


def flush() -> None:
    """Wait for unsent spans of this process, for `FLUSH_S` at most."""
    if _active is not None:
        _active.flush()


def place() -> str:
    """The current span, as W3C's `traceparent`; "" without tracing."""
    if _active is None:
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent", "")


@contextmanager
def span(
    name: str, *, parent: str = "", call: bool = False, start_s: float | None = None, **attributes: Any
) -> Iterator[Told]:
    """A span around the work inside; yields a function that adds attributes to it.

    parent: a `place` (None: the current span). call: to a service. start_s: its start, in seconds since 1970 (None:
    now). attributes: "__" means a dot; None values are left out. An exception ends the span as an error, and is raised
    on.
    """
    if _active is None:
        yield lambda **more: None
        return
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    redact = _active.redact
    with _active.tracer.start_as_current_span(
        name,
        context=TraceContextTextMapPropagator().extract({"traceparent": parent}) if parent else None,
        kind=SpanKind.CLIENT if call else SpanKind.INTERNAL,
        attributes=_named(attributes),
        start_time=None if start_s is None else int(start_s * 1e9),
        record_exception=False,
        set_status_on_exception=False,
    ) as made:
        try:
            yield lambda **more: made.set_attributes(_named(more))
        except BaseException as error:
            made.set_attribute("error.type", type(error).__qualname__)
            made.set_status(Status(StatusCode.ERROR, redact(str(error))[:300]))
            raise


def event(name: str, **attributes: Any) -> None:
    """An event within the current span."""
    if _active is not None:
        from opentelemetry.trace import get_current_span

        get_current_span().add_event(name, _named(attributes))


def said(messages: Sequence[Mapping[str, Any]], finish: str | None = None) -> str | None:
    """Messages as the value of `gen_ai.input.messages` or, with a finish reason, `gen_ai.output.messages`; None unless
    configured."""
    if _active is None or not _active.content:
        return None
    parts = [
        {
            "role": message["role"],
            "parts": [{"type": "text", "content": _active.redact(str(message["content"] or ""))}],
            **({} if finish is None else {"finish_reason": finish}),
        }
        for message in messages
    ]
    return json.dumps(parts)


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in attributes.items() if value is not None}


def start(settings: TrackingSettings, run: RunInfo) -> Tracker:
    """Begin to trace `run`."""
    begin(settings, run)
    return _Traces()


class _Traces(Tracker):
    """The tracker: an iteration that was timed as a whole has its own span, with the seconds of its parts."""

    def log(self, row: Mapping[str, Any]) -> None:
        seconds = row.get("time/iteration_s", row.get("time/play_s", 0.0) + row.get("time/learn_s", 0.0))
        if not seconds:  # fine-tuning rules: their stages have spans
            return
        times = {
            f"nip_ray__{name.replace('/', '__')}": value for name, value in row.items() if name.startswith("time/")
        }
        with span("iteration", start_s=time.time() - seconds, nip_ray__iteration=row["iteration"], **times):
            pass

    def finish(self, failed: bool) -> None:
        global _active
        tracing, _active = _active, None
        if tracing is not None:
            tracing.flush()
            tracing.close()
