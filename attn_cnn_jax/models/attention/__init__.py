"""Multi-head self-attention over pixels.

    MHSA(X)_q = sum_h sum_k softmax_k(score_h(q, k)) X_k W^(h) + b_out,    W^(h) = W_val^(h) W_out^(h)

`scores.py` has the scores of one head, `encoding.py` what an encoding answers, `layer.py` the layer. The sum over heads
stands in two files side by side, `cpu.py` and `accelerator.py`: the same numbers, in the order of axes that is cheapest
on CPUs and on GPUs and TPUs. `parts.py` computes either a part at a time where memory is short.
"""
