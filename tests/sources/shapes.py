"""Files as people write them, each with one value: ⟦ and ⟧ enclose the text that may change, and nothing else may."""

from __future__ import annotations

from dataclasses import dataclass

from traces.model import Json


@dataclass(frozen=True)
class Shape:
    """A file, the field in it, and the value that the field has."""

    name: str
    file: str
    field: str
    marked: str
    value: Json
    encoding: str = "utf-8"

    @property
    def parts(self) -> tuple[bytes, bytes, bytes]:
        """The bytes before the value, the value, and the bytes after it."""
        before, rest = self.marked.split("⟦")
        old, after = rest.split("⟧")
        mark = b"\xef\xbb\xbf" if self.encoding == "utf-8-sig" else b""
        encoding = "utf-8" if self.encoding == "utf-8-sig" else self.encoding
        return mark + before.encode(encoding), old.encode(encoding), after.encode(encoding)

    @property
    def raw(self) -> bytes:
        return b"".join(self.parts)

    @property
    def place(self) -> str:
        return f"{self.file}{self.field}"


def crlf(shape: Shape) -> Shape:
    return Shape(f"{shape.name}, CR LF", shape.file, shape.field, shape.marked.replace("\n", "\r\n"), shape.value)


def marked_utf8(shape: Shape) -> Shape:
    return Shape(f"{shape.name}, BOM", shape.file, shape.field, shape.marked, shape.value, "utf-8-sig")


def py(name: str, path: str, marked: str, value: Json) -> Shape:
    return Shape(f"py: {name}", "bot.py", f":{path}", marked, value)


def yml(name: str, path: str, marked: str, value: Json) -> Shape:
    return Shape(f"yaml: {name}", "bot.yaml", f":{path}", marked, value)


def jsn(name: str, path: str, marked: str, value: Json) -> Shape:
    return Shape(f"json: {name}", "bot.json", f":{path}", marked, value)


def md(name: str, heading: str, marked: str, value: Json) -> Shape:
    return Shape(f"md: {name}", "bot.md", f"#{heading}", marked, value)


PYTHON = (
    py("constant", "PROMPT", 'import os\n\nPROMPT = ⟦"Be brief."⟧  # the prompt\nOTHER = "Be brief."\n', "Be brief."),
    py("single quotes", "PROMPT", "PROMPT = ⟦'Say \"hi\".'⟧\n", 'Say "hi".'),
    py(
        "triple quotes",
        "PROMPT",
        'PROMPT = ⟦"""Be brief.\n\nSay "hi".\n"""⟧\n\n\ndef f(): ...\n',
        'Be brief.\n\nSay "hi".\n',
    ),
    py("triple single quotes", "PROMPT", "PROMPT = ⟦'''Be brief.'''⟧\n", "Be brief."),
    py("first line continued", "PROMPT", 'PROMPT = ⟦"""\\\nBe brief.\nAlways.\n"""⟧\n', "Be brief.\nAlways.\n"),
    py("raw", "PROMPT", 'PROMPT = ⟦r"Match \\d+."⟧\n', "Match \\d+."),
    py("raw triple", "PROMPT", 'PROMPT = ⟦R"""Match \\d+.\n"""⟧\n', "Match \\d+.\n"),
    py("u prefix", "PROMPT", "PROMPT = ⟦u'Sei kurz.'⟧\n", "Sei kurz."),
    py("escapes", "PROMPT", 'PROMPT = ⟦"Tab\\tand \\u00e9 and \\N{BULLET}"⟧\n', "Tab\tand é and •"),
    py("non-ASCII before it", "B", 'A = "naïve – 🙂"; B = ⟦"Grüße"⟧; C = "ß"\n', "Grüße"),
    py("tabs", "Bot.prompt", 'class Bot:\n\tprompt = ⟦"Be brief."⟧\n\tx = 1\n', "Be brief."),
    py("annotated", "Bot.prompt", 'class Bot:\n    """Docs."""\n\n    prompt: str = ⟦"Be brief."⟧\n', "Be brief."),
    py(
        "keyword in calls",
        "agent.nodes.1.instruction",
        'agent = G(\n    nodes=(\n        N(instruction="Be brief."),\n        N(instruction=⟦"Be brief."⟧),\n    )\n)',
        "Be brief.",
    ),
    py(
        "decorator",
        "plan.@node.instruction",
        '@node(instruction=⟦"Be brief."⟧)\ndef plan(x: str) -> str:\n    """Plan."""\n    return x\n',
        "Be brief.",
    ),
    py("docstring", "plan.__doc__", 'def plan(x):\n    ⟦"""Be brief."""⟧\n    return x\n', "Be brief."),
    py(
        "dict",
        "PROMPTS.plan",
        'PROMPTS = {\n    "plan": ⟦"Be brief."⟧,  # plan\n    "act": "Be brief.",\n}\n',
        "Be brief.",
    ),
    py("default of a parameter", "ask.prompt", 'def ask(x, *, prompt=⟦"Be brief."⟧, y=1): ...\n', "Be brief."),
    py(
        "attribute",
        "Bot.__init__.self.prompt",
        'class Bot:\n    def __init__(self):\n        self.prompt = ⟦"Be brief."⟧\n',
        "Be brief.",
    ),
    py(
        "adjacent strings",
        "PROMPT",
        'PROMPT = (\n    ⟦"Be brief. "\n    "Be kind. "\n    "Be done."⟧\n)\n',
        "Be brief. Be kind. Be done.",
    ),
    py(
        "dedent",
        "PROMPT",
        'from textwrap import dedent\n\nPROMPT = dedent(\n    ⟦"""\n    Be brief.\n      Very.\n    """⟧\n)\n',
        "\nBe brief.\n  Very.\n",
    ),
    py(
        "cleandoc",
        "PROMPT",
        'PROMPT = inspect.cleandoc(⟦"""\n    Be brief.\n      Very.\n    """⟧)\n',
        "Be brief.\n  Very.",
    ),
    py("stripped", "PROMPT", 'PROMPT = ⟦"""\nBe brief.\n"""⟧.strip()\n', "Be brief."),
    py("second one", "PROMPT~2", 'PROMPT = "a"\nif x:\n    PROMPT = ⟦"b"⟧\n', "b"),
    py("number", "TOP_K", "TOP_K = ⟦5⟧  # how many\n", 5),
    py("list", "WORDS", 'WORDS = ⟦["a", "b"]⟧\n', ["a", "b"]),
    py("no line end", "PROMPT", 'PROMPT = ⟦"Be brief."⟧', "Be brief."),
    py("form feed", "B", 'A = 1\n\x0c\nB = ⟦"Be brief."⟧\n', "Be brief."),
)

YAML = (
    yml("plain", "bot.prompt", "# bots\nbot:\n  prompt: ⟦Be brief.⟧  # the prompt\n  k: 1\n", "Be brief."),
    yml("single quotes", "bot.prompt", "bot:\n  prompt: ⟦'It''s: brief'⟧\n  k: 1\n", "It's: brief"),
    yml("double quotes", "bot.prompt", 'bot: {prompt: ⟦"a\\tb"⟧, k: 1}  # flow\n', "a\tb"),
    yml("plain in flow", "bot.0", "bot: [⟦brief⟧, kind]\n", "brief"),
    yml("literal", "prompt", "a: 1\nprompt: ⟦|\n  Be brief.\n\n  Always.\n⟧b: 2\n", "Be brief.\n\nAlways.\n"),
    yml("literal, stripped", "prompt", "prompt: ⟦|-\n    Be brief.\n    Always.\n⟧b: 2\n", "Be brief.\nAlways."),
    yml("literal, kept", "prompt", "prompt: ⟦|+\n  Be brief.\n\n\n⟧b: 2\n", "Be brief.\n\n\n"),
    yml("literal, indented more", "prompt", "prompt: ⟦|2\n    Be brief.\n  Always.\n⟧b: 2\n", "  Be brief.\nAlways.\n"),
    yml("literal with a comment", "prompt", "prompt: ⟦|  # prompt\n  Be brief.\n⟧\n# end\n", "Be brief.\n"),
    yml("literal and blank lines", "prompt", "prompt: ⟦|\n  Be brief.\n\n⟧# next\nb: 2\n", "Be brief.\n"),
    yml("literal at the end", "prompt", "b: 2\nprompt: ⟦|\n  Be brief.⟧", "Be brief."),
    yml("literal in a list", "bots.1", "bots:\n- a\n- ⟦|\n  Be brief.\n⟧- c\n", "Be brief.\n"),
    yml(
        "literal in a mapping in a list",
        "bots.0.prompt",
        "bots:\n  - name: a\n    prompt: ⟦|\n      Be brief.\n⟧    k: 1\n  - name: b\n",
        "Be brief.\n",
    ),
    yml(
        "folded",
        "prompt",
        "prompt: ⟦>\n  Be brief,\n  and kind.\n\n  Always.\n⟧b: 2\n",
        "Be brief, and kind.\nAlways.\n",
    ),
    yml("folded, stripped", "prompt", "prompt: ⟦>-\n  Be brief,\n  and kind.\n⟧b: 2\n", "Be brief, and kind."),
    yml("anchor without alias", "prompt", "prompt: &p ⟦Be brief.⟧\nb: 2\n", "Be brief."),
    yml(
        "anchors elsewhere", "bot.prompt", "base: &base {k: 1}\nbot:\n  <<: *base\n  prompt: ⟦'x'⟧\nother: *base\n", "x"
    ),
    yml("tag", "prompt", "prompt: !!str ⟦'5'⟧\n", "5"),
    yml("anchor and literal", "prompt", "prompt: &p ⟦|\n  Be brief.\n⟧b: 2\n", "Be brief.\n"),
    yml("multi-line plain", "prompt", "prompt: ⟦Be brief\n  and kind⟧\nb: 2\n", "Be brief and kind"),
    yml("quoted key", '"a.b".prompt', '"a.b":\n  prompt: ⟦x⟧\n', "x"),
    yml("duplicate texts", "b.p", "a: {p: x}\nb:\n    p: ⟦x⟧\nc: x\n", "x"),
    yml("non-ASCII", "prompt", "größe: ü 🙂\nprompt: ⟦Grüße⟧\n", "Grüße"),
    yml("empty", "prompt", "prompt:⟦⟧\nb: 2\n", None),
    yml("number", "k", "k: ⟦5⟧ # how many\n", 5),
    yml("block list", "words", "words:\n  ⟦- a\n  - b⟧\n# end\nk: 1\n", ["a", "b"]),
    yml("document marks", "prompt", "%YAML 1.1\n---\nprompt: ⟦x⟧\n...\n", "x"),
)

JSON = (
    jsn("string", "prompt", '{"prompt": ⟦"Be brief."⟧, "k": 1}', "Be brief."),
    jsn("indented", "bots.1.prompt", '{\n  "bots": [\n    {"prompt": "x"},\n    {"prompt": ⟦"x"⟧ }\n  ]\n}\n', "x"),
    jsn("tabs", "a.b", '{\n\t"a": {\n\t\t"b"\t:\t⟦"x"⟧\n\t}\n}\n', "x"),
    jsn("escapes", "p", '{"q": "\\u00e9", "p": ⟦"a\\nb \\u00fc"⟧}', "a\nb ü"),
    jsn("non-ASCII", "p", '{"ü🙂": "é", "p": ⟦"Grüße"⟧}', "Grüße"),
    jsn("key with a dot", '"a.b"', '{"a.b": ⟦"x"⟧}', "x"),
    jsn("number", "k", '{"k": ⟦5⟧}', 5),
    jsn("list", "w", '{"w": ⟦["a", "b"]⟧, "k": []}', ["a", "b"]),
    jsn("indented list", "w", '{\n    "w": ⟦[\n        "a",\n        "b"\n    ]⟧,\n    "k": 1.50e+1\n}\n', ["a", "b"]),
    jsn("compact", "p", '{"a":[1,2],"p":⟦"x"⟧}', "x"),
)

MARKDOWN = (
    md("section", "Planner", "# Bots\n\n## Planner\n\n⟦Be brief.⟧\n\n## Actor\n\nBe kind.\n", "Be brief."),
    md("last section", "Actor", "# Planner\nBe brief.\n# Actor\n⟦Be kind.⟧", "Be kind."),
    md("closed heading", "Planner", "## Planner ##\n\n⟦Be brief.\nAlways.⟧\n\n\n## Actor\n", "Be brief.\nAlways."),
    md("setext", "Planner", "Planner\n=======\n\n⟦Be brief.⟧\n\nActor\n=====\nBe kind.\n", "Be brief."),
    md("setext, second level", "Planner", "Planner\n---\n⟦Be brief.⟧\n\nActor\n---\n", "Be brief."),
    md(
        "code fence",
        "Planner",
        "# Planner\n\n⟦Run:\n\n```sh\n# Actor\nls\n```\nDone.⟧\n\n# Actor\nx\n",
        "Run:\n\n```sh\n# Actor\nls\n```\nDone.",
    ),
    md("fence before it", "Actor", "```\n# Actor\n```\n~~~md\n# Actor\n~~~\n# Actor\n⟦Be kind.⟧\n", "Be kind."),
    md(
        "subsections",
        "Planner",
        "# Planner\n⟦Be brief.\n\n## Rules\n\n- one⟧\n\n# Actor\n",
        "Be brief.\n\n## Rules\n\n- one",
    ),
    md("duplicate headings", "Support > Planner", "# Sales\n## Planner\na\n# Support\n## Planner\n⟦b⟧\n", "b"),
    md("front matter", "Planner", "---\ntitle: Bots\n---\n# Planner\n⟦Be brief.⟧\n", "Be brief."),
    md(
        "comment",
        "Planner",
        "<!--\n# Planner\n-->\n# Planner\n\n⟦x⟧\n\n[//]: # (end)\n".replace("\n\n[//]: # (end)\n", "\n"),
        "x",
    ),
    md("list and rule", "Planner", "# Planner\n\n⟦- a\n\n---\n\n1. b⟧\n\n# Actor\n", "- a\n\n---\n\n1. b"),
    md("non-ASCII", "Größe", "# Größe\n\n⟦Grüße 🙂⟧\n", "Grüße 🙂"),
    md("slug", "the-planner", "# The Planner\n\n⟦Be brief.⟧\n", "Be brief."),
    md("empty", "Planner", "# Planner\n⟦⟧# Actor\nx\n", ""),
    Shape("whole file", "bot.txt", "", "⟦Be brief.\n⟧", "Be brief.\n"),
)

PLAIN = (*PYTHON, *YAML, *JSON, *MARKDOWN)
SHAPES = (
    *PLAIN,
    *(crlf(each) for each in PLAIN if "\n" in each.marked),
    *(marked_utf8(each) for each in (PYTHON[0], PYTHON[2], YAML[0], YAML[4], JSON[1], MARKDOWN[0])),
)
