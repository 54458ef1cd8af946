"""What a run will take: calls, tokens, dollars and seconds, before anything is spent.

A forecast is the cost of a case run times the number of case runs of each stage. `workload` reads what a run consists
of, `history` measures unit costs in earlier runs, `unit_costs` guesses them by rules of thumb, `estimate` counts case
runs and multiplies, `caps` applies the budget, and `forecast` puts it together. The result, and what each stage of a
run took, are records of a run: `runs.forecast_file` and `runs.stage_costs`.
"""
