#!/bin/sh
# Slurm's Epilog on each node: tells vramcast how the job went (docs/slurm.md). It always ends well: else the node is drained.
PYTHON=/opt/vramcast/bin/python
SETTINGS=/etc/slurm/vramcast.toml
cd / || exit 0
/usr/bin/timeout 20 "$PYTHON" -I -P -m vramcast.schedulers.slurm --settings "$SETTINGS" epilog
exit 0
