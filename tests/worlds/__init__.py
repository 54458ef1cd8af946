"""The agents, eval sets, scripted models and servers that tests and benchmarks run on.

Tests import from here and never from `benchmarks`; benchmarks import nothing else from `tests`.

    desk            two nodes whose instructions alone decide whether an answer is right
    desk_stages     scripted stages that blame and patch the desk
    clerks          a chain of clerks that pass on the lines their instructions name
    shop            one clerk with a verbose instruction, on models of several prices
    starter         the project that `promptiter init` writes, and journals that kill its run
    scenarios       seeded agents of ten nodes with known faults, built from `domains`; `expert` answers for the stages
    planted_world   agents with planted faults that `sighted_expert` optimizes, knowing only what `prompt_reader` reads
    rules_world     ten nodes, two branches and twelve rules
    triage_world    a hotel desk with a misleading instruction and a wrong tool description
    quadratic_world six numbers with an optimum that one sentence of the instruction moves
    single_prompt   one prompt with two faults, judged by an exact match
    exit_loop       a loop whose exit condition is wrong
    handbook        one instruction that is too long to be shown, with one wrong line
    wrong_route     a router that sends requests to the wrong desk, which hides a fault of the right one
    usual_suspect   two faults in a row, and an innocent node that is always blamed, whose patch ruins every answer
    skill_file      two long skills, of which one has a wrong line
    planted_worlds  these eight by name
    bars            runs on the scenarios, and the goals they must reach
    forecast_runs   runs of the scenarios, each with a forecast
    chances         an agent that passes each case with a known probability
    model_server    an HTTP server that speaks the OpenAI protocol and fails on purpose
    results         the parts of a result that must be equal in two runs
"""
