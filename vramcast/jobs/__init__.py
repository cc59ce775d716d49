"""What is asked: a job, its training, its ranks, and the commands that describe one."""
