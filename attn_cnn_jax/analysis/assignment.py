"""The assignment of heads to shifts: the Hungarian algorithm, since SciPy's takes a second to import."""

import numpy as np
from jaxtyping import Float, Int


def largest_assignment(gain: Float[np.ndarray, "m n"]) -> Int[np.ndarray, " n"]:
    """Returns for each column the row that it is given, each row at most once, with the largest sum; -1 for none.

    As many columns have a row as there can be. By shortest augmenting paths with potentials, O(n^3).
    """
    if gain.shape[0] > gain.shape[1]:
        columns = largest_assignment(gain.T)
        assigned = np.full(gain.shape[1], -1)
        rows = np.flatnonzero(columns >= 0)
        assigned[columns[rows]] = rows
        return assigned
    cost = -np.asarray(gain, np.float64)
    rows, columns = cost.shape
    of_row, of_column, taken = np.zeros(rows), np.zeros(columns), np.full(columns, -1)
    for start in range(rows):
        shortest, before, seen = np.full(columns, np.inf), np.full(columns, -1), np.zeros(columns, bool)
        row, last, length = start, -1, 0.0
        while row >= 0:  # until a column is free
            through = length + cost[row] - of_row[row] - of_column
            nearer = ~seen & (through < shortest)
            shortest[nearer], before[nearer] = through[nearer], last
            last = int(np.argmin(np.where(seen, np.inf, shortest)))
            seen[last], length, row = True, shortest[last], taken[last]
        of_row[start] += length
        others = seen & (taken >= 0)
        of_row[taken[others]] += length - shortest[others]
        of_column[seen] -= length - shortest[seen]
        while last >= 0:  # along the path, every row takes the next column
            taken[last] = start if before[last] < 0 else taken[before[last]]
            last = before[last]
    return taken
