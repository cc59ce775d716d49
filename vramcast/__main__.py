"""python -m vramcast."""

from vramcast.cli.main import entry

if __name__ == "__main__":
    entry()
