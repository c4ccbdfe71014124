"""Notices that a cloud is about to take a spot machine back: asked for at its metadata service, and passed on as SIGTERM.

Decisions that matter here:
- only the machine of the process that drives a run is asked about: others are replaced;
- what happens then is what happens at SIGTERM (`nip_ray.cluster.interrupts`), well within the shortest notice, thirty seconds;
- the service is on a link-local address: no proxy is asked, and what does not answer, or makes no sense, is told once and asked again.

Sources: "Spot Instance interruption notices" (AWS), "Spot VMs: preemption process" (Google), "Scheduled Events for Linux VMs" (Azure).
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from nip_ray.progress import say
from nip_ray.settings.experiment import RuntimeSettings

_TIMEOUT_S = 2.0
_opener = build_opener(ProxyHandler({}))


@contextmanager
def spot_notices(runtime: RuntimeSettings) -> Iterator[None]:
    """While this holds in the main thread, and the config names a cloud, the first notice sends this process SIGTERM."""
    if runtime.spot_notices is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    over, turn = threading.Event(), threading.Lock()
    threading.Thread(target=_watch, args=(runtime, over, turn), name="spot notices", daemon=True).start()
    try:
        yield
    finally:
        with turn:  # not between a look at `over` and a signal
            over.set()


def notice(cloud: str, address: str | None = None) -> str | None:
    """What the metadata service of this machine says of its end, in a few words; None where nothing is planned.

    cloud: aws, gcp or azure. address: of the service (none: the cloud's). Raises OSError, ValueError or RecursionError (nested JSON)
    for an answer that is none.
    """
    ask, usual = _CLOUDS[cloud]
    return ask((address or usual).rstrip("/"))


def _watch(runtime: RuntimeSettings, over: threading.Event, turn: threading.Lock) -> None:
    told = False
    while not over.is_set():
        try:
            found = notice(str(runtime.spot_notices), runtime.spot_address)
        except (OSError, ValueError, RecursionError) as error:
            if not told:
                say(f"warning: runtime.spot_notices: {runtime.spot_notices} does not answer on this machine ({error}); asking on")
            told, found = True, None
        with turn:
            if found is not None and not over.is_set():
                say(f"this machine is taken back ({found}): the run is saved and ended")
                os.kill(os.getpid(), signal.SIGTERM)
                return
        over.wait(runtime.spot_interval_s)


def _get(url: str, method: str = "GET", **headers: str) -> str:
    request = Request(url, method=method, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with _opener.open(request, timeout=_TIMEOUT_S) as answer:
            return answer.read().decode()
    except HTTPException as error:
        raise ValueError(f"not an answer of HTTP: {error!r}") from error


def _aws(address: str) -> str | None:
    token = _get(f"{address}/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
    try:
        found = json.loads(_get(f"{address}/latest/meta-data/spot/instance-action", X_aws_ec2_metadata_token=token))
    except HTTPError as error:
        if error.code == 404:
            return None
        raise
    return f"{_field(found, 'action', str)} at {_field(found, 'time', str)}"


def _gcp(address: str) -> str | None:
    said = _get(f"{address}/computeMetadata/v1/instance/preempted", Metadata_Flavor="Google").strip()
    if said not in ("TRUE", "FALSE"):
        raise ValueError(f"expected TRUE or FALSE, got {said[:40]!r}")
    return "preempted" if said == "TRUE" else None


def _azure(address: str) -> str | None:
    events = _field(json.loads(_get(f"{address}/metadata/scheduledevents?api-version=2020-07-01", Metadata="true")), "Events", list)
    ends = [event for event in events if _field(event, "EventType", str) in ("Preempt", "Terminate")]
    if not ends:
        return None
    own = _get(f"{address}/metadata/instance/compute/name?api-version=2021-02-01&format=text", Metadata="true").strip()
    of_us = next((event for event in ends if own in _field(event, "Resources", list)), None)  # others of its scale set are told of, too
    return None if of_us is None else f"{of_us['EventType']}, not before {of_us.get('NotBefore') or 'now'}"


def _field(found: Any, name: str, kind: type) -> Any:
    if not isinstance(found, dict) or not isinstance(found.get(name), kind):
        raise ValueError(f"no {name} in the answer, or it is no {kind.__name__}")
    return found[name]


_CLOUDS: dict[str, tuple[Callable[[str], str | None], str]] = {
    "aws": (_aws, "http://169.254.169.254"),
    "gcp": (_gcp, "http://metadata.google.internal"),
    "azure": (_azure, "http://169.254.169.254"),
}
