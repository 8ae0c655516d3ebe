# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""python -m libdualpipe: the answers of `compare` and `plan` on a terminal. The command `dualpipe` has all others."""
import argparse
import sys
from typing import Any, List, Optional, Sequence

from . import Costs, Error, __version__, compare, plan
from ._tables import Rows


def table(rows: "Rows[Any]", most: int) -> str:
    records = rows[:most] and Rows(rows[:most]).records()
    if not records:
        return ""
    cells: List[List[str]] = [list(records[0])]
    for record in records:
        cells.append(["" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in record.values()])
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells)


def read_arguments(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m libdualpipe", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    actions = parser.add_subparsers(dest="action", required=True)
    one = actions.add_parser("compare", help="every built-in schedule, the shortest step first")
    one.add_argument("--ranks", type=int, required=True)
    one.add_argument("--microbatches", type=int, required=True)
    one.add_argument("--costs", metavar="FILE", help="costs of `dualpipe trace costs`")
    one.add_argument("--memory-cap", type=float)
    two = actions.add_parser("plan", help="layout and schedule for a model")
    two.add_argument("--model", metavar="config.json", required=True)
    two.add_argument("--gpus", type=int, required=True)
    two.add_argument("--gpu", default="h100")
    for name in ("global_batch", "seq", "micro_batch", "pp", "ep", "dp", "tp"):
        two.add_argument(f"--{name.replace('_', '-')}", type=int, default=argparse.SUPPRESS)
    two.add_argument("--costs", metavar="FILE")
    return parser.parse_args(arguments)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    given = vars(read_arguments(arguments))
    action, costs = given.pop("action"), given.pop("costs")
    try:
        given["costs"] = Costs.read(costs) if costs is not None else None
        if action == "compare":
            print(table(compare(**given), 64))
            return 0
        found = plan(**given)
    except (Error, OSError) as error:
        print(f"python -m libdualpipe {action}: {error}", file=sys.stderr)
        return 2
    print(f"{found.parameters / 1e9:.4g} B parameters\n{table(found.layouts, 12)}\n\n{found.advice}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
