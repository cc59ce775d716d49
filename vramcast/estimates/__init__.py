"""The answer to a job: its peaks, its bound, and what else the job could take."""
