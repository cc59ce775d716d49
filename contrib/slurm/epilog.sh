#!/bin/sh
# Slurm's Epilog on each node: reports the job's result to vramcast (docs/slurm.md). It always exits with 0, because a failing
# epilog drains the node.
PYTHON=/opt/vramcast/bin/python
SETTINGS=/etc/slurm/vramcast.toml
cd / || exit 0
/usr/bin/timeout 20 "$PYTHON" -I -P -m vramcast.cluster.slurm --settings "$SETTINGS" epilog
exit 0
