"""What comes out of pieces is what went in, or nothing."""

import os
import subprocess
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).parents[1] / "half_hour.sh"


def half_hour(*arguments):
    command = ["sh", SCRIPT, *arguments]
    return subprocess.run(command, check=False, capture_output=True, env=os.environ | {"PIECE": "1000"}).returncode


def test_a_run_comes_back_byte_for_byte_and_a_damaged_piece_is_refused(tmp_path):
    run, folder, again = (tmp_path / name for name in ("run", "pieces", "again"))
    (run / "checkpoints/20").mkdir(parents=True)
    files = {"config.json": b"{}", "checkpoints/20/array": np.random.default_rng(0).bytes(5000)}
    for name, data in files.items():
        (run / name).write_bytes(data)
    (run / ".lock").touch()
    assert half_hour("pieces", folder, run) == 0
    pieces = sorted(folder.iterdir())
    assert len(pieces) > 4
    assert max(piece.stat().st_size for piece in pieces) == 1000
    assert half_hour("back", folder, again) == 0
    assert {str(p.relative_to(again)): p.read_bytes() for p in again.rglob("*") if p.is_file()} == files
    assert half_hour("back", folder, again) == 1
    for damage in (lambda: pieces[1].write_bytes(b"other" * 200), lambda: pieces[-1].unlink()):
        damage()
        assert half_hour("back", folder, tmp_path / "third") != 0
        assert not (tmp_path / "third").exists()
