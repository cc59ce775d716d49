"""A job as plain data: what it trains, how it is spread over ranks, and the text or command that it is read from."""
