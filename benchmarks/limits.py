"""What the toolkit promises of its speed, held against what `bench.py` measured.

Only cases that were measured are judged. Seconds depend on the machine: a limit that is missed on
one that is busy is to be measured again.
"""

import math
from dataclasses import dataclass
from typing import Any

import preparation
import tasks

Line = dict[str, Any]


@dataclass(frozen=True)
class Limit:
    """A figure that may be at most so large, or has to be at least so large.

    Attributes:
        case: Of `bench.py`.
        way: How the line begins that has the figure.
        column: Of the line.
        most: The upper limit.
        least: The lower limit.
    """

    case: str
    way: str
    column: str
    most: float = math.inf
    least: float = -math.inf


_LARGEST = f"{preparation.ROWS[-1]:,} rows"
_AT_SCALE, _OURS = "preparation-at-scale", f"{preparation.OURS}, {_LARGEST}"
LIMITS = (
    Limit("check", "check, 25,000 long reviews: ours", "s", 15),
    Limit("check", "check, 25,000 long reviews: ours", "first tier in a training, s", 3),
    Limit("deep", "check --deep, 25,000 long reviews: ours", "s", 150),
    Limit(_AT_SCALE, _OURS, "times map, round by round", 1.15),
    Limit(_AT_SCALE, _OURS, "MiB beyond imports", 2048),
    Limit(_AT_SCALE, _OURS, "exponent", 1.1),
    Limit(_AT_SCALE, _OURS, "exponent of memory", 1.1),
    Limit(_AT_SCALE, f"{preparation.SECOND}, {_LARGEST}", "s", 5),
    Limit(_AT_SCALE, f"{preparation.FEW}, {_LARGEST}", "s", 5),
    Limit(_AT_SCALE, preparation.RANKS, "s", least=preparation.TIMEOUT),
    Limit(_AT_SCALE, preparation.RANKS, "times one process", 1.3),
    Limit("scale", "scale, statistics with TF-IDF, 8,000 x 2,000", "s", 20),
    Limit("scale", "scale, results, 50,000 x 2,000", "MiB", 2048),
    Limit("scale", "scale, results, 50,000 x 2,000", "metrics.json, MB", 1),
    Limit("scale", "scale, results, 200,000 x 5", "statistics and page, s", 15),
    Limit("scale", "scale, predict, 1,000,000 rows, .csv", "of that at 50,000", 1.05),
    Limit("scale", "scale, predict, 1,000,000 rows, .parquet", "of that at 50,000", 1.05),
    *[
        limit
        for way in tasks.WAYS
        if way != tasks.SINGLE
        for limit in (
            Limit("tasks", way, "times, round by round", least=0.95),
            Limit("tasks", way, "beyond single label, s", 1),
        )
    ],
    Limit("tasks", tasks.IMAGES, "beyond single label, s", 3),
)


def judged(found: dict[str, list[Line]]) -> list[Line]:
    """Return a line for each limit of the cases that were measured.

    Args:
        found: The lines of each case, by its name.
    """
    judged: list[Line] = []
    for limit in LIMITS:
        for line in found.get(limit.case, []):
            names = (line["way"], line["case"], f"{line['case']}: {line['way']}")
            if limit.way in names and limit.column in line:
                measured = _number(line[limit.column])
                judged.append(
                    {
                        "case": "limits",
                        "way": f"{limit.way}, {limit.column}",
                        "measured": measured,
                        "limit": limit.most if limit.most < math.inf else limit.least,
                        "held": "yes" if limit.least <= measured <= limit.most else "NO",
                    }
                )
    return judged


def _number(value: Any) -> float:
    """Return a figure, also of `12.3 (11.9 CPU)`."""
    return float(value.split()[0]) if isinstance(value, str) else float(value)
