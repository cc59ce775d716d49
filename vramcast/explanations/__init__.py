"""Why a job ran out of memory: the cause, what held the card, and the changes that would have let it live."""
