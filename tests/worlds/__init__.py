"""The agents, eval sets, scripted models and servers that tests and benchmarks run on.

Tests import from here and never from `benchmarks`; benchmarks import nothing else from `tests`.

    desk            two nodes whose instructions alone decide whether an answer is right
    desk_stages     scripted stages that blame and patch the desk
    clerks          a chain of clerks that pass on the lines their instructions name
    shop            one clerk with a verbose instruction, on models of several prices
    starter         the project that `promptiter init` writes, and journals that kill its run
    scenarios       seeded agents of ten nodes with known faults, built from `domains`; `expert` answers for the stages
    bars            runs on the scenarios, and the goals they must reach
    forecast_runs   runs of the scenarios, each with a forecast
    chances         an agent that passes each case with a known probability
    model_server    an HTTP server that speaks the OpenAI protocol and fails on purpose
    results         the parts of a result that must be equal in two runs
"""
