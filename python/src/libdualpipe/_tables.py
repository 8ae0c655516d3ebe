# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Lists of rows that notebooks show as tables."""
import html
import importlib
from typing import Any, Dict, List, TypeVar

T = TypeVar("T")


class Rows(List[T]):
    """A list whose rows are tuples with names."""

    def records(self) -> List[Dict[str, Any]]:
        return [dict(row.record() if hasattr(row, "record") else row._asdict()) for row in self]  # type: ignore[attr-defined]

    def to_pandas(self) -> Any:
        """A pandas.DataFrame, where pandas is installed."""
        pandas = importlib.import_module("pandas")
        return pandas.DataFrame.from_records(self.records())

    def _repr_html_(self) -> str:
        def cell(tag: str, value: Any) -> str:
            text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
            return f"<{tag}>{html.escape(text)}</{tag}>"

        rows = self.records()
        head = "".join(cell("th", name) for name in rows[0]) if rows else ""
        body = "".join(f"<tr>{''.join(cell('td', value) for value in row.values())}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
