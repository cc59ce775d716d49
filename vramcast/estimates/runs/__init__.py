"""The runs of a job that give one estimate: on its card, and further ones where something is unknown."""
