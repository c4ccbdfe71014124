"""A replay buffer: a ring of rows as tensors on one device, sampled evenly or by priority, without loops over rows.

Sources: Lin, "Self-improving reactive agents based on reinforcement learning, planning and teaching", 1992 (replay);
Schaul et al., "Prioritized experience replay", 2016 (proportional variant: equations 1 and 2, algorithm 1, appendix
B.2.1).

Decisions that matter here:
- nothing random has a state: the sampler passes a generator, made from (seed, purpose, step) by
  `nip_ray.seeding.generator`. So a checkpoint needs only rows and priorities, which are plain tensors, loaded with
  `weights_only=True`;
- the sum tree is wide: 32 children a node. A search passes four levels where a binary tree of a million leaves has
  twenty, each costing the same few kernels. Sums are always recomputed from the children, by the same running sum that
  is searched: they do not drift, a rebuilt tree is bit-identical, and a search never ends at a leaf of zero weight;
- importance weights are divided by the largest of their batch, not of all rows: otherwise one row of tiny priority that
  is never drawn would shrink every step;
- memory is reserved but not touched before rows come, and a checkpoint holds only existing rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError

_FANOUT = 32


@dataclass(frozen=True)
class Field:
    """A field of each row in a ring. shape: of one row's value, () for a number."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Priorities:
    """Proportional priorities of errors: (|error| + floor) ** exponent. All transitions can be drawn, as floor > 0."""

    exponent: float
    floor: float = 1e-6


@dataclass(frozen=True)
class Sample:
    """N rows, with replacement. rows: field -> (N, *shape). slot_N: int64, places, for `Replay.update_priorities`.

    weight_N: importance weights, the largest 1; None for uniform sampling.
    """

    rows: dict[str, Tensor]
    slot_N: Tensor
    weight_N: Tensor | None


class Ring:
    """The last `capacity` rows of a fixed schema, each field one tensor on one device.

    added: rows ever added. size: rows present. Row number i (from 0) is at place i % capacity.
    """

    def __init__(self, schema: Mapping[str, Field], capacity: int, device: torch.device | str = "cpu") -> None:
        """Allocates capacity * (bytes of a row) of memory on `device`. Raises ValueError for a capacity below 1 or a
        schema without fields."""
        if capacity < 1 or not schema:
            raise ValueError(
                f"a ring needs at least one row and one field, got {capacity} rows and {len(schema)} fields"
            )
        self.schema, self.capacity, self.device, self.added = dict(schema), capacity, torch.device(device), 0
        self.store = {
            name: torch.empty(capacity, *field.shape, dtype=field.dtype, device=device)
            for name, field in schema.items()
        }

    @property
    def size(self) -> int:
        """Number of rows."""
        return min(self.added, self.capacity)

    @torch.no_grad()
    def add(self, rows: Mapping[str, Tensor]) -> list[slice]:
        """Add N rows, field -> (N, *shape), over the oldest; beyond `capacity`, the last. Returns their places.

        Devices and number types are converted. Raises ValueError if a field is missing, unknown, of another shape or
        number of rows, or of a number type that the field cannot represent (real numbers in integers).
        """
        count = self._count(rows)
        skipped = max(0, count - self.capacity)
        start, kept = (self.added + skipped) % self.capacity, count - skipped
        first = min(kept, self.capacity - start)
        places = [place for place in (slice(start, start + first), slice(0, kept - first)) if place.stop > place.start]
        position = skipped
        for place in places:
            after = position + place.stop - place.start
            for name, store in self.store.items():
                store[place].copy_(rows[name][position:after])
            position = after
        self.added += count
        return places

    def read(self, slot_N: Tensor) -> dict[str, Tensor]:
        """Copies of the rows at places `slot_N` (int64), field -> (N, *shape)."""
        return {name: store.index_select(0, slot_N) for name, store in self.store.items()}

    def state_dict(self) -> dict[str, Any]:
        """Copies in main memory of the rows, and the number ever added."""
        rows = {name: store[: self.size].to("cpu", copy=True) for name, store in self.store.items()}
        return {"rows": rows, "added": torch.tensor(self.added), "capacity": torch.tensor(self.capacity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`. Raises UserError for another capacity or schema; the ring is then unchanged."""
        capacity, added = int(state["capacity"]), int(state["added"])
        if capacity != self.capacity:
            raise UserError(
                f"buffer_size: the saved replay buffer has room for {capacity} rows, got {self.capacity}, use the same"
            )
        expected = {name: ((min(added, capacity), *field.shape), field.dtype) for name, field in self.schema.items()}
        found = {name: (tuple(rows.shape), rows.dtype) for name, rows in state["rows"].items()}
        for name in expected.keys() | found.keys():
            if expected.get(name) != found.get(name):
                raise UserError(
                    f"replay buffer: field {name} was saved as {found.get(name)}, expected {expected.get(name)}"
                )
        self.added = added
        for name, rows in state["rows"].items():
            self.store[name][: self.size].copy_(rows)

    def _count(self, rows: Mapping[str, Tensor]) -> int:
        if strangers := rows.keys() ^ self.schema.keys():
            raise ValueError(f"rows: fields {', '.join(sorted(strangers))} are missing or unknown")
        count = len(next(iter(rows.values())))
        for name, field in self.schema.items():
            if tuple(rows[name].shape) != (count, *field.shape):
                raise ValueError(f"rows: {name} has shape {tuple(rows[name].shape)}, expected {(count, *field.shape)}")
            if not torch.can_cast(rows[name].dtype, field.dtype):
                raise ValueError(f"rows: {name} is {rows[name].dtype}, which is more than {field.dtype} can hold")
        return count


class SumTree:
    """Weights of `capacity` leaves, their sums, and a search by running sum; double precision, on one device.

    levels[0] holds the leaves in blocks of 32, levels[k + 1] the sums of the blocks of levels[k]; the last has one
    block.
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu") -> None:
        """All leaves weigh 0."""
        self.levels: list[Tensor] = []
        width = capacity
        while not self.levels or width > 1:
            width = -(-width // _FANOUT)
            self.levels.append(torch.zeros(width, _FANOUT, dtype=torch.float64, device=device))

    @property
    def leaves(self) -> Tensor:
        """The weights, a view; at least `capacity` of them, the rest 0."""
        return self.levels[0].view(-1)

    def total(self) -> Tensor:
        """Their sum (scalar)."""
        return _sum(self.levels[-1])[0]

    def set(self, slot_N: Tensor, weight_N: Tensor) -> None:
        """Set weights of the leaves `slot_N` (int64) to `weight_N`, finite, >= 0; the larger of duplicates counts."""
        self.leaves.scatter_reduce_(0, slot_N, weight_N.to(self.leaves.dtype), "amax", include_self=False)
        for lower, upper in pairwise(self.levels):
            slot_N = slot_N // _FANOUT
            upper.view(-1)[slot_N] = _sum(lower[slot_N])

    def fill(self, start: int, stop: int, weight: Tensor) -> None:
        """Set the leaves from `start` up to `stop` to one weight: a scalar, or (stop - start,)."""
        self.leaves[start:stop] = weight
        for lower, upper in pairwise(self.levels):
            start, stop = start // _FANOUT, (stop - 1) // _FANOUT + 1
            upper.view(-1)[start:stop] = _sum(lower[start:stop])

    def find(self, mass_N: Tensor) -> Tensor:
        """(N,) int64: for each mass the first leaf at which the running sum of all weights exceeds it.

        mass_N: double precision, from 0 to the total, which must be above 0; at the total it is the last leaf of
        nonzero weight.
        """
        slot_N = torch.zeros_like(mass_N, dtype=torch.int64)
        zero = torch.zeros((), dtype=mass_N.dtype, device=mass_N.device)
        for level in reversed(self.levels):
            running_NF = level[slot_N].cumsum(-1)
            # rounding may have lifted it to the block's end
            mass_N = torch.minimum(mass_N, torch.nextafter(running_NF[:, -1], zero))
            child_N = (running_NF <= mass_N[:, None]).sum(-1)
            before_N = running_NF.gather(-1, (child_N - 1).clamp_min(0)[:, None]).squeeze(-1)
            mass_N = mass_N - torch.where(child_N > 0, before_N, zero)
            slot_N = slot_N * _FANOUT + child_N
        return slot_N


class Replay:
    """A ring of rows with uniform sampling, or in proportion to priorities.

    ring: the rows. tree: their priorities, None for uniform sampling. New rows have the highest priority so far, 1 at
    first.
    """

    def __init__(
        self,
        schema: Mapping[str, Field],
        capacity: int,
        device: torch.device | str = "cpu",
        priorities: Priorities | None = None,
    ) -> None:
        """priorities: None for uniform sampling. Raises ValueError as `Ring` does."""
        self.ring, self.priorities = Ring(schema, capacity, device), priorities
        self.tree = None if priorities is None else SumTree(capacity, device)
        self._highest = torch.ones((), dtype=torch.float64, device=device)

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.ring.size

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Add N rows, field -> (N, *shape); see `Ring.add`."""
        for place in self.ring.add(rows):
            if self.tree is not None:
                self.tree.fill(place.start, place.stop, self._highest)

    def sample(self, count: int, generator: torch.Generator, importance_exponent: float = 1.0) -> Sample:
        """`count` rows, drawn with replacement from `count` random numbers of `generator` (on any device).

        By priority, one is drawn from each of `count` equal parts of the sum of priorities, so that rows are in the
        order of their places, and each as often as its share to within two. importance_exponent: beta of the weights
        w = (size * P) ** -beta, given as w / max w. Raises ValueError on an empty buffer.
        """
        if not self.size:
            raise ValueError("replay buffer: nothing to sample, it is empty")
        ring = self.ring
        if self.tree is None:
            slot_N = torch.randint(self.size, (count,), generator=generator, device=generator.device).to(ring.device)
            return Sample(ring.read(slot_N), slot_N, None)
        uniform_N = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64).to(ring.device)
        slot_N = self.tree.find((torch.arange(count, device=ring.device) + uniform_N) / count * self.tree.total())
        priority_N = self.tree.leaves[slot_N]
        # number of rows and sum of priorities cancel in w / max w
        weight_N = (priority_N / priority_N.min()) ** -importance_exponent
        return Sample(ring.read(slot_N), slot_N, weight_N.float())

    def update_priorities(self, slot_N: Tensor, error_N: Tensor) -> None:
        """Set the priorities of the rows at `slot_N` (of the last sample, before rows were added) by their new errors,
        finite numbers.

        Does nothing for uniform sampling.
        """
        if self.tree is None or self.priorities is None:
            return
        weight_N = (error_N.detach().abs().to(torch.float64) + self.priorities.floor) ** self.priorities.exponent
        self.tree.set(slot_N, weight_N)
        self._highest = torch.maximum(self._highest, weight_N.max())

    def state_dict(self) -> dict[str, Any]:
        """Rows, counters and priorities: dictionaries of plain tensors in main memory, copied."""
        state: dict[str, Any] = {"ring": self.ring.state_dict()}
        if self.tree is not None:
            state["priority"] = self.tree.leaves[: self.size].to("cpu", copy=True)
            state["highest"] = self._highest.to("cpu", copy=True)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`: the next samples are those of the saved buffer.

        Raises UserError for another capacity or schema, or if only one of the two has priorities.
        """
        if ("priority" in state) != (self.tree is not None):
            had = "priorities" if "priority" in state else "no priorities"
            raise UserError(f"prioritised: the saved replay buffer has {had}, set it as it was")
        self.ring.load_state_dict(state["ring"])
        if self.tree is not None:
            self._highest = state["highest"].to(self.ring.device)
            self.tree = SumTree(self.ring.capacity, self.ring.device)
            if self.size:
                self.tree.fill(0, self.size, state["priority"].to(self.ring.device))


def _sum(block_NF: Tensor) -> Tensor:
    """(N,): by the running sum of a search, not by `sum`, which may add in another order."""
    return block_NF.cumsum(-1)[:, -1]
