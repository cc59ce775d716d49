"""The service under load, under attack, and when it is killed."""
