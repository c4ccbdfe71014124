"""All uses of non-public names of Ray's core, each with the version of Ray in which it was read.

Ray is imported on first use: a run without remote workers does not need it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

PRIVATE = dict.fromkeys(
    (
        "ray._private.ray_constants.ENABLE_RAY_CLUSTER",
        "ray._private.grpc_utils.init_grpc_channel",
        "ray.core.generated.gcs_service_pb2.CheckAliveRequest",
        "ray.core.generated.gcs_service_pb2_grpc.NodeInfoGcsServiceStub",
    ),
    "2.60.0",
)
"""Held by tests/test_private_names.py."""

_ANSWER_SECONDS = 20.0


@contextmanager
def on_loopback() -> Iterator[None]:
    """While this holds, a newly started Ray uses 127.0.0.1 as its node's address, on which all its servers listen.

    Ray's own switch for it, $RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER, is read at import, which may be long ago. Requesting
    the address by name does not help: Ray replaces 127.0.0.1 by the one that other machines see.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def answer_of(address: str) -> str:
    """The response of a Ray cluster at HOST:PORT to a call with our token, in gRPC's words: `ok`, `unauthenticated`,
    `unavailable` ..."""
    import grpc
    from ray._private.grpc_utils import init_grpc_channel  # with Ray's token and TLS settings
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    question = gcs_service_pb2.CheckAliveRequest()  # pyright: ignore[reportAttributeAccessIssue]  # made at import
    channel = init_grpc_channel(address)
    try:
        gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel).CheckAlive(question, timeout=_ANSWER_SECONDS)
    except grpc.RpcError as error:
        return error.code().name.lower()  # pyright: ignore[reportAttributeAccessIssue]  # every error of a call has one
    finally:
        channel.close()
    return "ok"


def is_slow_start(error: BaseException) -> bool:
    """True if `ray.init` gave up on a node that did not start in 30 seconds, a constant of Ray 2.60.0."""
    return "timed out during startup" in str(error)


def is_refused_token(error: Exception) -> bool:
    """True if `ray.init` failed because a cluster refused our token. Ray 2.60.0 only reports this in the message."""
    return "InvalidAuthToken" in f"{error} {error.__cause__}"
