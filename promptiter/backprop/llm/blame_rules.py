"""The rules of the prompts that ask for blame: of one step (`step_prompt`), and of whole runs (`trace_prompt`)."""

from __future__ import annotations

TO_A_SURFACE = """\
- To a surface: which of its words mislead, or what it leaves open, and the general rule that would fix it, in one to \
three sentences. Names, numbers, ids and answers of this run stay out, because the rule is for new inputs: "copy the \
order id from the request into the answer", not "answer A-17"."""

GRADES = """\
- findings: the ids of the findings that this explains, no others.
- severity, as you judge the result: P0 useless or harmful, P1 wrong in a main point, P2 partly wrong, P3 a minor flaw.
- category: response (content), format (right content, wrong form), wrong_tool (a wrong tool, or none where one was \
needed), wrong_arguments, route (wrong branch), knowledge (no step and no tool could have known it), error (a step \
failed), other.{confidence}
Use only the ids that are listed."""

CONFIDENCE = """
- confidence: from 0 to 1, how sure you are of this cause."""

MISSING_TOOL = """\
If a tool should have been called and was not, blame its description if that hides what the tool does, otherwise the \
instruction."""

BACKWARD = """\
You find the cause of a failure in an agent made of several steps. You see one step of one run, and what is wrong with \
the result. Say what has to change{here_or_before}.

{surfaces}{predecessors}
Decide like this:
1. What exactly is missing, wrong or too much in the output? Only the findings (F1, F2, ...) count. The expected \
answer is that of the whole run; this step may be responsible for only a part of it.
2. Look for it in the step's input and tool results. If it was there, this step lost or garbled it: {if_lost_here}. \
{missing_there}{missing_tool}
3. Blame as little as explains the failure. If nothing that is listed can be at fault, leave the lists empty.

Write like this:
{to_a_surface}{to_a_predecessor}{grades}

{data_rule}

Answer with one JSON object:
{{"diagnosis": "what went wrong and where, in one or two sentences"{gradients}{packets}}}"""

HERE = {
    "surfaces": """\
- A surface (S1, S2, ...) is a text or setting of this step that will be edited. Blame it if the step, with the input \
it got, would have done right under a better surface.{fixed}
""",
    "if_lost_here": "blame a surface",
    "to_a_surface": f"{TO_A_SURFACE}\n",
    "confidence": CONFIDENCE,
    "gradients": """, \
"gradients": [{"surface": "S1", "findings": ["F1"], "text": "...", "severity": "P1", "category": "response", \
"confidence": 0.8}]""",
}
"""What BACKWARD says of the surfaces of the step, if any may be blamed."""

NOT_HERE = "nothing that is listed is at fault then"
"""What BACKWARD says of a fault in a step without such surfaces."""

FIXED = ' Surfaces named "fixed" stay as they are.'
"""What BACKWARD says of surfaces that may not be blamed, if any are shown."""

OTHER_BRANCH = "; if that one is in a branch that did not run, the step that decided so"
"""What BACKWARD says of branches, if the run could have taken others."""

BEFORE = {
    "here_or_before": ": here, or before",
    "predecessors": """\
- A predecessor (P1, P2, ...) is a step whose output this step read, or that triggered it. Blame it if what this step \
needed was missing, wrong or misleading there, so that no better surface here could have helped.
""",
    "missing_there": """\
If it was already missing or wrong there, blame the predecessor that it came from. If no step had it, blame the one \
that should have fetched or asked for it{routes}. """,
    "to_a_predecessor": """\
- To a predecessor: what its output should have contained or left out in this run. It is read by someone who sees only \
that predecessor, so name things ("the note that reply was given"), and never write "this step".
""",
    "packets": """, \
"packets": [{"predecessor": "P1", "findings": ["F1"], "text": "...", "severity": "P1", "category": "response"}]""",
}
"""What BACKWARD says of predecessors, if the step has any."""

WHOLE_TRACE = """\
You find the causes of failures in an agent made of several steps. You see failed runs: what the user said, the steps \
that led to the result, and what is wrong with it. Say what has to change, and at which step.

- A surface (S1, S2, ...) is a text or setting that will be edited; several steps may read the same one. Surfaces \
named "fixed" stay as they are.
- A step (T1, T2, ...) is one action of the agent. Its heading names its node, in brackets the surfaces that may be \
blamed at it (no others), and what it read. If no input is shown, its input was exactly that.
- A finding (F1, F2, ...) is one thing that is wrong with the result of its run.

Decide like this, for each run on its own:
1. What exactly is missing, wrong or too much in the result? Only the findings count. The expected answer is that of \
the whole run; a step may be responsible for only a part of it, and a branch need not repeat what another one carries.
2. Follow each finding back from the step that it names, or from the last one: from output to input to the output \
before, until you reach the step that had it right in its input or tool results and lost or garbled it, or that \
introduced what is wrong. If no step had it, find the step that should have fetched or asked for it; if that one is in \
a branch that did not run, the step that decided so.
3. Blame a surface of that step, if the step, with the input it got, would have done right under a better surface. \
{missing_tool} Later steps that only passed the fault on are not to blame.
4. Findings with different causes have different entries, and every run has entries of its own: write the same text \
again if the cause is that of another run. Blame as little as explains the failure. If nothing that is listed can be \
at fault, leave the list empty.

Write like this:
{to_a_surface}
{grades}

{data_rule}

Answer with one JSON object:
{{"diagnosis": "what went wrong and where, in one to three sentences", \
"gradients": [{{"step": "T1", "surface": "S1", "findings": ["F1"], "text": "...", "severity": "P1", \
"category": "response", "confidence": 0.8}}]}}"""
