"""Attacks on the service, the schedulers' hooks and the reader of batch scripts: groups of the hostile inputs."""
