"""What a command as people type it runs: the program, and the ranks that its launcher starts."""
