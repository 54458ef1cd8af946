"""The report of a run: `report.md` for a pull request, `report.html` for reading, `trajectory.csv` for other tools.

`run_report` collects what a report shows, on top of the summary that `promptiter show` prints, and `pages` writes it.
The parts that a summary does not have are modules of their own: the `trajectory`, `case_changes`, the `blame_diagram`.
"""
