"""What comes out of pieces is what went in, or nothing."""

import numpy as np
import pytest

from attn_cnn_jax.errors import UserError
from benchmarks.pieces import pack, unpack


def test_a_run_comes_back_byte_for_byte_and_a_damaged_piece_is_refused(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints/20").mkdir(parents=True)
    files = {"config.json": b"{}", "checkpoints/20/array": np.random.default_rng(0).bytes(5000)}
    for name, data in files.items():
        (run / name).write_bytes(data)
    pieces = pack(run, tmp_path / "pieces", 1000)
    assert len(pieces) > 4
    assert max(piece.stat().st_size for piece in pieces) == 1000
    unpack(tmp_path / "pieces", tmp_path / "again")
    found = {
        str(p.relative_to(tmp_path / "again")): p.read_bytes() for p in (tmp_path / "again").rglob("*") if p.is_file()
    }
    assert found == files
    pieces[1].write_bytes(b"other")
    with pytest.raises(UserError, match="piece_001 is not the piece"):
        unpack(tmp_path / "pieces", tmp_path / "third")
    assert not (tmp_path / "third").exists()
