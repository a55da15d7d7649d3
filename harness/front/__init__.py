"""The commands as they are typed and printed. What they do is in `commands.py`; `cli.py` puts them together."""
