"""What runs inside a job that follows a plan: `vramcast.runtime.follow("plan.json")`."""
