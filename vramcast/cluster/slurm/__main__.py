"""python -I -P -m vramcast.cluster.slurm [--settings FILE] submit|peaks|epilog|afterwards ..."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from vramcast.cluster.slurm.site_settings import PLACE, read_settings
from vramcast.core.errors import VramcastError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the hooks; return its exit code, which is 0 also if it did nothing, so that Slurm continues."""
    parser = argparse.ArgumentParser(
        prog="python -m vramcast.cluster.slurm", description="The hooks of docs/slurm.md.", allow_abbrev=False
    )
    parser.add_argument("--settings", default=PLACE, metavar="FILE", help=f"the site's settings (default: {PLACE})")
    hooks = parser.add_subparsers(dest="hook", required=True)
    submit = hooks.add_parser("submit", help="print what Slurm must change in a submission; called by cli_filter.lua")
    submit.add_argument("kind", help="sbatch, srun, ...")
    submit.add_argument("options", help="options of the submission, as JSON")
    hooks.add_parser("peaks", help="sample the memory of jobs until stopped; runs on each node")
    hooks.add_parser("epilog", help="report to the service how a job went; called by the epilog")
    back = hooks.add_parser("come-back", help="requeue a job with a larger request; called by the epilog")
    back.add_argument("job")
    back.add_argument("ticket", help="the word in the job's comment")
    note = hooks.add_parser("note-peak", help="write a job's peak where sacct shows it; called by the epilog")
    note.add_argument("job")
    note.add_argument("noted", help="the word for the job's AdminComment")
    options = parser.parse_args(arguments)
    try:
        if options.hook == "submit":
            from vramcast.cluster.slurm import submit as hook

            hook.main(options.kind, options.options, options.settings)
        elif options.hook == "peaks":
            from vramcast.cluster.slurm.peaks import sample_for_ever

            sample_for_ever(read_settings(options.settings).peaks_folder)
        elif options.hook == "epilog":
            from vramcast.cluster.slurm import epilog

            epilog.main(options.settings)
        elif options.hook == "come-back":
            from vramcast.cluster.slurm.comment_field import Ticket
            from vramcast.cluster.slurm.requeue import come_back

            if ticket := Ticket.found_in(options.ticket):
                come_back(options.job, ticket, read_settings(options.settings))
        else:
            from vramcast.cluster.slurm.requeue import note_peak

            note_peak(options.job, options.noted)
    except VramcastError as error:
        print(f"vramcast: {error}", file=sys.stderr)
        return error.exit_code if options.hook == "peaks" else 0
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
