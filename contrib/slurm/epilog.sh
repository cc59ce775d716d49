#!/bin/sh
# Slurm's Epilog on each node: tells vramcast how the job went (docs/slurm.md). It always ends well: else the node is drained.
PYTHON=/opt/vramcast/bin/python
SETTINGS=/etc/slurm/vramcast.toml
timeout 20 "$PYTHON" -m vramcast.schedulers.slurm --settings "$SETTINGS" epilog
exit 0
