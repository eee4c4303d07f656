"""Console programs: each starts the program of the same name in this package."""
import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "bin"
NAMES = ("nsactl", "nsad", "nsa-worker", "nsa-shim", "nsa-evidence", "nsa-model", "nsa-fetch")


def run():
    """Entry point of all console programs; the name of the called program chooses."""
    name = pathlib.Path(sys.argv[0]).name
    program = FOLDER / name
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"error: {program}: {error.strerror}\n  hint: install the package nsad again")
