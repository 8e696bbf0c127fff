"""Kill a run in the middle, resume it, and end with the same weights, to the bit, as a run that was left alone."""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accord.experiment import Experiment
from accord.run import resume, run


def lines(log: Path) -> int:
    """How many rounds a run has recorded."""
    return log.read_text().count("\n") if log.is_file() else 0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=200)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        whole, cut = Path(place) / "whole", Path(place) / "cut"
        text = "scaffold + constrain + sgd(lr=0.02, epochs=2, batch=20)"
        asked = Experiment(algorithm=text, rounds=chosen.rounds, per_round=5, engine="process")
        expected = run(asked, whole)
        print("left alone:", expected["digest"])

        settings = ["--algorithm", text, "--rounds", str(chosen.rounds), "--per-round", "5", "--engine", "process", "--out", str(cut)]
        process = subprocess.Popen([sys.executable, "-m", "accord.cli", "run", *settings], stderr=subprocess.DEVNULL)
        while lines(cut / "rounds.jsonl") < chosen.rounds // 3:
            time.sleep(0.01)
        process.kill()
        process.wait()
        print(f"killed after round {lines(cut / 'rounds.jsonl')} of {chosen.rounds}")

        found = resume(cut)
        print("resumed:   ", found["digest"])
        assert found["digest"] == expected["digest"]


if __name__ == "__main__":
    main()
