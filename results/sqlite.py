"""sqlite-utils, imported without pandas: it looks for data frames in what is inserted, which we never insert.

Every command that opens a database would else wait for pandas, which takes as long to import as all the rest.
"""

from __future__ import annotations

import sys

_hidden = "pandas" not in sys.modules
if _hidden:
    sys.modules["pandas"] = None  # type: ignore[assignment]  # what the import system takes for "not installed"
try:
    import sqlite_utils as sqlite_utils
    from sqlite_utils.migrations import Migrations as Migrations
finally:
    if _hidden:
        del sys.modules["pandas"]
