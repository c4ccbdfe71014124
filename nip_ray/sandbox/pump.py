"""Reads what a program writes until it ends, and has it ended when its time is up or it writes too much.

Decisions that matter here:
- the end is the end of a pipe of its own, which the program does not have; never that of its streams, which a daemon may hold open;
- the clock is ours: after the time is up there is a short grace for whoever ends the program, and no waiting after that.
"""

import os
import selectors
import time
from collections.abc import Callable

from nip_ray.sandbox.result import Status

GRACE_S = 0.25
"""How long ending a program may take, before whoever should do it is killed as well."""


class Pump:
    """The streams of one run. stdout, stderr, report: what came. verdict: why it was ended, None when it ended by itself."""

    def __init__(
        self,
        streams: tuple[int, int],
        end: int,
        start: float,
        wall_s: float,
        output_bytes: int,
        stop: Callable[[], None],
        on_stdout: Callable[[bytes], float | None] | None = None,
    ) -> None:
        """streams: descriptors of standard output and error. end: of the pipe whose end is the end. start: time.monotonic() of the start.

        output_bytes: of each stream. stop: called once, to have the program ended. on_stdout: takes standard output as it comes, and
        returns the seconds that the program has from then on (None: no change).
        """
        self.stdout, self.stderr, self.report = bytearray(), bytearray(), bytearray()
        self.verdict: Status | None = None
        self.deadline = start + wall_s
        self._output_bytes, self._stop, self._on_stdout = output_bytes, stop, on_stdout
        self._handles = {streams[0]: self._take_stdout, streams[1]: self._take_stderr, end: self._take_report}
        self._end = end

    def run(self, cancelled: int | None = None) -> bool:
        """Read until the end; whether there was one in time. cancelled: a descriptor that is readable when the program has to end."""
        with selectors.DefaultSelector() as selector:
            for handle in self._handles:
                os.set_blocking(handle, False)
                selector.register(handle, selectors.EVENT_READ)
            if cancelled is not None:
                selector.register(cancelled, selectors.EVENT_READ)
            while True:
                ended = self._step(selector)
                if ended is not None:
                    return ended

    def drain(self) -> None:
        """Read what is left in the streams, without waiting for more."""
        for handle in self._handles:
            while self._read(handle):
                pass

    def end(self, verdict: Status) -> None:
        """Have the program ended; the first verdict counts."""
        if self.verdict is None:
            self.verdict, self.deadline = verdict, time.monotonic() + GRACE_S
            self._stop()

    def _step(self, selector: selectors.BaseSelector) -> bool | None:
        """Wait for the next event. True at the end, False when it did not come in time, None when there is more to wait for."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            if self.verdict is not None:
                return False
            self.end("timeout")
            return None
        for key, _ in selector.select(left):
            if key.fd not in self._handles:
                selector.unregister(key.fd)
                self.end("killed")
            elif self._read(key.fd) is False:
                selector.unregister(key.fd)
                if key.fd == self._end:
                    return True
        return None

    def _read(self, handle: int) -> bool | None:
        """Take what is there. False at the end of the stream, None when there is nothing just now."""
        try:
            data = os.read(handle, 1 << 16)
        except BlockingIOError:
            return None
        if data:
            self._handles[handle](data)
        return bool(data)

    def _take_stdout(self, data: bytes) -> None:
        if self._on_stdout is None:
            self._keep(self.stdout, data)
            return
        seconds = self._on_stdout(data)
        if seconds is not None and self.verdict is None:
            self.deadline = time.monotonic() + seconds

    def _take_stderr(self, data: bytes) -> None:
        self._keep(self.stderr, data)

    def _take_report(self, data: bytes) -> None:
        self.report += data

    def _keep(self, kept: bytearray, data: bytes) -> None:
        kept += data[: self._output_bytes + 1 - len(kept)]
        if len(kept) > self._output_bytes:
            del kept[self._output_bytes :]
            self.end("output_limit")
