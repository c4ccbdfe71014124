"""What training tells while it runs, and when."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


def nothing(told: Any) -> None:
    """Who gets rows or checkpoints where nobody asked for them."""


@dataclass(frozen=True)
class Reports:
    """on_row gets the figures of every `write_interval` timesteps, on_checkpoint the timestep at every `checkpoint_interval` (0: never)."""

    write_interval: int = 0
    on_row: Callable[[Row], None] = nothing
    checkpoint_interval: int = 0
    on_checkpoint: Callable[[int], None] = nothing

    def next_due(self, timestep: int, end: int) -> int:
        """The first timestep after this one at which something is due, `end` at the latest."""
        intervals = (interval for interval in (self.write_interval, self.checkpoint_interval) if interval)
        return min([end, *((timestep // interval + 1) * interval for interval in intervals)])

    def checkpoint_if_due(self, timestep: int) -> None:
        """Ask for a checkpoint, where one is due."""
        if self.checkpoint_interval and timestep % self.checkpoint_interval == 0:
            self.on_checkpoint(timestep)

    def tell(self, timestep: int, row: Callable[[], Row]) -> None:
        """Hand on the row that `row` makes, and ask for a checkpoint, where they are due."""
        if self.write_interval and timestep % self.write_interval == 0:
            self.on_row(row())
        self.checkpoint_if_due(timestep)


SILENT = Reports()
