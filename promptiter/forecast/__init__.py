"""What a run will take: calls, tokens, dollars and seconds, before anything is spent.

A forecast is the measured cost of a case run times the number of case runs of each stage. `workload` counts what a run
consists of, `history` measures costs in earlier runs, `unit_costs` has rules of thumb for what was never measured,
`estimate` adds it up for a short, a typical and a long run, and `forecast` puts the three side by side. `stage_costs`
reads what each stage of a run took.
"""
