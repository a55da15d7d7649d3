"""How far can a verdict be trusted? Comparisons with a known answer, by frostline and by other tools, as their users run them.

`python -m frostline.harness.trials` measures, `results/trials.py` counts, `dashboards/trials.py` draws; `make method` does all.
"""
