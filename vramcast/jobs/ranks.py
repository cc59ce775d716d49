"""The ranks of a job and their machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from vramcast.core.checks import decimal, whole
from vramcast.core.errors import UsageError
from vramcast.core.text import shorten

Ranks = tuple[int, ...] | Literal["auto", "all"]
MOST_CARDS: Final = 64  # = MAX_DEVICES of tracer/nullgpu/csrc/driver.c
_USUAL: Final = 8  # arbitrary: cards of a machine, as in DGX and HGX


@dataclass(frozen=True, slots=True)
class World:
    """All ranks of a job. A wrong number raises a UsageError.

    Attributes:
        size: Number of ranks.
        per_node: Number of ranks on each machine; 0: the largest divisor of `size` that is at most 8.
    """

    size: int = 1
    per_node: int = 0

    def __post_init__(self) -> None:
        whole("world_size (--world-size)", self.size, least=1)
        whole("nproc_per_node (--nproc-per-node)", self.per_node, least=0)
        if self.per_node > self.size or (self.per_node and self.size % self.per_node):
            raise UsageError(f"{self.size} ranks cannot fill machines of {self.per_node}: give a multiple of {self.per_node}.")
        if self.per_node > MOST_CARDS:
            raise UsageError(f"One machine has at most {MOST_CARDS} ranks, not {self.per_node}: give --nnodes.")

    @property
    def local_size(self) -> int:
        """Number of ranks on each machine."""
        return self.per_node or next(n for n in range(_USUAL, 0, -1) if self.size % n == 0)

    @property
    def machines(self) -> int:
        """Number of machines."""
        return self.size // self.local_size

    def chosen(self, ranks: Ranks, pairs: Iterable[tuple[int, int]] = ()) -> tuple[int, ...]:
        """Return the ranks to trace, in order.

        "auto" means the first and the last: their shards differ if the number of ranks does not divide a size. In between are
        the ranks that exchange tensors with the first, directly or not (stages of a pipeline).

        Args:
            ranks: The requested ranks.
            pairs: Known pairs of ranks of which one sends tensors to the other.
        Raises:
            UsageError: A number is not a rank of this world.
        """
        if ranks == "all":
            return tuple(range(self.size))
        if ranks == "auto":
            reached, known = {0}, tuple(pairs)
            while more := {one for pair in known if reached & set(pair) for one in pair} - reached:
                reached |= more
            return tuple(dict.fromkeys((*sorted(reached), self.size - 1)))
        for number in ranks:
            if not 0 <= number < self.size:
                raise UsageError(f"Rank {number} (--ranks) does not exist: the ranks are 0 to {self.size - 1}.")
        return tuple(dict.fromkeys(ranks))


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank.

    Attributes:
        number: Number of the rank among all ranks.
        world: All ranks.
    """

    number: int
    world: World

    @property
    def local(self) -> int:
        """Number of the rank on its machine, and of its card."""
        return self.number % self.world.local_size

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of this rank and of its group, by the variables in which launchers give them.

        Source: torch 2.11, torchrun; DeepSpeed 0.18, launcher/launch.py; srun(1); mpirun(1) of Open MPI and MPICH.
        """
        world = self.world
        machine, local = divmod(self.number, world.local_size)
        return {
            "RANK": self.number, "ROLE_RANK": self.number, "LOCAL_RANK": local, "GROUP_RANK": machine, "CROSS_RANK": machine,
            "WORLD_SIZE": world.size, "ROLE_WORLD_SIZE": world.size, "LOCAL_WORLD_SIZE": world.local_size,
            "LOCAL_SIZE": world.local_size, "GROUP_WORLD_SIZE": world.machines, "CROSS_SIZE": world.machines,
            "SLURM_PROCID": self.number, "SLURM_LOCALID": local, "SLURM_NODEID": machine, "SLURM_NTASKS": world.size,
            "SLURM_NPROCS": world.size, "SLURM_NNODES": world.machines, "OMPI_COMM_WORLD_RANK": self.number,
            "OMPI_COMM_WORLD_SIZE": world.size, "OMPI_COMM_WORLD_LOCAL_RANK": local,
            "OMPI_COMM_WORLD_LOCAL_SIZE": world.local_size, "PMI_RANK": self.number, "PMI_SIZE": world.size,
        }  # fmt: skip

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables with the numbers of this rank, where they have another one's."""
        numbers = self.numbers
        return {name: str(numbers.get(name, value)) for name, value in environment.items()}


ALONE: Final = World()


def parse_ranks(text: str) -> Ranks:
    """Parse `auto`, `all` or `0,7`.

    Raises:
        UsageError: The text has another form.
    """
    if text in ("auto", "all"):
        return "auto" if text == "auto" else "all"
    found = tuple(number for part in text.split(",") if (number := decimal(part)) is not None)
    if len(found) <= text.count(","):
        raise UsageError(f"--ranks is '{shorten(text)}': give auto, all, or numbers separated by commas, 0,7.")
    return found
