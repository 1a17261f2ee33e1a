"""Tables of a report on a terminal."""

from attn_cnn_jax.instrument import text


def test_no_number_is_minus_zero_and_lemma_3_stays_on_one_line():
    row = {"layer": 1, "centre_interior_row": -0.004, "lemma_3_residual": -0.0, "share": -0.0004, "distance": -0.006}
    first, *others, last = text.as_text([row]).splitlines()
    assert last.split() == ["1", "0.00", "0.00", "0.0%", "-0.01"]
    assert "lemma 3" in first
    assert "residual" in others[0]
