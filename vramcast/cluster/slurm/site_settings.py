"""The site's settings, in a TOML file that all hooks read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from vramcast.core.errors import UsageError
from vramcast.core.plain import Between, from_plain
from vramcast.core.units import GIB, INT64_MOST, parse_bytes

_EXAMPLE: Final = "contrib/slurm/vramcast.toml is an example"
PLACE: Final = "/etc/slurm/vramcast.toml"
Mode: TypeAlias = Literal["watch", "fill"]
WhenAway: TypeAlias = Literal["submit", "refuse"]
_MOST_S: Final = 600.0  # arbitrary: the longest acceptable wait at a prompt


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """The choices of a site.

    Attributes:
        service: Address of `vramcast serve`.
        partitions: The card of each partition, smallest first; jobs of other partitions are ignored.
        token_file: File with the service's token; "": the service needs none.
        mode: `watch` writes the estimate's id into the job's comment and changes nothing else; `fill` adds and corrects
            requests.
        when_away: Whether a job is submitted or refused if there is no answer in time.
        timeout_s: Time limit for an answer.
        shard_bytes: Memory that one `shard` of Slurm stands for.
        level: Confidence level of requests.
        shrinks: Whether a job that requests one whole card gets only the shards it needs.
        requeues: Whether a job that ran out of the card's memory is requeued with a larger request.
        writes_admin_comment: Whether a job's peak is written into its AdminComment, for sacct.
        peaks_folder: Folder for the sampler's files.
        outbox: Folder for observations that wait for the service.
    """

    service: str
    partitions: Mapping[str, str]
    token_file: str = ""
    mode: Mode = "watch"
    when_away: WhenAway = "submit"
    timeout_s: Annotated[float, Between(0, _MOST_S)] = 2.0
    shard_bytes: Annotated[int, Between(1, INT64_MOST)] = GIB
    level: Annotated[float, Between(0, 1)] = 0.99
    shrinks: bool = True
    requeues: bool = False
    writes_admin_comment: bool = False
    peaks_folder: Path = Path("/run/vramcast/peaks")
    outbox: Path = Path("/var/spool/vramcast")

    def token(self) -> str:
        """Return the token; "" if the service needs none.

        Raises:
            UsageError: Its file cannot be read.
        """
        if not self.token_file:
            return ""
        try:
            return Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"token_file '{self.token_file}' cannot be read ({error}): give a file that this user can read."
            ) from None


def read_settings(path: str | Path = PLACE) -> SiteSettings:
    """Return the settings in a TOML file.

    Raises:
        UsageError: It cannot be read, or a value is wrong.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"The settings '{path}' cannot be read ({error}): {_EXAMPLE}.") from None
    if "shard" in values:
        values["shard_bytes"] = parse_bytes(str(values.pop("shard")))
    settings = from_plain(SiteSettings, values, f"'{path}'", raises=UsageError)
    if not settings.service or not settings.partitions:
        raise UsageError(f"'{path}' has an empty service, or no partitions: {_EXAMPLE}.")
    return settings
